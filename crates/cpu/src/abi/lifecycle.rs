//! The life of a communicator.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::Arc;

use libnccl::sys::{
    NCCL_API_MAGIC, NCCL_CONFIG_UNDEF_INT, ncclComm_t, ncclConfig_t, ncclResult_t, ncclUniqueId,
};

use super::{answer, answer_in_group, check, put, rank_of};
use crate::communicator::Communicator;
use crate::failure::{Failure, Result};
use crate::group::{self, Init};
use crate::process::Process;
use crate::unique_id::UniqueId;
use crate::world::{Alarm, MAX_RANKS, World};
use crate::{bootstrap, handle};

fn number_of_ranks(number: c_int) -> Result<usize> {
    usize::try_from(number).ok().filter(|ranks| (1..=MAX_RANKS).contains(ranks)).ok_or_else(|| {
        Failure::argument(format!("invalid number of ranks {number}: it has to be in 1..={MAX_RANKS}"))
    })
}

pub(crate) unsafe extern "C" fn ncclGetUniqueId(uniqueId: *mut ncclUniqueId) -> ncclResult_t {
    answer(|| {
        check(uniqueId, "the unique id")?;
        let id = UniqueId::generate()?.raw();
        // SAFETY: the C declaration's contract.
        unsafe { put(uniqueId, id) }
    })
}

pub(crate) unsafe extern "C" fn ncclCommInitRank(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
) -> ncclResult_t {
    // SAFETY: the same contract; a config may be NULL.
    answer_in_group("ncclCommInitRank", || unsafe { init(comm, nranks, &commId, rank, std::ptr::null()) })
}

pub(crate) unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    // SAFETY: the same contract.
    answer_in_group("ncclCommInitRankConfig", || unsafe { init(comm, nranks, &commId, rank, config) })
}

/// # Safety
///
/// The contract of `ncclCommInitRankConfig`.
unsafe fn init(
    comm: *mut ncclComm_t,
    nranks: c_int,
    id: &ncclUniqueId,
    rank: c_int,
    config: *const ncclConfig_t,
) -> Result {
    check(comm, "the communicator")?;
    let ranks = number_of_ranks(nranks)?;
    let rank_index = rank_of(rank, ranks, "rank")?;
    // SAFETY: the caller's contract.
    unsafe { check_config(config) }?;
    let id = UniqueId::new(id)?;
    group::init(Init {
        meet: Box::new(move || {
            let world = bootstrap::meet(&id, ranks, rank_index)?;
            Ok(Communicator::new(Arc::new(world), rank_index, rank))
        }),
        // SAFETY: the caller's contract: the slot can be written until the group has ended.
        accept: Box::new(move |communicator| unsafe { comm.write(handle::add(communicator)) }),
    })
}

/// Checks what of a config matters here: that it is one.
///
/// # Safety
///
/// `config` is NULL or points to as many bytes as its first field, `size`, says, and at least to that and
/// `magic`.
unsafe fn check_config(config: *const ncclConfig_t) -> Result {
    if config.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's contract. The struct may be an older and shorter one, so it is not made a
    // reference.
    let (size, magic) = unsafe { ((*config).size, (*config).magic) };
    if magic != NCCL_API_MAGIC || size < offset_of!(ncclConfig_t, cgaClusterSize) {
        return Err(Failure::argument("the config was not initialized with NCCL_CONFIG_INITIALIZER"));
    }
    // SAFETY: `size` covers it.
    let blocking = unsafe { (*config).blocking };
    if ![0, 1, NCCL_CONFIG_UNDEF_INT].contains(&blocking) {
        return Err(Failure::argument(format!(
            "invalid config value {blocking} of blocking: it has to be 0 or 1"
        )));
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn ncclCommInitAll(
    comm: *mut ncclComm_t,
    ndev: c_int,
    devlist: *const c_int,
) -> ncclResult_t {
    answer(|| {
        check(comm, "the communicators")?;
        let ranks = number_of_ranks(ndev)?;
        let devices: Vec<c_int> = (0..ranks)
            // SAFETY: the C declaration's contract: a device list has `ndev` entries.
            .map(|rank| if devlist.is_null() { rank as c_int } else { unsafe { *devlist.add(rank) } })
            .collect();
        let mut known = std::collections::BTreeSet::new();
        for device in &devices {
            if *device < 0 {
                return Err(Failure::argument(format!("invalid device {device}")));
            }
            if !known.insert(*device) {
                return Err(Failure::usage(format!("device {device} is twice in the list")));
            }
        }
        let me = Process::current().map_err(|error| Failure::system("/proc/self/stat", error))?;
        let world = Arc::new(World::create(&vec![me; ranks])?.0);
        for (rank, device) in devices.into_iter().enumerate() {
            let handle = handle::add(Communicator::new(Arc::clone(&world), rank, device));
            // SAFETY: the C declaration's contract: there is room for `ndev` communicators.
            unsafe { comm.add(rank).write(handle) };
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t {
    answer(|| if comm.is_null() { Ok(()) } else { handle::get(comm)?.finalize() })
}

pub(crate) unsafe extern "C" fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t {
    answer(|| if comm.is_null() { Ok(()) } else { handle::remove(comm).map(drop) })
}

pub(crate) unsafe extern "C" fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t {
    answer(|| {
        if !comm.is_null() {
            handle::remove(comm)?.give_up(Alarm::Aborted);
        }
        Ok(())
    })
}
