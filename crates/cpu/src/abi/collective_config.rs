//! The options for one collective call.
//!
//! They tune the work of a GPU, so they are checked and have no effect. Nothing is recorded in `launchCompletionEvent`:
//! there is no GPU that would do so.
#![allow(unsafe_code)]

use std::mem::offset_of;
use std::ptr;

use libnccl::sys::{NCCL_API_MAGIC, NCCL_CONFIG_UNDEF_INT, ncclCollConfig_t};

use crate::diag::error::{Error, Result};

/// Checks the options, if there are any, as NCCL does: numbers of thread blocks beyond their limits are no errors.
///
/// # Safety
///
/// `config` is NULL or points to as many bytes as its first field, `size`, says, and at least to that.
pub(super) unsafe fn check_config(config: *const ncclCollConfig_t) -> Result {
    const LEAST: usize = offset_of!(ncclCollConfig_t, version);
    if config.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's contract. The struct may be an older and shorter one, so it is not made a reference.
    let size = unsafe { (*config).size };
    if size < LEAST {
        return Err(Error::argument(format!(
            "the collective's config has {size} bytes and has to have {LEAST} or more: start from \
             NCCL_COLLCONFIG_INITIALIZER"
        )));
    }
    // Fields that the caller's struct lacks are unset.
    let mut complete = ncclCollConfig_t::initializer();
    // SAFETY: both have so many bytes, which are those of numbers and pointers, or padding.
    unsafe {
        let bytes = size.min(size_of::<ncclCollConfig_t>());
        ptr::copy_nonoverlapping(config.cast::<u8>(), (&raw mut complete).cast::<u8>(), bytes);
    }
    let ncclCollConfig_t { magic, forceAlgSelection: force, CTAPolicy: policy, .. } = complete;
    if magic != NCCL_API_MAGIC {
        return Err(Error::argument(format!(
            "the magic of the collective's config is {magic:#x} and has to be {NCCL_API_MAGIC:#x}: start from \
             NCCL_COLLCONFIG_INITIALIZER"
        )));
    }
    if policy != NCCL_CONFIG_UNDEF_INT && !(0..=3).contains(&policy) {
        return Err(Error::argument(format!(
            "invalid CTAPolicy {policy} in the collective's config: it has to be at least 0 and at most 3"
        )));
    }
    if ![0, 1].contains(&force) {
        return Err(Error::argument(format!(
            "invalid forceAlgSelection {force} in the collective's config: it has to be 0 or 1"
        )));
    }
    Ok(())
}
