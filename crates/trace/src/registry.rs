//! The communicators of the process, by their handles.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockWriteGuard};

use libnccl::internal::environment::variable;
use libnccl::observer::{CommunicatorId, Membership};
use libnccl::sys::{ncclComm_t, ncclResult_t};
use libnccl_observe::variables::RECORDER;

use crate::communicator::Communicator;
use crate::library::{comm_hash, forward, library, memory_space, version};
use crate::per_process::PerProcess;

/// The number of entries of a ring, unless `LIBNCCL_RECORDER` is set.
const ENTRIES: usize = 1000;
/// The number of destroyed communicators whose operations are kept.
const ENDED: usize = 64;

/// A communicator whose creation has begun.
pub(crate) struct NewCommunicator {
    /// The address to which NCCL writes the handle.
    pub(crate) slot: *mut ncclComm_t,
    /// The identity, if it is known.
    pub(crate) id: Option<CommunicatorId>,
    pub(crate) name: Option<String>,
    /// The size and the rank, if they are known before the communicator exists.
    pub(crate) membership: Option<[u32; 2]>,
    pub(crate) parent: Option<usize>,
}

// SAFETY: the slot is read, on any thread, only when it is valid by NCCL's contract.
unsafe impl Send for NewCommunicator {}
// SAFETY: as above.
unsafe impl Sync for NewCommunicator {}

#[derive(Default)]
struct Communicators {
    live: HashMap<usize, Arc<Communicator>>,
    /// The identities and names of communicators that exist, but whose size cannot be queried yet.
    unasked: HashMap<usize, (Option<CommunicatorId>, Option<String>)>,
    /// Children that NCCL creates in the background.
    begun: Vec<NewCommunicator>,
}

#[derive(Default)]
struct Registry {
    communicators: RwLock<Communicators>,
    /// All communicators, the oldest first, and whether each is destroyed.
    all: Mutex<VecDeque<(Arc<Communicator>, bool)>>,
}

static REGISTRY: PerProcess<Registry> = PerProcess::new();

/// Changes whenever a handle is added or removed.
static GENERATION: AtomicUsize = AtomicUsize::new(0);

/// Removes all communicators, because a forked child has none of its parent's communicators.
pub(crate) fn forget() {
    REGISTRY.forget();
    GENERATION.fetch_add(1, Release);
}

#[inline]
pub(crate) fn generation() -> usize {
    GENERATION.load(Acquire)
}

fn write() -> RwLockWriteGuard<'static, Communicators> {
    REGISTRY.get().communicators.write().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn find(comm: ncclComm_t) -> Option<Arc<Communicator>> {
    let communicators = REGISTRY.get().communicators.read().unwrap_or_else(PoisonError::into_inner);
    communicators.live.get(&comm.addr()).cloned()
}

/// Returns the communicator with this handle, and registers it if it is new. Returns `None` if NCCL does not return its size and
/// rank. The caller marks the thread as inside NCCL, so that these queries are not recorded.
pub(crate) fn find_or_adopt(comm: ncclComm_t) -> Option<Arc<Communicator>> {
    find(comm).or_else(|| {
        let membership = (!comm.is_null()).then(|| ask(comm))??;
        let (id, name) = write().unasked.remove(&comm.addr()).unwrap_or_default();
        Some(add(comm, id, name, membership))
    })
}

/// Queries NCCL for the size and the rank. `None` if the communicator is not complete.
fn ask(comm: ncclComm_t) -> Option<[u32; 2]> {
    let (mut size, mut rank) = (-1, -1);
    let codes: [ncclResult_t; 2] = [
        forward!(functions.ncclCommCount(comm, &raw mut size)),
        forward!(functions.ncclCommUserRank(comm, &raw mut rank)),
    ];
    let is_known = codes == [ncclResult_t::ncclSuccess; 2] && rank < size;
    is_known.then_some([u32::try_from(size).ok()?, u32::try_from(rank).ok()?])
}

fn add(
    comm: ncclComm_t,
    id: Option<CommunicatorId>,
    name: Option<String>,
    [size, rank]: [u32; 2],
) -> Arc<Communicator> {
    let mut membership = Membership::new(rank as usize, size as usize, memory_space(), version());
    membership.library = library().map(|library| library.path.as_path().into());
    (membership.id, membership.name) = (comm_hash(comm).or(id), name);
    let communicator = Arc::new(Communicator::new(membership, entries()));
    write().live.insert(comm.addr(), Arc::clone(&communicator));
    GENERATION.fetch_add(1, Release);
    let mut all = REGISTRY.get().all.lock().unwrap_or_else(PoisonError::into_inner);
    all.push_back((Arc::clone(&communicator), false));
    communicator
}

fn entries() -> usize {
    static ENTRIES_SET: OnceLock<usize> = OnceLock::new();
    let read = || variable(RECORDER)?.to_str()?.trim().parse().ok().filter(|entries| *entries > 0);
    *ENTRIES_SET.get_or_init(|| read().unwrap_or(ENTRIES))
}

/// Registers a communicator whose creation has begun with this result, once it has a handle.
pub(crate) fn created(new: NewCommunicator, code: ncclResult_t) {
    match code {
        ncclResult_t::ncclSuccess => {}
        // NCCL writes the handle of a child later.
        ncclResult_t::ncclInProgress if new.parent.is_some() => return write().begun.push(new),
        ncclResult_t::ncclInProgress => {}
        _ => return,
    }
    // SAFETY: NCCL has written the slot for the caller, and no other thread writes it.
    let handle = unsafe { new.slot.as_ref() }.map_or(std::ptr::null_mut(), |handle| *handle);
    // A rank that is not in the new communicator gets no handle.
    if handle.is_null() {
        return;
    }
    match new.membership.or_else(|| ask(handle)) {
        Some(membership) => drop(add(handle, new.id, new.name, membership)),
        None => drop(write().unasked.insert(handle.addr(), (new.id, new.name))),
    }
}

/// Records that nothing is in progress on a communicator, and registers its children, which now exist.
pub(crate) fn complete(comm: ncclComm_t) {
    let has_begun = {
        let communicators = REGISTRY.get().communicators.read().unwrap_or_else(PoisonError::into_inner);
        communicators.live.get(&comm.addr()).into_iter().for_each(|found| found.complete());
        communicators.begun.iter().any(|new| new.parent == Some(comm.addr()))
    };
    if has_begun {
        let is_child = |new: &mut NewCommunicator| new.parent == Some(comm.addr());
        let children: Vec<_> = write().begun.extract_if(.., is_child).collect();
        children.into_iter().for_each(|new| created(new, ncclResult_t::ncclSuccess));
    }
}

/// Removes the handle of a communicator that is about to be torn down, and returns the communicator.
pub(crate) fn end(comm: ncclComm_t) -> Option<Arc<Communicator>> {
    let ended = {
        let mut communicators = write();
        communicators.unasked.remove(&comm.addr());
        communicators.begun.retain(|new| new.parent != Some(comm.addr()));
        communicators.live.remove(&comm.addr())
    }?;
    GENERATION.fetch_add(1, Release);
    ended.ended();
    let mut all = REGISTRY.get().all.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter_mut().filter(|(one, _)| Arc::ptr_eq(one, &ended)).for_each(|(_, is_ended)| *is_ended = true);
    let surplus = all.iter().filter(|(_, is_ended)| *is_ended).count().saturating_sub(ENDED);
    let oldest = (0..all.len()).filter(|at| all[*at].1).nth(surplus.wrapping_sub(1));
    if surplus > 0
        && let Some(oldest) = oldest
    {
        all.remove(oldest);
    }
    Some(ended)
}

/// Returns all communicators, the oldest first, including the most recently destroyed ones.
pub(crate) fn all() -> Vec<Arc<Communicator>> {
    let all = REGISTRY.existing().map(|registry| registry.all.lock().unwrap_or_else(PoisonError::into_inner));
    all.map_or_else(Vec::new, |all| all.iter().map(|(communicator, _)| Arc::clone(communicator)).collect())
}
