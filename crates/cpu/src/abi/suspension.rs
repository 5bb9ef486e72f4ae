//! Suspending a communicator, and what memory it takes.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::c_int;
use std::sync::Arc;

use libnccl::sys::{NCCL_SUSPEND_MEM, ncclComm_t, ncclCommMemStat_t, ncclResult_t};

use super::{answer, answer_in_group, check, put};
use crate::communicator::Membership;
use crate::failure::Failure;
use crate::group::{self, Lane};
use crate::{handle, suspension};

pub(crate) unsafe extern "C" fn ncclCommSuspend(comm: ncclComm_t, flags: c_int) -> ncclResult_t {
    answer_in_group("ncclCommSuspend", || {
        let communicator = handle::get(comm)?;
        let Membership { world, rank, .. } = communicator.ready()?;
        let (world, rank) = (Arc::clone(world), *rank);
        if flags.cast_unsigned() != NCCL_SUSPEND_MEM {
            return Err(Failure::argument(format!(
                "invalid flags {flags:#x}: they have to be NCCL_SUSPEND_MEM, {NCCL_SUSPEND_MEM:#x}"
            )));
        }
        group::run(&communicator, Lane::Collective, 0, async move |own| {
            suspension::suspend(&world, rank).await?;
            own.set_suspended(true);
            Ok(())
        })
    })
}

pub(crate) unsafe extern "C" fn ncclCommResume(comm: ncclComm_t) -> ncclResult_t {
    answer_in_group("ncclCommResume", || {
        let communicator = handle::get(comm)?;
        let Membership { world, rank, .. } = communicator.sound()?;
        let (world, rank) = (Arc::clone(world), *rank);
        if !communicator.is_suspended() {
            return Err(Failure::usage("the communicator is not suspended"));
        }
        group::run(&communicator, Lane::Collective, 0, async move |own| {
            suspension::resume(&world, rank).await?;
            own.set_suspended(false);
            Ok(())
        })
    })
}

pub(crate) unsafe extern "C" fn ncclCommMemStats(
    comm: ncclComm_t,
    stat: ncclCommMemStat_t,
    value: *mut u64,
) -> ncclResult_t {
    answer(|| {
        let communicator = handle::get(comm)?;
        let Membership { world, rank, .. } = communicator.settled()?;
        check(value, "the value")?;
        let (temporary, rest) = world.memory(*rank);
        let number = match stat {
            ncclCommMemStat_t::ncclStatGpuMemSuspend => temporary as u64,
            ncclCommMemStat_t::ncclStatGpuMemSuspended => communicator.is_suspended().into(),
            ncclCommMemStat_t::ncclStatGpuMemPersist => rest as u64,
            ncclCommMemStat_t::ncclStatGpuMemTotal => (temporary + rest) as u64,
            ncclCommMemStat_t(number) => {
                return Err(Failure::argument(format!(
                    "invalid question {number} about memory: it has to be in 0..=3"
                )));
            }
        };
        // SAFETY: the C declaration's contract.
        unsafe { put(value, number) }
    })
}
