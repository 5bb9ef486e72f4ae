//! Initialisation: making communicators, which waits for other ranks.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use libnccl::sys::ncclComm_t;

use crate::bootstrap::rendezvous;
use crate::bootstrap::unique_id::UniqueId;
use crate::comm::communicator::{Communicator, RankInfo};
use crate::comm::join::join;
use crate::comm::out_param::OutParam;
use crate::comm::{agreement, grow, handle, shrink, split};
use crate::diag::debug::{self, Subsystem};
use crate::diag::error::{Error, Result};
use crate::diag::fault;
use crate::shm::liveness::AbortReason;

/// The initialisation of one communicator.
pub(crate) struct Init {
    communicator: Arc<Communicator>,
    /// The communicator that it is made from, if any.
    parent: Option<Arc<Communicator>>,
    kind: InitKind,
    /// The result, once the ranks have joined.
    joined: Option<RankInfo>,
    out: OutParam<ncclComm_t>,
}

/// The way in which the ranks of a new communicator find each other.
#[derive(Debug)]
pub(crate) enum InitKind {
    Rank {
        id: UniqueId,
        ranks: usize,
        rank: usize,
        /// The number of ids that the caller passed, and their digest.
        ids: (usize, u64),
    },
    Split {
        color: c_int,
        key: c_int,
    },
    Shrink {
        survivors: Vec<usize>,
        flags: c_int,
    },
    Grow {
        ranks: usize,
        id: Option<UniqueId>,
    },
}

impl Init {
    /// Creates the initialisation of a communicator by its id.
    pub(crate) fn of_rank(
        communicator: Communicator,
        id: UniqueId,
        ranks: usize,
        rank: usize,
        ids: (usize, u64),
        out: OutParam<ncclComm_t>,
    ) -> Self {
        let kind = InitKind::Rank { id, ranks, rank, ids };
        Self { communicator: Arc::new(communicator), parent: None, kind, joined: None, out }
    }

    /// Creates the initialisation of a communicator that is made from `parent`.
    pub(crate) fn of_child(
        communicator: Communicator,
        parent: Arc<Communicator>,
        kind: InitKind,
        out: OutParam<ncclComm_t>,
    ) -> Self {
        let (communicator, parent) = (Arc::new(communicator), Some(parent));
        Self { communicator, parent, kind, joined: None, out }
    }

    /// Returns the communicator whose mode decides whether the caller waits: the parent, if there is one.
    pub(crate) fn caller(&self) -> &Arc<Communicator> {
        self.parent.as_ref().unwrap_or(&self.communicator)
    }

    /// Returns the name of the function that was called.
    pub(crate) fn function(&self) -> &'static str {
        match self.kind {
            InitKind::Rank { .. } => "ncclCommInitRank",
            InitKind::Split { .. } => "ncclCommSplit",
            InitKind::Shrink { .. } => "ncclCommShrink",
            InitKind::Grow { .. } => "ncclCommGrow",
        }
    }

    /// Gives the caller the handle before the initialisation ends, for it to poll, where NCCL does: of all but splits and shrinks.
    /// Returns the communicator then.
    pub(crate) fn hand_out_early(&self) -> Result<Option<Arc<Communicator>>> {
        if matches!(self.kind, InitKind::Split { .. } | InitKind::Shrink { .. }) {
            return Ok(None);
        }
        self.out.write(handle::add(Arc::clone(&self.communicator))?);
        Ok(Some(Arc::clone(&self.communicator)))
    }

    fn join(&mut self) -> Result {
        let communicator = &self.communicator;
        self.joined = match (&self.kind, &self.parent) {
            (InitKind::Rank { id, ranks, rank, .. }, _) => {
                check_unused(id)?;
                let joined = join(communicator, None, *id, *ranks, *rank)?;
                note_used(id);
                Some(joined)
            }
            (InitKind::Split { color, key }, Some(parent)) => {
                split::split(communicator, parent, *color, *key)
                    .inspect_err(|error| parent.record_error(error))?
            }
            (InitKind::Shrink { survivors, .. }, Some(parent)) => {
                shrink::shrink(communicator, parent, survivors)?
            }
            (InitKind::Grow { ranks, id }, Some(parent)) => grow::grow(communicator, parent, *ranks, *id)?,
            (kind, None) => return Err(Error::internal(format!("{kind:?} without a parent"))),
        };
        self.joined.iter().try_for_each(|joined| agreement::check(communicator, joined, &self.kind))
    }

    fn complete(self) -> Result {
        let Some(rank_info) = self.joined else {
            self.out.write(ptr::null_mut());
            return Ok(());
        };
        let communicator = &self.communicator;
        if self.parent.is_some() {
            communicator.config().log_network();
        }
        let fault = match &self.parent {
            Some(parent) => parent.fault(),
            None => fault::of_rank(rank_info.rank),
        };
        communicator.join(rank_info, fault);
        if communicator.handle().is_null() {
            let handle =
                handle::add(Arc::clone(communicator)).inspect_err(|error| communicator.fail(error))?;
            self.out.write(handle);
        }
        debug::info(Subsystem::Init, || format!("{} - Init COMPLETE", communicator.describe()));
        Ok(())
    }
}

/// The public parts of the ids by which this process has made communicators lately.
static USED: Mutex<VecDeque<[u8; 16]>> = Mutex::new(VecDeque::new());

/// Ids that are remembered at most.
const USED_MAX: usize = 4096;

/// Returns an error if a communicator of this process has been made by the id: in NCCL, nobody answers at it any more. The
/// ranks of one communicator all begin before the first of them ends.
fn check_unused(id: &UniqueId) -> Result {
    let used = USED.lock().unwrap_or_else(PoisonError::into_inner);
    if !used.contains(&id.public) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "the unique id {} has made a communicator in this process already; each takes an id of its own from ncclGetUniqueId",
        id.short()
    )))
}

/// Remembers an id, unless it is that of an address in `NCCL_COMM_ID`, which communicators share.
fn note_used(id: &UniqueId) {
    let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
    if id.is_of_address || used.contains(&id.public) {
        return;
    }
    if used.len() == USED_MAX {
        used.pop_front();
    }
    used.push_back(id.public);
}

/// Notifies the ranks that wait for the ranks of a failed group, which never join.
pub(crate) fn refuse_all(inits: &[Init], error: &Error) {
    let mut notified = vec![];
    for init in inits {
        let InitKind::Rank { id, ranks, rank, .. } = init.kind else { continue };
        let is_same = |other: &&Init| matches!(other.kind, InitKind::Rank { id: other, .. } if other.public == id.public);
        let has_others = inits.iter().filter(is_same).count() < ranks;
        if has_others && !notified.contains(&id.public) {
            notified.push(id.public);
            rendezvous::fail(&id, Some((ranks, rank)), error);
        }
    }
}

/// Runs the initialisations of a group.
///
/// Ranks of one communicator that one thread initialises wait for each other, so each gets a thread. Communicators that
/// are made from one parent are made in the order of their calls, which is the same on all its ranks.
pub(crate) fn run_all(mut inits: Vec<Init>) -> Result {
    let communicators: Vec<Arc<Communicator>> =
        inits.iter().map(|init| Arc::clone(&init.communicator)).collect();
    let mut sequences: Vec<Vec<&mut Init>> = vec![];
    for init in &mut inits {
        let is_same = |sequence: &&mut Vec<&mut Init>| Arc::ptr_eq(sequence[0].caller(), init.caller());
        match sequences.iter_mut().find(is_same) {
            Some(sequence) => sequence.push(init),
            None => sequences.push(vec![init]),
        }
    }
    let cause = OnceLock::new();
    std::thread::scope(|scope| {
        let last = sequences.pop();
        for inits in sequences {
            let sequence = Sequence { inits: inits.into_iter(), all: &communicators };
            let thread = std::thread::Builder::new().spawn_scoped(scope, || sequence.run(&cause));
            if let Err(error) = thread {
                let error = Error::system("a thread to initialise a rank cannot be started", error);
                let _ = cause.set(error);
            }
        }
        if let Some(inits) = last {
            Sequence { inits: inits.into_iter(), all: &communicators }.run(&cause);
        }
    });
    if let Some(error) = cause.into_inner() {
        communicators.iter().for_each(|communicator| communicator.fail(&error));
        return Err(error);
    }
    inits.into_iter().try_for_each(Init::complete)
}

/// The initialisations of one thread. One that fails, or panics, ends all of the group: what the others wait for may
/// never come.
struct Sequence<'a> {
    inits: std::vec::IntoIter<&'a mut Init>,
    all: &'a [Arc<Communicator>],
}

impl Sequence<'_> {
    /// Runs them in order. The first error is the cause of the others.
    fn run(mut self, cause: &OnceLock<Error>) {
        for init in self.inits.by_ref() {
            let joined = catch_unwind(AssertUnwindSafe(|| init.join()));
            let joined =
                joined.unwrap_or_else(|_| Err(Error::internal("a thread that initialised a rank panicked")));
            if let Err(error) = joined {
                let _ = cause.set(error);
                return;
            }
        }
        self.all = &[];
    }
}

impl Drop for Sequence<'_> {
    fn drop(&mut self) {
        self.all.iter().for_each(|communicator| communicator.cancel());
        // Other ranks wait for the rest of what was to be made from this one.
        self.inits.by_ref().for_each(|left| left.caller().set_abort(AbortReason::Failed));
    }
}
