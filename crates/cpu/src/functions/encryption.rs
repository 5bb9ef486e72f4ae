//! Encryption of TCP connections, which NCCL opens and this implementation does not.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::CStr;
use std::ptr;

use libnccl::sys::{NCCL_API_MAGIC, ncclEncryptionConfig_t, ncclEncryptionMode_t, ncclResult_t};

use super::guard::{check_not_null, guard};
use crate::diag::debug::{self, Subsystem};
use crate::diag::error::{Error, Result};

/// The least length of a pre-shared key in bytes.
const MIN_KEY: usize = 32;

pub(super) unsafe extern "C" fn ncclSetEncryption(config: *const ncclEncryptionConfig_t) -> ncclResult_t {
    // SAFETY: the C declaration's contract.
    guard(|| unsafe { set(config) })
}

/// Sets the encryption, if a config says so.
///
/// # Safety
///
/// `config` is NULL or points to as many bytes as its first field, `size`, says, and at least to that and `magic`.
unsafe fn set(config: *const ncclEncryptionConfig_t) -> Result {
    const NONE: i64 = ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_NONE.0 as i64;
    const PSK: i64 = ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_PSK.0 as i64;

    if config.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's contract. The struct may be shorter, so it is not made a reference.
    let (size, magic) = unsafe { ((*config).size, (*config).magic) };
    if magic != NCCL_API_MAGIC {
        return Err(Error::argument(format!(
            "the magic of the encryption's configuration is {magic:#x} and has to be {NCCL_API_MAGIC:#x}: start from \
             NCCL_ENCRYPTION_CONFIG_INITIALIZER"
        )));
    }
    // What the caller's struct lacks is unset, as in NCCL.
    let mut complete = ncclEncryptionConfig_t::initializer();
    // SAFETY: both have so many bytes, which are those of numbers and pointers, or padding.
    unsafe {
        let bytes = size.min(size_of::<ncclEncryptionConfig_t>());
        ptr::copy_nonoverlapping(config.cast::<u8>(), (&raw mut complete).cast::<u8>(), bytes);
    }
    match complete.mode.into() {
        NONE => {
            debug::info(Subsystem::Bootstrap, || {
                "Encryption: none, as ranks connect through Unix sockets".into()
            });
            Ok(())
        }
        PSK => {
            check_not_null(complete.psk, "the pre-shared key")?;
            // SAFETY: a terminated string, the C declaration's contract.
            let length = unsafe { CStr::from_ptr(complete.psk) }.count_bytes();
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
