//! Groups.
#![allow(unsafe_code, non_snake_case)]

use std::mem::offset_of;

use libnccl::sys::{ncclResult_t, ncclSimInfo_t};

use super::ffi_guard::guard;
use crate::comm::group;
use crate::diag::error::Error;

/// The magic number of `NCCL_SIM_INFO_INITIALIZER`.
const SIM_INFO_MAGIC: u32 = 0x7468_5283;

pub(super) unsafe extern "C" fn ncclGroupStart() -> ncclResult_t {
    guard(|| {
        group::start();
        Ok(())
    })
}

pub(super) unsafe extern "C" fn ncclGroupEnd() -> ncclResult_t {
    guard(group::end)
}

pub(super) unsafe extern "C" fn ncclGroupSimulateEnd(simInfo: *mut ncclSimInfo_t) -> ncclResult_t {
    guard(|| {
        // Even if the rest fails, the group has ended.
        let estimate = group::simulate()?;
        if simInfo.is_null() {
            return Ok(());
        }
        // SAFETY: not NULL, so a struct of some release, the C declaration's contract.
        let (size, magic) = unsafe { ((*simInfo).size, (*simInfo).magic) };
        if magic != SIM_INFO_MAGIC || size <= offset_of!(ncclSimInfo_t, estimatedTime) {
            return Err(Error::argument(format!(
                "the simulation's magic is {magic:#x} and its size {size}: start from NCCL_SIM_INFO_INITIALIZER"
            )));
        }
        if let Some(estimate) = estimate {
            // SAFETY: as above, and `size` covers it.
            unsafe { (*simInfo).estimatedTime = estimate };
        }
        Ok(())
    })
}
