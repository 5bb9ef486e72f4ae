//! Initialization: creates communicators and joins their ranks.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, OnceLock};

use libnccl::sys::{ncclComm_t, ncclResult_t};

use crate::bootstrap::join::{JoinContext, ParentComm};
use crate::bootstrap::rendezvous;
use crate::bootstrap::unique_id::UniqueId;
use crate::comm::communicator::{Communicator, RankInfo};
use crate::comm::{agreement, handle};
use crate::diag::debug::{self, Subsystem};
use crate::diag::error::{Error, Result};
use crate::diag::settings;
use crate::shm::liveness::AbortReason;
use crate::shm::shared_state::SharedState;
use crate::sync::lock;

/// Finds the other ranks of a new communicator. Returns the membership, or `None` if the caller does not become a rank.
pub(crate) type Join = Box<dyn Fn(&Communicator) -> Result<Option<RankInfo>> + Send + Sync>;

pub(crate) struct Init {
    pub(crate) communicator: Arc<Communicator>,
    pub(crate) parent: Option<Arc<Communicator>>,
    /// The C function. `arguments` are the arguments that must be the same on all ranks.
    pub(crate) function: &'static str,
    pub(crate) arguments: Vec<(&'static str, String)>,
    pub(crate) join: Join,
    /// The id with which the other ranks wait, the number of ranks, and the rank. `None` for a child of a communicator.
    pub(crate) waits_at: Option<(UniqueId, usize, usize)>,
    pub(crate) out: OutParam<ncclComm_t>,
}

impl Init {
    /// Returns the communicator whose blocking mode applies to the call: the parent, if there is one.
    pub(crate) fn caller(&self) -> &Arc<Communicator> {
        self.parent.as_ref().unwrap_or(&self.communicator)
    }

    /// Writes the handle before the initialization ends, so that the caller can poll the communicator, and returns the
    /// communicator. As in NCCL, does nothing for split and shrink.
    pub(crate) fn hand_out_early(&self) -> Option<Arc<Communicator>> {
        if matches!(self.function, "ncclCommSplit" | "ncclCommShrink") {
            return None;
        }
        self.out.write(handle::add(Arc::clone(&self.communicator)));
        Some(Arc::clone(&self.communicator))
    }

    fn join(&self) -> Result<Option<RankInfo>> {
        let joined = (self.join)(&self.communicator)?;
        if let Some(joined) = &joined {
            agreement::check(&self.communicator, joined, self.function, &self.arguments)?;
        }
        Ok(joined)
    }

    /// Makes the communicator usable after its ranks have joined, and writes its handle.
    fn complete(&self, joined: Option<RankInfo>) {
        let Some(rank_info) = joined else {
            return self.out.write(ptr::null_mut());
        };
        let communicator = &self.communicator;
        if self.parent.is_some() {
            communicator.config.log_network();
        }
        communicator.join(rank_info);
        if communicator.handle().is_null() {
            self.out.write(handle::add(Arc::clone(communicator)));
        }
        debug::info(Subsystem::Init, || format!("{} - Init COMPLETE", communicator.describe()));
    }
}

/// Notifies ranks that wait for the ranks of a failed group that the latter never join.
pub(crate) fn refuse_all(inits: &[Init], error: &Error) {
    let mut notified = vec![];
    for init in inits {
        let Some((id, ranks, rank)) = init.waits_at else { continue };
        let is_same = |other: &&Init| other.waits_at.is_some_and(|(other, ..)| other.public == id.public);
        let has_others = inits.iter().filter(is_same).count() < ranks;
        if has_others && !notified.contains(&id.public) {
            notified.push(id.public);
            rendezvous::fail(&id, Some((ranks, rank)), error);
        }
    }
}

/// Runs the initializations of a group.
///
/// If one thread initializes several ranks of a communicator, they wait for each other, so each rank gets a thread. Communicators with the
/// same parent are created in the order of their calls, which is the same on all ranks of the parent.
pub(crate) fn run_all(inits: &[Init]) -> Result {
    let joined: Vec<OnceLock<Option<RankInfo>>> = inits.iter().map(|_| OnceLock::new()).collect();
    let mut sequences: Vec<Vec<usize>> = vec![];
    for (index, init) in inits.iter().enumerate() {
        let is_same = |sequence: &&mut Vec<usize>| Arc::ptr_eq(inits[sequence[0]].caller(), init.caller());
        match sequences.iter_mut().find(is_same) {
            Some(sequence) => sequence.push(index),
            None => sequences.push(vec![index]),
        }
    }
    let cause = OnceLock::new();
    let run = |sequence: Vec<usize>| run_sequence(inits, sequence, &joined, &cause);
    std::thread::scope(|scope| {
        let last = sequences.pop();
        for sequence in sequences {
            let caller = inits[sequence[0]].caller();
            if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, move || run(sequence)) {
                let _ = cause.set(Error::system("a thread to initialize a rank cannot be started", error));
                cancel_all(inits);
                caller.set_abort(AbortReason::Failed);
            }
        }
        last.into_iter().for_each(run);
    });
    if let Some(error) = cause.into_inner() {
        inits.iter().for_each(|init| init.communicator.fail(&error));
        return Err(error);
    }
    inits.iter().zip(joined).for_each(|(init, joined)| init.complete(joined.into_inner().flatten()));
    Ok(())
}

/// Runs the initializations of one thread in order. If one fails or panics, cancels all initializations of the group, because
/// they may wait for ranks that never join. The first error is the cause of the others.
fn run_sequence(
    inits: &[Init],
    sequence: Vec<usize>,
    joined: &[OnceLock<Option<RankInfo>>],
    cause: &OnceLock<Error>,
) {
    let mut left = sequence.into_iter();
    while let Some(index) = left.next() {
        let result = catch_unwind(AssertUnwindSafe(|| inits[index].join()));
        match result.unwrap_or_else(|_| Err(Error::internal("a thread that initialized a rank panicked"))) {
            Ok(rank_info) => drop(joined[index].set(rank_info)),
            Err(error) => {
                let _ = cause.set(error);
                cancel_all(inits);
                if left.next().is_some() {
                    // Other ranks wait for the remaining communicators that were to be created from this one.
                    inits[index].caller().set_abort(AbortReason::Failed);
                }
                return;
            }
        }
    }
}

fn cancel_all(inits: &[Init]) {
    inits.iter().for_each(|init| init.communicator.cancel());
}

pub(crate) struct OutParam<T>(*mut T);

// SAFETY: the memory is not bound to a thread, and by the contract of `new` nothing else accesses it in the meantime. The value is for the
// caller, which may be another thread, so it is a handle.
unsafe impl<T> Send for OutParam<T> {}
// SAFETY: as for `Send`: only one thread at a time runs an operation.
unsafe impl<T> Sync for OutParam<T> {}

impl<T> OutParam<T> {
    /// # Safety
    /// The memory must be writable until the call, or its group, has ended. For a nonblocking communicator, it must be writable
    /// until the communicator is no longer busy.
    pub(crate) unsafe fn new(pointer: *mut T) -> Self {
        Self(pointer)
    }

    pub(crate) fn write(&self, value: T) {
        // SAFETY: guaranteed by the caller of `new`.
        unsafe { self.0.write(value) }
    }
}

/// Joins the `ranks` ranks with this `id`, as `rank`.
pub(crate) fn join(
    communicator: &Communicator,
    parent: Option<(&Communicator, ParentComm<'_>)>,
    mut id: UniqueId,
    ranks: usize,
    rank: usize,
) -> Result<RankInfo> {
    let old = parent.as_ref().map(|(old, _)| *old);
    let state = join_state(communicator, parent, &id, ranks, rank)?;
    // Its ranks exchange their devices before it is complete.
    state.set_name(id.hash.get(), communicator.name(&id));
    // With `NCCL_COMM_ID`, communicators share one id. Ids derived from it must differ.
    id.secret = state.nonce();
    let fault = old.map_or_else(|| settings::fault_of_rank(rank), Communicator::fault);
    Ok(RankInfo { state, rank, id, fault })
}

pub(crate) fn join_state(
    communicator: &Communicator,
    parent: Option<(&Communicator, ParentComm<'_>)>,
    id: &UniqueId,
    ranks: usize,
    rank: usize,
) -> Result<Arc<SharedState>> {
    let (old, parent) = parent.unzip();
    // The caller receives the handle of a child only when it is complete, and queries the parent until then.
    let queried = old.unwrap_or(communicator);
    let stopped = old.and_then(Communicator::stopped);
    let context = JoinContext {
        name: &communicator.name(id),
        check_cancelled: &|| {
            check_cancelled(communicator)?;
            let Some(old) = old else { return Ok(()) };
            check_cancelled(old)?;
            if old.stopped() != stopped { Err(cancelled("revoked")) } else { Ok(()) }
        },
        waits_for: &|text| *lock(&queried.join_wait) = text,
        parent,
    };
    let joined = rendezvous::join(id, ranks, rank, &context);
    lock(&queried.join_wait).clear();
    joined.inspect_err(|error| {
        // The other ranks detect failures of another rank, but not this rank's own errors. This rank therefore departs from the parent,
        // with which it is out of sync as well.
        let is_own = error.code == ncclResult_t::ncclSystemError || communicator.is_cancelled();
        if let Some(old) = old.filter(|_| is_own) {
            old.fail(error);
            if let Some(RankInfo { state, rank, .. }) = old.rank_info.get() {
                state.depart(*rank);
            }
        }
    })
}

fn check_cancelled(communicator: &Communicator) -> Result {
    if communicator.is_cancelled() { Err(cancelled("aborted or destroyed")) } else { Ok(()) }
}

fn cancelled(what: &str) -> Error {
    Error::remote(format!("the communicator was {what} while its ranks were joining"))
}
