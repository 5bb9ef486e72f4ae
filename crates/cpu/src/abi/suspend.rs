//! Suspending a communicator, and the memory that it takes.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::c_int;
use std::sync::Arc;

use libnccl::sys::{NCCL_SUSPEND_MEM, ncclComm_t, ncclCommMemStat_t, ncclResult_t};

use super::ffi_guard::{check_flags, check_not_null, guard, guard_of_all, write_out};
use crate::comm::group;
use crate::comm::handle;
use crate::comm::suspend::{Resume, Suspend};
use crate::diag::error::{Error, Progress};
use crate::shm::call_context::CallContext;

pub(super) unsafe extern "C" fn ncclCommSuspend(comm: ncclComm_t, flags: c_int) -> ncclResult_t {
    guard_of_all("ncclCommSuspend", comm, || {
        let communicator = handle::get(comm)?;
        check_flags(communicator.check_ready()?, "ncclCommSuspend: flags", flags, NCCL_SUSPEND_MEM);
        if flags.cast_unsigned() & NCCL_SUSPEND_MEM == 0 {
            // Nothing to suspend, which NCCL accepts.
            return Ok(Progress::Done);
        }
        let context = communicator.check_exclusive()?;
        let suspend = Suspend { suspended: Arc::clone(communicator.suspended()) };
        group::run_on_host(&communicator, context, suspend)
    })
}

pub(super) unsafe extern "C" fn ncclCommResume(comm: ncclComm_t) -> ncclResult_t {
    guard_of_all("ncclCommResume", comm, || {
        let communicator = handle::get(comm)?;
        communicator.check_not_failed()?;
        communicator.synchronize();
        let context = communicator.check_idle()?;
        if !communicator.is_suspended() {
            return Err(Error::usage("the communicator is not suspended"));
        }
        let resume = Resume { suspended: Arc::clone(communicator.suspended()) };
        group::run_on_host(&communicator, context, resume)
    })
}

pub(super) unsafe extern "C" fn ncclCommMemStats(
    comm: ncclComm_t,
    stat: ncclCommMemStat_t,
    value: *mut u64,
) -> ncclResult_t {
    guard(|| {
        let communicator = handle::get(comm)?;
        let CallContext { state, rank, .. } = communicator.check_idle()?;
        check_not_null(value, "the value")?;
        let (buffers, rest) = state.memory_usage(rank);
        let number = match stat {
            ncclCommMemStat_t::ncclStatGpuMemSuspend => buffers as u64,
            ncclCommMemStat_t::ncclStatGpuMemSuspended => communicator.is_suspended().into(),
            ncclCommMemStat_t::ncclStatGpuMemPersist => rest as u64,
            ncclCommMemStat_t::ncclStatGpuMemTotal => (buffers + rest) as u64,
            ncclCommMemStat_t(number) => {
                return Err(Error::argument(format!("invalid ncclCommMemStat_t {number}")));
            }
        };
        // SAFETY: the C declaration's contract.
        unsafe { write_out(value, number) }
    })
}
