//! The creation and the teardown of communicators.

use std::ffi::{CStr, c_char, c_int};
use std::mem::offset_of;
use std::slice;

use libnccl::UniqueId;
use libnccl::observer::CommunicatorId;
use libnccl::sys::*;

use crate::library::forward;
use crate::registry::{self, NewCommunicator};
use crate::thread::{created, outermost};
use crate::{dump, returned};

/// Makes the call that begins to create a communicator, and registers the communicator.
fn create(new: impl FnOnce() -> NewCommunicator, call: impl FnOnce() -> ncclResult_t) -> ncclResult_t {
    let ((code, new), is_outermost) = outermost(|| {
        // Before the call, which may change what the arguments point to.
        let new = new();
        (call(), new)
    });
    let is_begun = matches!(code, ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress);
    if is_outermost.is_some() && is_begun {
        created(new, code);
    }
    code
}

/// Returns the name in a communicator's configuration.
///
/// # Safety
/// `config` must be null or valid, as for NCCL.
unsafe fn name(config: *const ncclConfig_t) -> Option<String> {
    const END: usize = offset_of!(ncclConfig_t, commName) + size_of::<*const c_char>();
    /// The first NCCL version with a name. In an older struct, these bytes may have any value.
    const SINCE: u32 = 22700;
    // SAFETY: the caller guarantees it. All versions of the struct begin with these fields.
    let (size, magic) = unsafe {
        (config.as_ref().map(|_| (&raw const (*config).size).read())?, (&raw const (*config).magic).read())
    };
    if size < END || magic != NCCL_API_MAGIC {
        return None;
    }
    // SAFETY: the struct has these fields, as its size says.
    let (version, name) =
        unsafe { ((&raw const (*config).version).read(), (&raw const (*config).commName).read()) };
    // SAFETY: null, or a C string, which NCCL reads too.
    (version >= SINCE && !name.is_null())
        .then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

fn id_of(id: &ncclUniqueId) -> CommunicatorId {
    CommunicatorId::of_unique_id(&UniqueId::from_c_chars(id.internal))
}

fn membership(size: c_int, rank: c_int) -> Option<[u32; 2]> {
    let membership = [u32::try_from(size).ok()?, u32::try_from(rank).ok()?];
    (membership[1] < membership[0]).then_some(membership)
}

pub(crate) unsafe extern "C" fn ncclCommInitRank(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
) -> ncclResult_t {
    let new = || NewCommunicator {
        slot: comm,
        id: Some(id_of(&commId)),
        name: None,
        membership: membership(nranks, rank),
        parent: None,
    };
    create(new, || forward!(functions.ncclCommInitRank(comm, nranks, commId, rank)))
}

pub(crate) unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    let new = || NewCommunicator {
        slot: comm,
        id: Some(id_of(&commId)),
        // SAFETY: the caller upholds NCCL's contract.
        name: unsafe { name(config) },
        membership: membership(nranks, rank),
        parent: None,
    };
    create(new, || forward!(functions.ncclCommInitRankConfig(comm, nranks, commId, rank, config)))
}

pub(crate) unsafe extern "C" fn ncclCommInitRankScalable(
    newcomm: *mut ncclComm_t,
    nranks: c_int,
    myrank: c_int,
    nId: c_int,
    commIds: *mut ncclUniqueId,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    // SAFETY: the caller upholds NCCL's contract: null, or as many ids.
    let first = unsafe { commIds.as_ref() }.filter(|_| nId > 0);
    let new = || NewCommunicator {
        slot: newcomm,
        id: first.map(id_of),
        // SAFETY: as above.
        name: unsafe { name(config) },
        membership: membership(nranks, myrank),
        parent: None,
    };
    create(new, || {
        forward!(functions.ncclCommInitRankScalable(newcomm, nranks, myrank, nId, commIds, config))
    })
}

pub(crate) unsafe extern "C" fn ncclCommInitAll(
    comm: *mut ncclComm_t,
    ndev: c_int,
    devlist: *const c_int,
) -> ncclResult_t {
    let (code, is_outermost) = outermost(|| forward!(functions.ncclCommInitAll(comm, ndev, devlist)));
    if is_outermost.is_some() && code == ncclResult_t::ncclSuccess && ndev > 0 && !comm.is_null() {
        let id = Some(CommunicatorId::of_this_process());
        // SAFETY: NCCL has written so many handles.
        let handles = unsafe { slice::from_raw_parts_mut(comm, ndev.unsigned_abs() as usize) };
        for (rank, slot) in (0..).zip(handles) {
            let membership = membership(ndev, rank);
            created(NewCommunicator { slot, id, name: None, membership, parent: None }, code);
        }
    }
    code
}

/// Returns the description of a child communicator that is about to be created.
///
/// # Safety
/// `config` must be null or valid, as for NCCL.
unsafe fn child(
    comm: ncclComm_t,
    color: Option<c_int>,
    slot: *mut ncclComm_t,
    config: *const ncclConfig_t,
) -> NewCommunicator {
    let parent = registry::find_or_adopt(comm);
    NewCommunicator {
        slot,
        id: parent.and_then(|parent| parent.id_of_child(color)),
        // SAFETY: the caller guarantees it.
        name: unsafe { name(config) },
        membership: None,
        parent: (!comm.is_null()).then(|| comm.addr()),
    }
}

pub(crate) unsafe extern "C" fn ncclCommSplit(
    comm: ncclComm_t,
    color: c_int,
    key: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    // SAFETY: the caller upholds NCCL's contract.
    let new = || unsafe { child(comm, Some(color), newcomm, config) };
    create(new, || forward!(functions.ncclCommSplit(comm, color, key, newcomm, config)))
}

pub(crate) unsafe extern "C" fn ncclCommShrink(
    comm: ncclComm_t,
    excludeRanksList: *mut c_int,
    excludeRanksCount: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
    shrinkFlags: c_int,
) -> ncclResult_t {
    // SAFETY: the caller upholds NCCL's contract.
    let new = || unsafe { child(comm, None, newcomm, config) };
    create(new, || {
        forward!(functions.ncclCommShrink(
            comm,
            excludeRanksList,
            excludeRanksCount,
            newcomm,
            config,
            shrinkFlags
        ))
    })
}

/// The new communicator has no identity in the recording of a joining rank: the rank has only the unique id, which most of
/// the existing ranks do not have.
pub(crate) unsafe extern "C" fn ncclCommGrow(
    comm: ncclComm_t,
    nRanks: c_int,
    uniqueId: *const ncclUniqueId,
    rank: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    // SAFETY: the caller upholds NCCL's contract.
    let new = || unsafe { child(comm, Some(0), newcomm, config) };
    create(new, || forward!(functions.ncclCommGrow(comm, nRanks, uniqueId, rank, newcomm, config)))
}

pub(crate) unsafe extern "C" fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t {
    // Before the call, because another thread may create a communicator with the same handle after it.
    let remove = || registry::end(comm);
    let (code, _) = outermost(|| {
        remove();
        forward!(functions.ncclCommDestroy(comm))
    });
    code
}

pub(crate) unsafe extern "C" fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t {
    let (code, _) = outermost(|| {
        let ended = registry::end(comm);
        // While the recording still shows the call that hangs.
        if ended.is_some_and(|ended| ended.is_inside()) {
            dump::write("abort");
        }
        forward!(functions.ncclCommAbort(comm))
    });
    code
}

pub(crate) unsafe extern "C" fn ncclCommGetAsyncError(
    comm: ncclComm_t,
    asyncError: *mut ncclResult_t,
) -> ncclResult_t {
    let (code, is_outermost) = outermost(|| forward!(functions.ncclCommGetAsyncError(comm, asyncError)));
    if is_outermost.is_none() || code != ncclResult_t::ncclSuccess {
        return code;
    }
    // SAFETY: null, or NCCL has written it.
    match unsafe { asyncError.as_ref() } {
        None | Some(&ncclResult_t::ncclInProgress) => {}
        Some(&ncclResult_t::ncclSuccess) => {
            // The queries that this makes are not the program's.
            let ((), _) = outermost(|| registry::complete(comm));
        }
        Some(&error) => {
            if registry::find(comm).is_some_and(|communicator| communicator.fail_all(error)) {
                dump::write("async error");
            }
        }
    }
    code
}

/// Returns the message about a missing function once, otherwise NCCL's message.
pub(crate) unsafe extern "C" fn ncclGetLastError(comm: ncclComm_t) -> *const c_char {
    let message = returned::take_message();
    if message.is_null() { forward!(functions.ncclGetLastError(comm)) } else { message }
}
