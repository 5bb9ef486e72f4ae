//! Unique ids, the communicators that ranks create with them, and the encryption of TCP connections.
#![allow(unsafe_code, non_snake_case)]

use std::collections::VecDeque;
use std::ffi::{CStr, c_int};
use std::sync::{Arc, Mutex};
use std::{ptr, slice};

use libnccl::sys::{
    ncclComm_t, ncclConfig_t, ncclEncryptionConfig_t, ncclEncryptionMode_t, ncclResult_t, ncclUniqueId,
};

use super::guard::{check_not_null, check_rank, guard, guard_in_group, write_out};
use crate::bootstrap::rendezvous;
use crate::bootstrap::unique_id::{UniqueId, fnv1a};
use crate::comm::agreement::{may_repeat, shortage};
use crate::comm::communicator::{Communicator, RankInfo};
use crate::comm::config::{Config, check_magic, check_rank_count, complete, read_config};
use crate::comm::init::{Init, OutParam, join};
use crate::comm::{group, handle};
use crate::cuda::{Driver, driver};
use crate::diag::debug::{self, Subsystem};
use crate::diag::error::{Error, Progress, Result};
use crate::diag::settings;
use crate::shm::layout::MAX_RANKS;
use crate::shm::process::Process;
use crate::shm::shared_state::SharedState;
use crate::sync::lock;

pub(super) unsafe extern "C" fn ncclGetUniqueId(uniqueId: *mut ncclUniqueId) -> ncclResult_t {
    guard(|| {
        check_not_null(uniqueId, "the unique id")?;
        let id = UniqueId::create()?.raw();
        // SAFETY: the C declaration's contract.
        unsafe { write_out(uniqueId, id) }
    })
}

pub(super) unsafe extern "C" fn ncclCommInitRank(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
) -> ncclResult_t {
    // SAFETY: the same contract; the config may be NULL.
    guard_in_group("ncclCommInitRank", || unsafe { init_rank(comm, nranks, &[commId], rank, ptr::null()) })
}

pub(super) unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    // SAFETY: the same contract.
    guard_in_group("ncclCommInitRankConfig", || unsafe { init_rank(comm, nranks, &[commId], rank, config) })
}

pub(super) unsafe extern "C" fn ncclCommInitRankScalable(
    newcomm: *mut ncclComm_t,
    nranks: c_int,
    myrank: c_int,
    nId: c_int,
    commIds: *mut ncclUniqueId,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    guard_in_group("ncclCommInitRankScalable", || {
        check_not_null(commIds, "the unique ids")?;
        let number = usize::try_from(nId).ok().filter(|number| (1..=MAX_RANKS).contains(number));
        let number = number.filter(|_| nId <= nranks).ok_or_else(|| {
            let error =
                Error::argument(format!("invalid number of unique ids {nId}: it has to be in 1..={nranks}"));
            if nId > 0 {
                // SAFETY: the C declaration's contract: there are `nId` ids.
                refuse(unsafe { &*commIds }, &error);
            }
            error
        })?;
        // SAFETY: the C declaration's contract: there are `nId` ids.
        let ids = unsafe { slice::from_raw_parts(commIds, number) };
        // SAFETY: the same contract.
        unsafe { init_rank(newcomm, nranks, ids, myrank, config) }
    })
}

/// Notifies the ranks that wait at an id that a call with this id was refused.
fn refuse(id: &ncclUniqueId, error: &Error) {
    if let Ok(id) = UniqueId::new(id) {
        rendezvous::fail(&id, None, error);
    }
}

/// Creates a communicator. If there are several ids, its ranks use only the first to join.
///
/// # Safety
/// The arguments must meet the contract of `ncclCommInitRankConfig`.
pub(super) unsafe fn init_rank(
    comm: *mut ncclComm_t,
    nranks: c_int,
    ids: &[ncclUniqueId],
    rank: c_int,
    config: *const ncclConfig_t,
) -> Result<Progress> {
    if !comm.is_null() {
        // SAFETY: the pointer is not NULL, so by the caller's contract it can be written.
        unsafe { comm.write(ptr::null_mut()) };
    }
    let first = UniqueId::new(&ids[0]);
    let place = check_rank_count(nranks).and_then(|ranks| Ok((ranks, check_rank(rank, ranks, "rank")?)));
    debug::begin();
    let driver = driver();
    let prepare = || {
        check_not_null(comm, "the communicator")?;
        let (ranks, rank_index) = place.clone()?;
        let id = first.clone()?;
        let all = ids.iter().map(UniqueId::new).collect::<Result<Vec<_>>>()?;
        let digest = fnv1a(&all.iter().map(|id| &id.public[..]).collect::<Vec<_>>()) as u64;
        // SAFETY: the caller's contract.
        let config = unsafe { read_config(config) }?.unwrap_or_default();
        Ok((id, digest, ranks, rank_index, config, driver.map_or(Ok(rank), Driver::current_device)?))
    };
    let (id, digest, ranks, rank_index, config, device) = prepare().inspect_err(|error| {
        // The other ranks wait for this rank.
        if let Ok(id) = &first {
            rendezvous::fail(id, place.clone().ok(), error);
        }
    })?;
    // SAFETY: the pointer is not NULL, and by the caller's contract it can be written until the work has ended.
    let out = unsafe { OutParam::new(comm) };
    config.log_network();
    debug::info(Subsystem::Init, || {
        format!("rank {rank} nranks {nranks} cudaDev {device} commId {:#x} - Init START", id.hash.get())
    });
    let (function, arguments) = match ids.len() {
        1 => ("ncclCommInitRank", vec![]),
        ids => {
            ("ncclCommInitRankScalable", vec![("nId", ids.to_string()), ("commIds", format!("{digest:#x}"))])
        }
    };
    let join = move |communicator: &Communicator| {
        check_unused(&id)?;
        let joined = join(communicator, None, id, ranks, rank_index)?;
        note_used(&id);
        Ok(Some(joined))
    };
    group::init(Init {
        communicator: Arc::new(Communicator::new(device, driver, config)),
        parent: None,
        function,
        arguments,
        join: Box::new(join),
        waits_at: Some((id, ranks, rank_index)),
        out,
    })
}

pub(super) unsafe extern "C" fn ncclCommInitAll(
    comm: *mut ncclComm_t,
    ndev: c_int,
    devlist: *const c_int,
) -> ncclResult_t {
    guard(|| {
        check_not_null(comm, "the communicators")?;
        let ranks = check_rank_count(ndev)?;
        let devices: Vec<c_int> = (0..ranks)
            // SAFETY: the C declaration's contract: a device list has `ndev` entries.
            .map(|rank| if devlist.is_null() { rank as c_int } else { unsafe { *devlist.add(rank) } })
            .collect();
        let driver = driver();
        let number = driver.map(Driver::devices).transpose()?;
        for (rank, device) in devices.iter().enumerate() {
            if let Some(number) = number.filter(|number| !(0..*number).contains(device)) {
                let prefix = shortage(ranks, number as usize);
                return Err(Error::argument(format!(
                    "{prefix}invalid device {device}: it has to be in 0..{number}"
                )));
            }
            if *device < 0 {
                return Err(Error::argument(format!("invalid device {device}")));
            }
            if devices[..rank].contains(device) && !may_repeat() {
                return Err(Error::usage(format!(
                    "device {device} is twice in the list, which NCCL_MULTI_RANK_GPU_ENABLE=1 allows"
                )));
            }
        }
        let me = Process::current().map_err(|error| Error::system("/proc/self/stat", error))?;
        let state = Arc::new(SharedState::create(&vec![me; ranks])?.0);
        let id = UniqueId::generate()?;
        let mut handles = Vec::new();
        for (rank, device) in devices.into_iter().enumerate() {
            let config = Config::default();
            config.log_network();
            let communicator = Communicator::new(device, driver, config);
            let fault = settings::fault_of_rank(rank);
            communicator.join(RankInfo { state: Arc::clone(&state), rank, id, fault });
            let communicator = Arc::new(communicator);
            handles.push(handle::add(Arc::clone(&communicator)));
            debug::info(Subsystem::Init, || format!("{} - Init COMPLETE", communicator.describe()));
        }
        // SAFETY: the C declaration's contract: the array holds `ndev` communicators.
        handles.iter().enumerate().for_each(|(rank, handle)| unsafe { comm.add(rank).write(*handle) });
        Ok(())
    })
}

/// The public parts of the ids with which this process recently created communicators.
static USED: Mutex<VecDeque<[u8; 16]>> = Mutex::new(VecDeque::new());

const USED_MAX: usize = 4096;

/// Returns an error if this process has already created a communicator with the id: in NCCL, nothing listens for the id any more.
/// Other ranks of that communicator in this process get no error: they begin to join before the first rank has finished.
fn check_unused(id: &UniqueId) -> Result {
    let used = lock(&USED);
    if !used.contains(&id.public) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "this process has already created a communicator with the unique id {}; each needs a new id from ncclGetUniqueId",
        id.hash
    )))
}

/// Remembers an id, unless it was derived from the address in `NCCL_COMM_ID`, which communicators share.
fn note_used(id: &UniqueId) {
    let mut used = lock(&USED);
    if id.is_of_address || used.contains(&id.public) {
        return;
    }
    if used.len() == USED_MAX {
        used.pop_front();
    }
    used.push_back(id.public);
}

pub(super) unsafe extern "C" fn ncclSetEncryption(config: *const ncclEncryptionConfig_t) -> ncclResult_t {
    const NONE: i64 = ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_NONE.0 as i64;
    const PSK: i64 = ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_PSK.0 as i64;
    /// Minimum length of a key in bytes.
    const MIN_KEY: usize = 32;
    guard(|| {
        if config.is_null() {
            return Ok(());
        }
        // SAFETY: the C declaration's contract. The struct may be shorter, so no reference to it is created.
        let (size, magic) = unsafe { ((*config).size, (*config).magic) };
        check_magic(magic, "encryption's configuration", "NCCL_ENCRYPTION_CONFIG_INITIALIZER")?;
        // SAFETY: the struct has this many bytes.
        let complete = unsafe { complete(config, size, ncclEncryptionConfig_t::initializer()) };
        match complete.mode.into() {
            NONE => {
                debug::info(Subsystem::Bootstrap, || {
                    "Encryption: none, as ranks connect through Unix sockets".into()
                });
                Ok(())
            }
            PSK => {
                check_not_null(complete.psk, "the pre-shared key")?;
                // SAFETY: by the C declaration's contract, a terminated string.
                let length = unsafe { CStr::from_ptr(complete.psk) }.count_bytes();
                if length < MIN_KEY {
                    return Err(Error::argument(format!(
                        "the pre-shared key has {length} bytes and has to have {MIN_KEY} or more"
                    )));
                }
                Err(Error::usage(
                    "the CPU backend opens no TCP connections that could be encrypted: its ranks are on one host",
                ))
            }
            mode => Err(Error::argument(format!(
                "invalid encryption mode {mode}: it has to be {NONE} (none) or {PSK} (a pre-shared key)"
            ))),
        }
    })
}
