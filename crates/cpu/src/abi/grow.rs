//! `ncclCommGrow`, and the unique id by which new ranks join.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::c_int;

use libnccl::sys::{ncclComm_t, ncclConfig_t, ncclResult_t, ncclUniqueId};

use super::child::create_child;
use super::config::check_rank_count;
use super::ffi_guard::{check_not_null, guard, guard_of_all, write_out};
use super::init::init_rank;
use crate::bootstrap::unique_id::UniqueId;
use crate::comm::handle;
use crate::comm::init::InitKind;
use crate::diag::error::Error;

pub(super) unsafe extern "C" fn ncclCommGetUniqueId(
    comm: ncclComm_t,
    uniqueId: *mut ncclUniqueId,
) -> ncclResult_t {
    guard(|| {
        let communicator = handle::get(comm)?;
        check_not_null(uniqueId, "the unique id")?;
        communicator.check_operable()?;
        let id = communicator.children().create_grow_id()?.raw();
        // SAFETY: the C declaration's contract.
        unsafe { write_out(uniqueId, id) }
    })
}

pub(super) unsafe extern "C" fn ncclCommGrow(
    comm: ncclComm_t,
    nRanks: c_int,
    uniqueId: *const ncclUniqueId,
    rank: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    guard_of_all("ncclCommGrow", comm, || {
        check_not_null(newcomm, "the new communicator")?;
        let id = if uniqueId.is_null() {
            None
        } else {
            // SAFETY: the C declaration's contract.
            Some(unsafe { *uniqueId })
        };
        if comm.is_null() {
            let id = id.ok_or_else(|| {
                Error::argument("a new rank has to pass the unique id, an existing one its communicator")
            })?;
            // SAFETY: the C declaration's contract, which is that of `ncclCommInitRankConfig` here.
            unsafe { init_rank(newcomm, nRanks, &[id], rank, config) }?;
            return Ok(());
        }
        let parent = handle::get(comm)?;
        let ranks = check_rank_count(nRanks)?;
        let before = parent.check_exclusive()?.state.ranks();
        if ranks <= before {
            return Err(Error::argument(format!(
                "invalid number of ranks {nRanks}: it has to be above {before}, the communicator's"
            )));
        }
        if rank != -1 {
            return Err(Error::argument(format!(
                "invalid rank {rank}: a rank of the communicator keeps its number and passes -1"
            )));
        }
        let id = id.as_ref().map(UniqueId::new).transpose()?;
        if id.is_some() && id != *parent.children().grow_id() {
            return Err(Error::argument(
                "this unique id is not the one that ncclCommGetUniqueId returned for this communicator, or it \
                 has been used",
            ));
        }
        // SAFETY: the C declaration's contract.
        unsafe { create_child(parent, newcomm, config, InitKind::Grow { ranks, id }) }
    })
}
