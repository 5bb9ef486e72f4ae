//! Encryption of TCP connections, which NCCL opens and this implementation does not.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::CStr;

use libnccl::sys::{NCCL_API_MAGIC, ncclEncryptionConfig_t, ncclEncryptionMode_t, ncclResult_t};

use super::ffi_guard::{check_not_null, guard};
use crate::diag::debug::{self, Subsystem};
use crate::diag::error::{Error, Result};

/// The least length of a pre-shared key in bytes.
const MIN_KEY: usize = 32;

pub(super) unsafe extern "C" fn ncclSetEncryption(config: *const ncclEncryptionConfig_t) -> ncclResult_t {
    // SAFETY: NULL or a config, the C declaration's contract.
    guard(|| unsafe { config.as_ref() }.map_or(Ok(()), set))
}

fn set(config: &ncclEncryptionConfig_t) -> Result {
    const NONE: i64 = ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_NONE.0 as i64;
    const PSK: i64 = ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_PSK.0 as i64;

    if config.magic != NCCL_API_MAGIC {
        return Err(Error::argument(format!(
            "the magic of the encryption's configuration is {:#x} and has to be {NCCL_API_MAGIC:#x}: start from \
             NCCL_ENCRYPTION_CONFIG_INITIALIZER",
            config.magic
        )));
    }
    match config.mode.into() {
        NONE => {
            debug::info(Subsystem::Bootstrap, || {
                "Encryption: none, as ranks connect through Unix sockets".into()
            });
            Ok(())
        }
        PSK => {
            check_not_null(config.psk, "the pre-shared key")?;
            // SAFETY: a terminated string, the C declaration's contract.
            let length = unsafe { CStr::from_ptr(config.psk) }.count_bytes();
            if length < MIN_KEY {
                return Err(Error::argument(format!(
                    "the pre-shared key has {length} bytes and has to have {MIN_KEY} or more"
                )));
            }
            Err(Error::usage(
                "the CPU implementation opens no TCP connections that could be encrypted: its ranks are on one host",
            ))
        }
        mode => Err(Error::argument(format!(
            "invalid encryption mode {mode}: it has to be {NONE} (none) or {PSK} (a pre-shared key)"
        ))),
    }
}
