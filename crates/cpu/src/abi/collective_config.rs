//! The options for one collective call.
//!
//! They tune the work of a GPU, so they are checked and have no effect. Nothing is recorded in `launchCompletionEvent`:
//! there is no GPU that would do so.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem::offset_of;

use libnccl::sys::{NCCL_API_MAGIC, NCCL_CONFIG_UNDEF_INT, ncclCollConfig_t};

use crate::diag::error::{Error, Result};

/// Checks the options, if there are any.
///
/// # Safety
///
/// `config` is NULL or points to as many bytes as its first field, `size`, says, and at least to that and `magic`.
pub(super) unsafe fn check_config(config: *const ncclCollConfig_t) -> Result {
    if config.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's contract. The struct may be an older and shorter one, so it is not made a reference.
    let (size, magic) = unsafe { ((*config).size, (*config).magic) };
    // The size in the first release with this struct.
    const LEAST: usize = offset_of!(ncclCollConfig_t, launchCompletionEvent);
    if magic != NCCL_API_MAGIC {
        return Err(Error::argument(format!(
            "the magic of the collective's config is {magic:#x} and has to be {NCCL_API_MAGIC:#x}: start from \
             NCCL_COLLCONFIG_INITIALIZER"
        )));
    }
    if size < LEAST {
        return Err(Error::argument(format!(
            "the collective's config has {size} bytes and has to have {LEAST} or more: start from \
             NCCL_COLLCONFIG_INITIALIZER"
        )));
    }
    // SAFETY: `size` covers them all.
    let [least, most, nvls, cluster, force, policy] = unsafe {
        [
            (*config).minCTAs,
            (*config).maxCTAs,
            (*config).nvlsCTAs,
            (*config).cgaClusterSize,
            (*config).forceAlgSelection,
            (*config).CTAPolicy,
        ]
    };
    let limit = |name: &str, value: c_int, least: c_int, most: c_int| {
        if value == NCCL_CONFIG_UNDEF_INT || (least..=most).contains(&value) {
            return Ok(());
        }
        let upper = if most == c_int::MAX { String::new() } else { format!(" and at most {most}") };
        Err(Error::argument(format!(
            "invalid {name} {value} in the collective's config: it has to be at least {least}{upper}"
        )))
    };
    limit("minCTAs", least, 1, c_int::MAX)?;
    limit("maxCTAs", most, least.max(1), c_int::MAX)?;
    limit("nvlsCTAs", nvls, 1, c_int::MAX)?;
    limit("cgaClusterSize", cluster, 0, 8)?;
    limit("CTAPolicy", policy, 0, 3)?;
    if ![0, 1].contains(&force) {
        return Err(Error::argument(format!(
            "invalid forceAlgSelection {force} in the collective's config: it has to be 0 or 1"
        )));
    }
    Ok(())
}
