//! `ncclCommShrink`.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::c_int;
use std::slice;

use libnccl::sys::{NCCL_SHRINK_ABORT, ncclComm_t, ncclConfig_t, ncclResult_t};

use super::child::create_child;
use super::ffi_guard::{check_flags, check_not_null, guard_of_all};
use crate::comm::communicator::StopReason;
use crate::comm::init::InitKind;
use crate::comm::{handle, shrink};
use crate::diag::error::Error;

pub(super) unsafe extern "C" fn ncclCommShrink(
    comm: ncclComm_t,
    excludeRanksList: *mut c_int,
    excludeRanksCount: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
    shrinkFlags: c_int,
) -> ncclResult_t {
    guard_of_all("ncclCommShrink", comm, || {
        let parent = handle::get(comm)?;
        check_not_null(newcomm, "the new communicator")?;
        check_not_null(excludeRanksList, "the excluded ranks")?;
        let aborts = shrinkFlags.cast_unsigned() & NCCL_SHRINK_ABORT != 0;
        let context = if aborts { parent.context()? } else { parent.check_parent()? };
        let ranks = context.state.ranks();
        let number = usize::try_from(excludeRanksCount).ok().filter(|number| (1..ranks).contains(number));
        let number = number.ok_or_else(|| {
            Error::argument(format!(
                "invalid number of excluded ranks {excludeRanksCount}: it has to be in 1..{ranks}"
            ))
        })?;
        // SAFETY: the C declaration's contract: the list has so many entries. NCCL sorts it, too.
        let excluded = unsafe { slice::from_raw_parts_mut(excludeRanksList, number) };
        excluded.sort_unstable();
        let survivors = shrink::survivors(excluded, ranks, context.rank)?;
        check_flags(context, "ncclCommShrink: shrinkFlags", shrinkFlags, NCCL_SHRINK_ABORT);
        if aborts {
            parent.stop(StopReason::Shrunk)?;
        }
        // SAFETY: the C declaration's contract.
        unsafe { create_child(parent, newcomm, config, InitKind::Shrink { survivors, flags: shrinkFlags }) }
    })
}
