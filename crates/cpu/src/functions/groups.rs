//! Groups.
#![allow(unsafe_code, non_snake_case)]

use std::mem::offset_of;

use libnccl::sys::{ncclResult_t, ncclSimInfo_t};

use super::guard::guard;
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
        let Some(estimate) = group::simulate()? else { return Ok(()) };
        if simInfo.is_null() {
            return Ok(());
        }
        // SAFETY: the pointer is not NULL, so by the C declaration's contract it points to the struct of some version.
        let size = unsafe { (*simInfo).size };
        // SAFETY: as above, and `size` covers it.
        if size < offset_of!(ncclSimInfo_t, version) || unsafe { (*simInfo).magic } != SIM_INFO_MAGIC {
            return Err(Error::argument(
                "the simulation's info was not initialized with NCCL_SIM_INFO_INITIALIZER",
            ));
        }
        if estimate > 0.0 && size >= offset_of!(ncclSimInfo_t, estimatedTime) + size_of::<f32>() {
            // SAFETY: as above, and `size` covers it.
            unsafe { (*simInfo).estimatedTime = estimate };
        }
        Ok(())
    })
}
