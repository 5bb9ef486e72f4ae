//! Reading `ncclConfig_t`, of any release, and the number of ranks.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::mem::offset_of;
use std::ptr;

use libnccl::sys::{NCCL_API_MAGIC, ncclConfig_t};

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
