//! Encryption: of the TCP connections that NCCL opens, and this implementation does not.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::CStr;

use libnccl::sys::{NCCL_API_MAGIC, ncclEncryptionConfig_t, ncclEncryptionMode_t, ncclResult_t};

use super::{answer, check};
use crate::debug::{self, Subsystem};
use crate::failure::{Failure, Result};

/// The fewest bytes of a secret.
const SECRET: usize = 32;

pub(crate) unsafe extern "C" fn ncclSetEncryption(config: *const ncclEncryptionConfig_t) -> ncclResult_t {
    // SAFETY: NULL or a config, the C declaration's contract.
    answer(|| unsafe { config.as_ref() }.map_or(Ok(()), set))
}

fn set(config: &ncclEncryptionConfig_t) -> Result {
    const NONE: i64 = ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_NONE.0 as i64;
    const SECRET_KEY: i64 = ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_PSK.0 as i64;

    if config.magic != NCCL_API_MAGIC {
        return Err(Failure::argument(format!(
            "the magic of the encryption's configuration is {:#x} and has to be {NCCL_API_MAGIC:#x}: start from \
             NCCL_ENCRYPTION_CONFIG_INITIALIZER",
            config.magic
        )));
    }
    match config.mode.into() {
        NONE => {
            debug::info(Subsystem::Bootstrap, || "Encryption: none, as ranks meet at Unix sockets".into());
            Ok(())
        }
        SECRET_KEY => {
            check(config.psk, "the secret")?;
            // SAFETY: a string that ends, the C declaration's contract.
            let length = unsafe { CStr::from_ptr(config.psk) }.count_bytes();
            if length < SECRET {
                return Err(Failure::argument(format!(
                    "the secret has {length} bytes and has to have {SECRET} or more"
                )));
            }
            Err(Failure::usage(
                "the CPU implementation opens no TCP connections that could be encrypted: its ranks are on one host",
            ))
        }
        mode => Err(Failure::argument(format!(
            "invalid encryption mode {mode}: it has to be {NONE} (none) or {SECRET_KEY} (a pre-shared key)"
        ))),
    }
}
