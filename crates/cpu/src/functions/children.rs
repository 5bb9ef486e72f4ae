//! Communicators created from another communicator: split, shrink, grow. Also suspending a communicator.
//!
//! The ranks of a split exchange their color, their key and a proposed id. The first rank in the new order determines the id. The survivors
//! of a shrink derive their id from the parent's id, because excluded ranks may be dead and cannot take part. The ranks of a communicator
//! that grows receive the id from the rank that created it.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::{ptr, slice};

use libnccl::sys::{
    NCCL_SHRINK_ABORT, NCCL_SPLIT_NOCOLOR, NCCL_SUSPEND_MEM, ncclComm_t, ncclCommMemStat_t, ncclConfig_t,
    ncclResult_t, ncclUniqueId,
};

use super::guard::{
    check_flags, check_not_null, guard_comm, guard_in_group, guard_of_all, undocumented, write_out,
};
use super::init::init_rank;
use crate::bootstrap::join::ParentComm;
use crate::bootstrap::unique_id::UniqueId;
use crate::coll::call::{CallHeader, ControlCall};
use crate::coll::operation::{Operation, control_allgather};
use crate::comm::agreement;
use crate::comm::communicator::{Communicator, RankInfo, StopReason};
use crate::comm::config::{check_rank_count, read_config};
use crate::comm::group;
use crate::comm::init::{Init, Join, OutParam, join, join_state};
use crate::diag::error::{Error, Progress, Result};
use crate::shm::call_context::CallContext;
use crate::shm::shared_state::SharedState;
use crate::sync::lock;

/// Creates a communicator from another, with the parent's config unless the caller passes one. As in NCCL, returns
/// `ncclSuccess` while a nonblocking parent is still creating the child: NCCL drops the `ncclInProgress` of the group that it opens.
///
/// # Safety
/// `config` must meet the contract of [`read_config`], and `newcomm` must be writable until the child has been created.
unsafe fn create_child(
    parent: &Arc<Communicator>,
    newcomm: *mut ncclComm_t,
    config: *const ncclConfig_t,
    function: &'static str,
    arguments: Vec<(&'static str, String)>,
    join: Join,
) -> Result {
    // SAFETY: the caller's contract.
    let config = unsafe { read_config(config) }?.unwrap_or_else(|| parent.config.clone());
    // SAFETY: the caller's contract.
    let out = unsafe { OutParam::new(newcomm) };
    out.write(ptr::null_mut());
    let communicator = Arc::new(Communicator::new(parent.device, parent.known_driver(), config));
    group::init(Init {
        communicator,
        parent: Some(Arc::clone(parent)),
        function,
        arguments,
        join,
        waits_at: None,
        out,
    })?;
    Ok(())
}

pub(super) unsafe extern "C" fn ncclCommSplit(
    comm: ncclComm_t,
    color: c_int,
    key: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    guard_of_all("ncclCommSplit", comm, |parent| {
        check_not_null(newcomm, "the new communicator")?;
        let context = parent.check_parent()?;
        if color < NCCL_SPLIT_NOCOLOR {
            undocumented(
                context,
                &format!("ncclCommSplit: color {color} is neither NCCL_SPLIT_NOCOLOR nor at least 0"),
            );
        }
        // Without a child there is nothing to configure. NCCL does not read the config either.
        let config = if color == NCCL_SPLIT_NOCOLOR { ptr::null_mut() } else { config };
        let old = Arc::clone(parent);
        let join = move |communicator: &Communicator| {
            split(communicator, &old, color, key).inspect_err(|error| old.record_error(error))
        };
        // SAFETY: the C declaration's contract.
        unsafe { create_child(parent, newcomm, config, "ncclCommSplit", vec![], Box::new(join)) }
    })
}

/// Returns this rank's membership in the new communicator, or `None` if it has no color. Each rank contributes its color, its key, and an id.
fn split(
    communicator: &Communicator,
    parent: &Communicator,
    color: c_int,
    key: c_int,
) -> Result<Option<RankInfo>> {
    let RankInfo { state, rank, id, .. } = parent.rank_info()?;
    let hash = parent.children.hashes.next(id.hash, Some(color));
    let own = [&color.to_ne_bytes()[..], &key.to_ne_bytes(), &UniqueId::generate()?.secret_bytes()].concat();
    let is_healthy = parent.stopped().is_none();
    let proposals = if is_healthy {
        allgather(communicator, parent, state, *rank, ControlCall::Split, &own)?
    } else {
        // The parent's ranks are out of sync. They join again, only for this exchange.
        let all: Vec<usize> = (0..state.ranks()).collect();
        let id = id.derive("ncclCommSplit", parent.children.next_number(&all), &all);
        let old = (parent, ParentComm { state, members: &all, must_be_healthy: false });
        let state = join_state(communicator, Some(old), &id, all.len(), *rank)?;
        allgather(communicator, parent, &state, *rank, ControlCall::Split, &own)?
    };
    if color == NCCL_SPLIT_NOCOLOR {
        return Ok(None);
    }
    let number =
        |bytes: &[u8], at: usize| bytes[at..].first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes));
    let of_color = |rank: &usize| number(&proposals[*rank], 0) == Some(color);
    let mut members: Vec<usize> = (0..proposals.len()).filter(of_color).collect();
    members.sort_by_key(|rank| number(&proposals[*rank], 4));
    let mut id = id.with_secret(&proposals[members[0]][8..]);
    id.hash = hash;
    join_members(communicator, parent, id, &members, is_healthy).map(Some)
}

/// Returns this rank's membership in a communicator of the parent's ranks `members`, whose new ranks are their positions.
fn join_members(
    communicator: &Communicator,
    parent: &Communicator,
    id: UniqueId,
    members: &[usize],
    must_be_healthy: bool,
) -> Result<RankInfo> {
    let RankInfo { state, rank, .. } = parent.rank_info()?;
    let new_rank = members.iter().position(|member| member == rank);
    let new_rank = new_rank
        .ok_or_else(|| Error::internal("a rank is not a member of the communicator that it split"))?;
    let old = (parent, ParentComm { state, members, must_be_healthy });
    join(communicator, Some(old), id, members.len(), new_rank)
}

/// Gathers control data of all ranks of `state` while `communicator` is created from `parent`.
fn allgather(
    communicator: &Communicator,
    parent: &Communicator,
    state: &SharedState,
    rank: usize,
    call: ControlCall,
    data: &[u8],
) -> Result<Vec<Vec<u8>>> {
    let header = CallHeader::Control { call, length: data.len() as u64 };
    let number = state.begin_call(rank, header.encode());
    let is_cancelled = || communicator.is_cancelled() || parent.is_cancelled();
    let all = agreement::exchange(state, rank, (call, number), data, is_cancelled)?;
    state.end_call(rank);
    Ok(all)
}

pub(super) unsafe extern "C" fn ncclCommShrink(
    comm: ncclComm_t,
    excludeRanksList: *mut c_int,
    excludeRanksCount: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
    shrinkFlags: c_int,
) -> ncclResult_t {
    guard_of_all("ncclCommShrink", comm, |parent| {
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
        // SAFETY: by the C declaration's contract, the list has this many entries. NCCL sorts it too.
        let excluded = unsafe { slice::from_raw_parts_mut(excludeRanksList, number) };
        excluded.sort_unstable();
        let survivors = survivors(excluded, ranks, context.rank)?;
        check_flags(context, "ncclCommShrink: shrinkFlags", shrinkFlags, NCCL_SHRINK_ABORT);
        if aborts {
            parent.stop(StopReason::Shrunk)?;
        }
        let arguments = vec![("shrinkFlags", shrinkFlags.to_string())];
        let old = Arc::clone(parent);
        let join = move |communicator: &Communicator| {
            let parent_id = &old.rank_info()?.id;
            let mut id = parent_id.derive("ncclCommShrink", old.children.next_number(&survivors), &survivors);
            id.hash = old.children.hashes.next(parent_id.hash, None);
            join_members(communicator, &old, id, &survivors, false).map(Some)
        };
        // SAFETY: the C declaration's contract.
        unsafe { create_child(parent, newcomm, config, "ncclCommShrink", arguments, Box::new(join)) }
    })
}

/// Checks the sorted list of excluded ranks, and returns the remaining ranks.
fn survivors(excluded: &[c_int], ranks: usize, rank: usize) -> Result<Vec<usize>> {
    let invalid = |text: String| Err(Error::argument(format!("invalid list of excluded ranks: {text}")));
    if let Some(other) =
        excluded.iter().find(|other| usize::try_from(**other).is_ok_and(|o| o < ranks).eq(&false))
    {
        return invalid(format!("rank {other} is not in 0..{ranks}"));
    }
    if let Some(pair) = excluded.windows(2).find(|pair| pair[0] == pair[1]) {
        return invalid(format!("rank {} is in it twice", pair[0]));
    }
    let stays = |rank: &usize| !excluded.iter().any(|other| *other as usize == *rank);
    if !stays(&rank) {
        return invalid(format!("rank {rank} calls this and is in it"));
    }
    Ok((0..ranks).filter(stays).collect())
}

pub(super) unsafe extern "C" fn ncclCommGetUniqueId(
    comm: ncclComm_t,
    uniqueId: *mut ncclUniqueId,
) -> ncclResult_t {
    guard_comm(comm, |communicator| {
        check_not_null(uniqueId, "the unique id")?;
        communicator.check_operable()?;
        let id = communicator.children.create_grow_id()?.raw();
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
    // SAFETY: the C declaration's contract: NULL or an id.
    let id = unsafe { uniqueId.as_ref() };
    if comm.is_null() {
        return guard_in_group("ncclCommGrow", || {
            check_not_null(newcomm, "the new communicator")?;
            let id = id.ok_or_else(|| {
                Error::argument("a new rank has to pass the unique id, an existing one its communicator")
            })?;
            // SAFETY: the C declaration's contract, which here equals the contract of `ncclCommInitRankConfig`.
            unsafe { init_rank(newcomm, nRanks, slice::from_ref(id), rank, config) }.map(|_| ())
        });
    }
    guard_of_all("ncclCommGrow", comm, |parent| {
        check_not_null(newcomm, "the new communicator")?;
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
        let id = id.map(UniqueId::new).transpose()?;
        if id.is_some() && id != *lock(&parent.children.grow_id) {
            return Err(Error::argument(
                "this unique id is not the one that ncclCommGetUniqueId returned for this communicator, or it \
                 has been used",
            ));
        }
        let old = Arc::clone(parent);
        let join = move |communicator: &Communicator| grow(communicator, &old, ranks, id);
        // SAFETY: the C declaration's contract.
        unsafe { create_child(parent, newcomm, config, "ncclCommGrow", vec![], Box::new(join)) }
    })
}

/// Returns an existing rank's membership in a communicator of `ranks` ranks. Each existing rank contributes the new number of
/// ranks and the id, or zeros if the caller passed no id. Exactly one rank passes the id, which is never all zeros.
fn grow(
    communicator: &Communicator,
    parent: &Communicator,
    ranks: usize,
    grow_id: Option<UniqueId>,
) -> Result<Option<RankInfo>> {
    let RankInfo { state, rank, id, .. } = parent.rank_info()?;
    // NCCL counts it as a child. The new ranks have only the hash of its id.
    parent.children.hashes.next(id.hash, Some(0));
    let secret = grow_id.map_or([0; UniqueId::SECRET_LENGTH], |id| id.secret_bytes());
    let own = [&(ranks as u64).to_ne_bytes()[..], &secret].concat();
    let proposals = allgather(communicator, parent, state, *rank, ControlCall::Grow, &own)
        .inspect_err(|error| parent.record_error(error))?;
    let number = |proposal: &[u8]| proposal.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    if let Some(other) = proposals.iter().position(|other| number(other) != number(&proposals[0])) {
        return Err(Error::argument(format!(
            "the ranks passed different nRanks to ncclCommGrow: rank {other} passed {}, rank 0 passed {}",
            number(&proposals[other]),
            number(&proposals[0])
        )));
    }
    let with_id: Vec<usize> =
        (0..proposals.len()).filter(|rank| proposals[*rank][8..].iter().any(|byte| *byte != 0)).collect();
    let [holder] = with_id[..] else {
        return Err(Error::usage(format!(
            "one rank has to pass the id of ncclCommGetUniqueId to ncclCommGrow, and these did: {with_id:?}"
        )));
    };
    let id = id.with_secret(&proposals[holder][8..]);
    let members: Vec<usize> = (0..state.ranks()).collect();
    let old = (parent, ParentComm { state, members: &members, must_be_healthy: true });
    let joined = join(communicator, Some(old), id, ranks, *rank)?;
    if grow_id.is_some() {
        *lock(&parent.children.grow_id) = None;
    }
    Ok(Some(joined))
}

pub(super) unsafe extern "C" fn ncclCommSuspend(comm: ncclComm_t, flags: c_int) -> ncclResult_t {
    guard_of_all("ncclCommSuspend", comm, |communicator| {
        check_flags(communicator.check_ready()?, "ncclCommSuspend: flags", flags, NCCL_SUSPEND_MEM);
        if flags.cast_unsigned() & NCCL_SUSPEND_MEM == 0 {
            // There is nothing to suspend, which NCCL accepts.
            return Ok(Progress::Done);
        }
        let context = communicator.check_exclusive()?;
        let suspend = Suspend { call: ControlCall::Suspend, suspended: Arc::clone(&communicator.suspended) };
        group::run_on_host(communicator, context, suspend)
    })
}

pub(super) unsafe extern "C" fn ncclCommResume(comm: ncclComm_t) -> ncclResult_t {
    guard_of_all("ncclCommResume", comm, |communicator| {
        communicator.check_not_failed()?;
        communicator.synchronize();
        let context = communicator.check_idle()?;
        if !communicator.is_suspended() {
            return Err(Error::usage("the communicator is not suspended"));
        }
        let resume = Suspend { call: ControlCall::Resume, suspended: Arc::clone(&communicator.suspended) };
        group::run_on_host(communicator, context, resume)
    })
}

pub(super) unsafe extern "C" fn ncclCommMemStats(
    comm: ncclComm_t,
    stat: ncclCommMemStat_t,
    value: *mut u64,
) -> ncclResult_t {
    guard_comm(comm, |communicator| {
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

/// The operation of `ncclCommSuspend` and `ncclCommResume`. To suspend, it frees this rank's memory when no rank uses it any
/// more. The memory is allocated again when it is used.
struct Suspend {
    call: ControlCall,
    suspended: Arc<AtomicBool>,
}

impl Operation for Suspend {
    fn header(&self) -> CallHeader {
        CallHeader::Control { call: self.call, length: 0 }
    }

    async fn run(&self, CallContext { state, rank, .. }: CallContext<'_>) -> Result {
        control_allgather(state, rank, self.call, &[]).await?;
        let suspends = self.call == ControlCall::Suspend;
        if suspends {
            state.release_buffers(rank);
        }
        self.suspended.store(suspends, Relaxed);
        Ok(())
    }
}
