//! The life of a communicator.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{CStr, c_int};
use std::mem::offset_of;
use std::ptr;
use std::slice;
use std::sync::Arc;

use libnccl::sys::{
    NCCL_API_MAGIC, NCCL_REVOKE_DEFAULT, NCCL_SHRINK_ABORT, NCCL_SHRINK_DEFAULT, NCCL_SPLIT_NOCOLOR,
    ncclComm_t, ncclConfig_t, ncclResult_t, ncclUniqueId,
};

use super::{answer, answer_in_group, check, put, rank_of};
use crate::communicator::{Communicator, Membership, Stop};
use crate::debug::{self, Subsystem};
use crate::failure::{Failure, Progress, Result};
use crate::group;
use crate::init::Init;
use crate::options::{NAMES_SINCE, Options};
use crate::process::Process;
use crate::slot::Slot;
use crate::unique_id::UniqueId;
use crate::watch::Watch;
use crate::world::{MAX_RANKS, World};
use crate::{bootstrap, growth, handle, shrink, split};

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
    answer_in_group("ncclCommInitRank", || unsafe { init(comm, nranks, &[commId], rank, ptr::null()) })
}

pub(crate) unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    // SAFETY: the same contract.
    answer_in_group("ncclCommInitRankConfig", || unsafe { init(comm, nranks, &[commId], rank, config) })
}

pub(crate) unsafe extern "C" fn ncclCommInitRankScalable(
    newcomm: *mut ncclComm_t,
    nranks: c_int,
    myrank: c_int,
    nId: c_int,
    commIds: *mut ncclUniqueId,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    answer_in_group("ncclCommInitRankScalable", || {
        check(commIds, "the unique ids")?;
        let number = usize::try_from(nId).ok().filter(|number| (1..=MAX_RANKS).contains(number));
        let number = number.filter(|_| nId <= nranks).ok_or_else(|| {
            Failure::argument(format!("invalid number of unique ids {nId}: it has to be in 1..={nranks}"))
        })?;
        // SAFETY: the C declaration's contract: there are `nId` ids.
        let ids = unsafe { slice::from_raw_parts(commIds, number) };
        // SAFETY: the same contract.
        unsafe { init(newcomm, nranks, ids, myrank, config) }
    })
}

/// The ranks meet by the first of the ids.
///
/// # Safety
///
/// The contract of `ncclCommInitRankConfig`.
unsafe fn init(
    comm: *mut ncclComm_t,
    nranks: c_int,
    ids: &[ncclUniqueId],
    rank: c_int,
    config: *const ncclConfig_t,
) -> Result<Progress> {
    check(comm, "the communicator")?;
    // SAFETY: the caller's contract: the slot can be written until the work has ended.
    let slot = unsafe { Slot::new(comm) };
    slot.write(ptr::null_mut());
    let ranks = number_of_ranks(nranks)?;
    let rank_index = rank_of(rank, ranks, "rank")?;
    // SAFETY: the caller's contract.
    let options = unsafe { options(config) }?.unwrap_or_default();
    let ids = ids.iter().map(UniqueId::new).collect::<Result<Vec<_>>>()?;
    let id = *ids.first().ok_or_else(|| Failure::argument("there is no unique id"))?;
    debug::info(Subsystem::Init, || {
        format!("rank {rank} nranks {nranks} cudaDev {rank} commId {} - Init START", id.short())
    });
    group::make(Init::new(Communicator::new(rank, options), None, slot, move |communicator| {
        let world = bootstrap::meet(&id, ranks, rank_index, &Watch::new(communicator))?;
        Ok(Some(Membership { world: Arc::new(world), rank: rank_index, id }))
    }))
}

/// The options of a config, if there is one.
///
/// # Safety
///
/// `config` is NULL or points to as many bytes as its first field, `size`, says, and at least to that and
/// `magic`.
unsafe fn options(config: *const ncclConfig_t) -> Result<Option<Options>> {
    if config.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's contract. The struct may be an older and shorter one, so it is not made a
    // reference.
    let (size, magic) = unsafe { ((*config).size, (*config).magic) };
    if magic != NCCL_API_MAGIC || size < offset_of!(ncclConfig_t, cgaClusterSize) {
        return Err(Failure::argument("the config was not initialized with NCCL_CONFIG_INITIALIZER"));
    }
    // What the caller's does not have is not set. What ours does not have is of no interest.
    let mut complete = ncclConfig_t::initializer();
    // SAFETY: both have so many bytes, which are those of numbers and pointers, or padding.
    unsafe {
        let bytes = size.min(size_of::<ncclConfig_t>());
        ptr::copy_nonoverlapping(config.cast::<u8>(), (&raw mut complete).cast::<u8>(), bytes);
    }
    let named = complete.version >= NAMES_SINCE && !complete.commName.is_null();
    // SAFETY: the C declaration's contract: a name is a string that ends.
    let name = named.then(|| unsafe { CStr::from_ptr(complete.commName) }.to_string_lossy().into_owned());
    Options::new(&complete, name).map(Some)
}

/// Makes a communicator of another, without further options with that one's.
///
/// # Safety
///
/// `config` is as for [`options`], and `newcomm` can be written until the work has ended.
unsafe fn descend(
    parent: Arc<Communicator>,
    newcomm: *mut ncclComm_t,
    config: *const ncclConfig_t,
    meet: impl FnOnce(&Communicator, &Communicator) -> Result<Option<Membership>> + Send + 'static,
) -> Result<Progress> {
    // SAFETY: the caller's contract.
    let options = unsafe { options(config) }?.unwrap_or_else(|| parent.options().clone());
    // SAFETY: the caller's contract.
    let slot = unsafe { Slot::new(newcomm) };
    slot.write(ptr::null_mut());
    let communicator = Communicator::new(parent.device(), options);
    group::make(Init::new(communicator, Some(Arc::clone(&parent)), slot, move |communicator| {
        meet(communicator, &parent)
    }))
}

pub(crate) unsafe extern "C" fn ncclCommSplit(
    comm: ncclComm_t,
    color: c_int,
    key: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    answer_in_group("ncclCommSplit", || {
        let parent = handle::get(comm)?;
        check(newcomm, "the new communicator")?;
        if color < NCCL_SPLIT_NOCOLOR {
            return Err(Failure::argument(format!(
                "invalid color {color}: it has to be at least 0, or NCCL_SPLIT_NOCOLOR"
            )));
        }
        parent.parent()?;
        let meet = move |communicator: &Communicator, parent: &Communicator| {
            split::split(communicator, parent, color, key).inspect_err(|failure| parent.note(failure))
        };
        // SAFETY: the C declaration's contract.
        unsafe { descend(parent, newcomm, config, meet) }
    })
}

pub(crate) unsafe extern "C" fn ncclCommShrink(
    comm: ncclComm_t,
    excludeRanksList: *mut c_int,
    excludeRanksCount: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
    shrinkFlags: c_int,
) -> ncclResult_t {
    answer_in_group("ncclCommShrink", || {
        let parent = handle::get(comm)?;
        check(newcomm, "the new communicator")?;
        check(excludeRanksList, "the excluded ranks")?;
        let aborts = match u32::try_from(shrinkFlags) {
            Ok(NCCL_SHRINK_DEFAULT) => false,
            Ok(NCCL_SHRINK_ABORT) => true,
            _ => {
                return Err(Failure::argument(format!(
                    "invalid shrinkFlags {shrinkFlags}: NCCL_SHRINK_DEFAULT (0) or NCCL_SHRINK_ABORT (1)"
                )));
            }
        };
        let Membership { world, rank, .. } = if aborts { parent.place()? } else { parent.parent()? };
        let number = usize::try_from(excludeRanksCount).ok().filter(|number| *number < world.ranks());
        let number = number.filter(|number| *number > 0).ok_or_else(|| {
            Failure::argument(format!(
                "invalid number of excluded ranks {excludeRanksCount}: it has to be in 1..{}",
                world.ranks()
            ))
        })?;
        // SAFETY: the C declaration's contract: the list has so many entries, which NCCL sorts, too.
        let excluded = unsafe { slice::from_raw_parts_mut(excludeRanksList, number) };
        excluded.sort_unstable();
        let survivors = shrink::survivors(excluded, world.ranks(), *rank)?;
        if aborts {
            parent.stop(Stop::Shrunk)?;
        }
        let meet = move |communicator: &Communicator, parent: &Communicator| {
            shrink::shrink(communicator, parent, &survivors)
        };
        // SAFETY: the C declaration's contract.
        unsafe { descend(parent, newcomm, config, meet) }
    })
}

pub(crate) unsafe extern "C" fn ncclCommGetUniqueId(
    comm: ncclComm_t,
    uniqueId: *mut ncclUniqueId,
) -> ncclResult_t {
    answer(|| {
        let communicator = handle::get(comm)?;
        check(uniqueId, "the unique id")?;
        let id = communicator.create_token()?.raw();
        // SAFETY: the C declaration's contract.
        unsafe { put(uniqueId, id) }
    })
}

pub(crate) unsafe extern "C" fn ncclCommGrow(
    comm: ncclComm_t,
    nRanks: c_int,
    uniqueId: *const ncclUniqueId,
    rank: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    answer_in_group("ncclCommGrow", || {
        check(newcomm, "the new communicator")?;
        let id = if uniqueId.is_null() {
            None
        } else {
            // SAFETY: the C declaration's contract.
            Some(unsafe { *uniqueId })
        };
        if comm.is_null() {
            let id = id.ok_or_else(|| {
                Failure::argument("a new rank has to pass the unique id, an old one its communicator")
            })?;
            // SAFETY: the C declaration's contract, which is that of `ncclCommInitRankConfig` here.
            return unsafe { init(newcomm, nRanks, &[id], rank, config) };
        }
        let parent = handle::get(comm)?;
        let ranks = number_of_ranks(nRanks)?;
        let before = parent.ready()?.world.ranks();
        if ranks <= before {
            return Err(Failure::argument(format!(
                "invalid number of ranks {nRanks}: it has to be above {before}, the communicator's"
            )));
        }
        if rank != -1 {
            return Err(Failure::argument(format!(
                "invalid rank {rank}: a rank of the communicator keeps its number and passes -1"
            )));
        }
        let id = id.as_ref().map(UniqueId::new).transpose()?;
        if id.is_some() && id != *parent.token() {
            return Err(Failure::argument(
                "this unique id is not the one that ncclCommGetUniqueId gave for this rank's communicator, or \
                 has been used",
            ));
        }
        let meet = move |communicator: &Communicator, parent: &Communicator| {
            growth::grow(communicator, parent, ranks, id)
        };
        // SAFETY: the C declaration's contract.
        unsafe { descend(parent, newcomm, config, meet) }
    })
}

pub(crate) unsafe extern "C" fn ncclCommRevoke(comm: ncclComm_t, revokeFlags: c_int) -> ncclResult_t {
    answer(|| {
        if comm.is_null() {
            return Ok(Progress::Done);
        }
        let communicator = handle::get(comm)?;
        if u32::try_from(revokeFlags) != Ok(NCCL_REVOKE_DEFAULT) {
            return Err(Failure::argument(format!("invalid revokeFlags {revokeFlags}: they have to be 0")));
        }
        communicator.stop(Stop::Revoked)
    })
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
        let id = UniqueId::generate()?;
        for (rank, device) in devices.into_iter().enumerate() {
            let communicator = Communicator::new(device, Options::default());
            communicator.join(Membership { world: Arc::clone(&world), rank, id });
            let communicator = Arc::new(communicator);
            let handle = handle::add(Arc::clone(&communicator));
            debug::info(Subsystem::Init, || format!("{} - Init COMPLETE", communicator.describe(handle)));
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
    answer(|| {
        if !comm.is_null() {
            let communicator = handle::remove(comm)?;
            communicator.destroy();
            debug::info(Subsystem::Init, || format!("{} - Destroy COMPLETE", communicator.describe(comm)));
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t {
    answer(|| {
        if !comm.is_null() {
            let communicator = handle::remove(comm)?;
            communicator.abort();
            debug::info(Subsystem::Init, || format!("{} - Abort COMPLETE", communicator.describe(comm)));
        }
        Ok(())
    })
}
