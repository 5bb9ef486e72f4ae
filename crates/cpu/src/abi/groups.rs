//! Groups.
#![allow(unsafe_code, non_snake_case)]

use std::mem::offset_of;

use libnccl::sys::{ncclResult_t, ncclSimInfo_t};

use super::answer;
use crate::failure::Failure;
use crate::group;

/// Marks a struct as filled by `NCCL_SIM_INFO_INITIALIZER`.
const SIMULATION: u32 = 0x7468_5283;

pub(crate) unsafe extern "C" fn ncclGroupStart() -> ncclResult_t {
    answer(|| {
        group::start();
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ncclGroupEnd() -> ncclResult_t {
    answer(group::end)
}

pub(crate) unsafe extern "C" fn ncclGroupSimulateEnd(simInfo: *mut ncclSimInfo_t) -> ncclResult_t {
    answer(|| {
        // Also if the rest fails: the group is over.
        let estimate = group::simulate()?;
        if simInfo.is_null() {
            return Ok(());
        }
        // SAFETY: not NULL, so a struct of some release, the C declaration's contract.
        let (size, magic) = unsafe { ((*simInfo).size, (*simInfo).magic) };
        if magic != SIMULATION || size <= offset_of!(ncclSimInfo_t, estimatedTime) {
            return Err(Failure::argument(format!(
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
