//! Reads `ncclConfig_t` and `ncclCollConfig_t` of any version.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::mem::offset_of;
use std::ptr;

use libnccl::sys::{NCCL_API_MAGIC, NCCL_CONFIG_UNDEF_INT, ncclCollConfig_t, ncclConfig_t};

use crate::comm::config::{Config, NAMES_SINCE, NETWORKS_SINCE, Names};
use crate::diag::error::{Error, Result};
use crate::shm::layout::MAX_RANKS;

/// Reads a config, if there is one.
///
/// # Safety
///
/// `config` is NULL or points to as many bytes as its first field, `size`, says, and at least to that.
pub(super) unsafe fn read_config(config: *const ncclConfig_t) -> Result<Option<Config>> {
    if config.is_null() {
        return Ok(None);
    }
    const LEAST: usize = offset_of!(ncclConfig_t, version);
    // SAFETY: the caller's contract. The struct may be an older and shorter one, so no reference is made to it.
    let size = unsafe { (*config).size };
    // SAFETY: as above, and `size` covers it.
    if size < LEAST || unsafe { (*config).magic } != NCCL_API_MAGIC {
        return Err(Error::argument("the config was not initialized with NCCL_CONFIG_INITIALIZER"));
    }
    // Fields that the caller's struct lacks stay unset. Fields that this one lacks are ignored.
    let mut complete = ncclConfig_t::initializer();
    // SAFETY: both have so many bytes, which are those of numbers and pointers, or padding.
    unsafe {
        let bytes = size.min(size_of::<ncclConfig_t>());
        ptr::copy_nonoverlapping(config.cast::<u8>(), (&raw mut complete).cast::<u8>(), bytes);
    }
    let name = |since, name: *const c_char| {
        // SAFETY: the C declaration's contract: a name is a terminated string.
        let read = || unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        (complete.version >= since && !name.is_null()).then(read)
    };
    let names = Names {
        communicator: name(NAMES_SINCE, complete.commName),
        network: name(NETWORKS_SINCE, complete.netName),
    };
    Config::new(&complete, names).map(Some)
}

pub(super) fn check_rank_count(number: c_int) -> Result<usize> {
    usize::try_from(number).ok().filter(|ranks| (1..=MAX_RANKS).contains(ranks)).ok_or_else(|| {
        Error::argument(format!("invalid number of ranks {number}: it has to be in 1..={MAX_RANKS}"))
    })
}

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
