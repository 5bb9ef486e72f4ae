//! A communicator: one rank's part in a world.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use libnccl::sys::{ncclComm_t, ncclRedOp_t, ncclResult_t};

use crate::buffer::Source;
use crate::data_type::DataType;
use crate::failure::{Failure, Progress, Result};
use crate::options::Options;
use crate::reach::{Reach, Seat};
use crate::reduction::Reduction;
use crate::registry::Registry;
use crate::unique_id::UniqueId;
use crate::window::Windows;
use crate::world::{Alarm, World};

#[derive(Debug)]
pub(crate) struct Communicator {
    device: i32,
    options: Options,
    membership: OnceLock<Membership>,
    reach: Reach,
    /// Jobs in the background, and how the last one went.
    jobs: AtomicUsize,
    outcome: Mutex<Result>,
    /// Whether the caller has yet to hear of that, or of its having been made.
    untold: AtomicBool,
    job_ended: Condvar,
    aborted: AtomicBool,
    cancelled: AtomicBool,
    /// Its handle is none any more.
    gone: AtomicBool,
    finalized: AtomicBool,
    stopped: OnceLock<Stop>,
    /// How many ids have been derived from this one's.
    descendants: Mutex<BTreeMap<Vec<usize>, u64>>,
    /// The id by which newcomers find it, if one was made and has not been used.
    token: Mutex<Option<UniqueId>>,
    /// After this nothing works any more.
    failure: OnceLock<Failure>,
    scalars: Mutex<BTreeMap<u32, (DataType, Scalar)>>,
    windows: Windows,
    registrations: Registry<()>,
    suspended: AtomicBool,
}

/// What a custom reduction multiplies by: an element in the first bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scalar {
    Now([u8; 8]),
    /// What lies there when an operation runs.
    Later(Source),
}

/// Where a communicator belongs, once it has found the other ranks.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) world: Arc<World>,
    pub(crate) rank: usize,
    /// What all ranks know and no stranger: from it come the ids of communicators made from this one.
    pub(crate) id: UniqueId,
}

/// The call after which a communicator starts no operations: only others are made of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Revoked,
    Shrunk,
}

impl Communicator {
    /// A communicator that has yet to [`join`](Self::join) the other ranks.
    pub(crate) fn new(device: i32, options: Options) -> Self {
        Self {
            device,
            options,
            membership: OnceLock::new(),
            reach: Reach::default(),
            jobs: AtomicUsize::new(0),
            outcome: Mutex::new(Ok(())),
            untold: AtomicBool::new(false),
            job_ended: Condvar::new(),
            aborted: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            finalized: AtomicBool::new(false),
            stopped: OnceLock::new(),
            descendants: Mutex::default(),
            token: Mutex::default(),
            failure: OnceLock::new(),
            scalars: Mutex::default(),
            windows: Windows::default(),
            registrations: Registry::new("registration"),
            suspended: AtomicBool::new(false),
        }
    }

    pub(crate) fn join(&self, membership: Membership) {
        let joined = self.membership.set(membership);
        debug_assert!(joined.is_ok(), "a communicator joins once");
        // One that was made of another is asked, too, whether that went well.
        self.untold.store(!self.options.blocking, Relaxed);
        if self.is_aborted() {
            self.alarm(Alarm::Aborted);
        }
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn device(&self) -> i32 {
        self.device
    }

    pub(crate) fn windows(&self) -> &Windows {
        &self.windows
    }

    /// How the log names it.
    pub(crate) fn describe(&self, handle: ncclComm_t) -> String {
        let name = self.options.name.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
        let place = self.membership().map_or_else(String::new, |Membership { world, rank, id }| {
            format!(" rank {rank} nranks {} cudaDev {} commId {}", world.ranks(), self.device, id.short())
        });
        format!("comm {handle:p}{name}{place}")
    }

    /// The buffers that the caller announced. Nothing is gained from knowing them.
    pub(crate) fn registrations(&self) -> &Registry<()> {
        &self.registrations
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Relaxed)
    }

    pub(crate) fn set_suspended(&self, suspended: bool) {
        self.suspended.store(suspended, Relaxed);
    }

    /// Its place among the ranks, if it has one yet.
    pub(crate) fn membership(&self) -> Option<&Membership> {
        self.membership.get()
    }

    /// Its place among the ranks, unless a call of before is still at work on it.
    pub(crate) fn settled(&self) -> Result<&Membership> {
        if self.is_at_work() {
            return Err(Failure::argument(
                "the communicator is still at work on a call that answered ncclInProgress: wait until \
                 ncclCommGetAsyncError says otherwise",
            ));
        }
        self.place()
    }

    /// Its place among the ranks, for the work itself.
    pub(crate) fn place(&self) -> Result<&Membership> {
        self.membership.get().ok_or_else(|| {
            self.failure
                .get()
                .cloned()
                .unwrap_or_else(|| Failure::argument("the communicator was never initialized"))
        })
    }

    /// The same, with what operations use of other ranks' memory.
    pub(crate) fn seat(&self) -> Result<Seat<'_>> {
        let Membership { world, rank, .. } = self.place()?;
        Ok(Seat { reach: &self.reach, world, rank: *rank })
    }

    /// The same, if operations can be started.
    pub(crate) fn ready(&self) -> Result<&Membership> {
        let membership = self.sound()?;
        if self.is_suspended() {
            return Err(Failure::usage("the communicator is suspended: call ncclCommResume first"));
        }
        Ok(membership)
    }

    /// The same, even while suspended.
    pub(crate) fn sound(&self) -> Result<&Membership> {
        if self.finalized.load(Relaxed) {
            return Err(Failure::usage("the communicator has been finalized"));
        }
        if let Some(stop) = self.stopped() {
            return Err(Failure::usage(format!("the communicator has ended: {}", stop.tell())));
        }
        let failed = |failure: &Failure| {
            let text = format!("the communicator has failed: {}", failure.text);
            Err(Failure { text, ..failure.clone() })
        };
        if let Some(failure) = self.failure.get() {
            return failed(failure);
        }
        let membership = self.settled()?;
        if !self.options.blocking
            && let Err(failure) = membership.world.alarmed()
        {
            // The peer may have begun this call, or another one, before it went: whether this one works, or of what
            // it is an error, is not to depend on how far that got.
            self.note(&failure);
            return failed(&failure);
        }
        Ok(membership)
    }

    /// The same, if others can be made of it: also of one that was revoked.
    pub(crate) fn parent(&self) -> Result<&Membership> {
        if self.stopped() == Some(Stop::Revoked) { self.settled() } else { self.ready() }
    }

    pub(crate) fn stopped(&self) -> Option<Stop> {
        self.stopped.get().copied()
    }

    /// Ends the operations that are under way, here and on the ranks that wait for this one, and starts none
    /// from here on. The first reason counts.
    pub(crate) fn stop(&self, stop: Stop) -> Result<Progress> {
        if self.finalized.load(Relaxed) {
            return Err(Failure::argument("the communicator has been finalized"));
        }
        if self.membership().is_none() {
            self.settled()?;
        }
        if self.stopped.set(stop).is_ok() {
            // What becomes of its operations is no news.
            *self.outcome() = Ok(());
            self.alarm(match stop {
                Stop::Revoked => Alarm::Revoked,
                Stop::Shrunk => Alarm::Shrunk,
            });
        } else if stop == Stop::Revoked {
            let before = self.stopped().unwrap_or(stop).tell();
            return Err(Failure::argument(format!("the communicator has ended before: {before}")));
        }
        Ok(if self.is_at_work() { Progress::Running } else { Progress::Done })
    }

    /// A number for an id of these ranks to be derived from this one's. They all take theirs in the same order,
    /// and other ranks do not: so each set of ranks counts by itself.
    pub(crate) fn next_descendant(&self, ranks: &[usize]) -> u64 {
        let mut descendants = self.descendants.lock().unwrap_or_else(PoisonError::into_inner);
        let number = descendants.entry(ranks.to_vec()).or_default();
        *number += 1;
        *number
    }

    /// The id by which newcomers find it. There is one at a time.
    pub(crate) fn create_token(&self) -> Result<UniqueId> {
        self.ready()?;
        let mut token = self.token();
        if token.is_some() {
            return Err(Failure::usage(
                "the communicator has an id for ncclCommGrow already, which has not been used",
            ));
        }
        let new = UniqueId::generate()?;
        *token = Some(new);
        Ok(new)
    }

    pub(crate) fn token(&self) -> MutexGuard<'_, Option<UniqueId>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What went wrong so far, other ranks' ends included: but what a job came to is told first, for a peer that
    /// ends after it takes nothing of that back.
    pub(crate) fn state(&self) -> Result<Progress> {
        if self.is_at_work() {
            return Ok(Progress::Running);
        }
        let outcome = || self.outcome().clone().map(|()| Progress::Done);
        if self.untold.swap(false, Relaxed) || self.stopped().is_some() {
            return outcome();
        }
        if self.failure.get().is_none()
            && !self.finalized.load(Relaxed)
            && let Some(Membership { world, .. }) = self.membership.get()
        {
            world.patrol();
            if let Err(failure) = world.alarmed() {
                self.note(&failure);
            }
        }
        self.failure.get().map_or_else(outcome, |failure| Err(failure.clone()))
    }

    /// Takes note of an operation's failure: after some the ranks are no longer in step.
    pub(crate) fn note(&self, failure: &Failure) {
        if matches!(failure.code, ncclResult_t::ncclRemoteError | ncclResult_t::ncclInternalError) {
            // The first one counts.
            let _ = self.failure.set(failure.clone());
        }
    }

    /// Takes note that it could not be made.
    pub(crate) fn fail(&self, failure: &Failure) {
        let _ = self.failure.set(failure.clone());
    }

    /// Begins a job in the background, of which the result tells the end.
    pub(crate) fn begin_job(self: &Arc<Self>) -> Job {
        self.jobs.fetch_add(1, Relaxed);
        let stopped = self.stopped().is_some();
        Job { communicator: Arc::clone(self), outcome: None, stopped }
    }

    /// Waits until nothing runs in the background.
    pub(crate) fn rest(&self) {
        drop(self.job_ended.wait_while(self.outcome(), |_| self.is_at_work()));
    }

    /// Says that no more operations come from this rank. All that were started have ended.
    pub(crate) fn finalize(&self) -> Result {
        let membership = self.settled()?;
        if let Some(stop) = self.stopped() {
            return Err(Failure::argument(format!("the communicator has ended: {}", stop.tell())));
        }
        if self.finalized.swap(true, Relaxed) {
            return Err(Failure::argument("the communicator has already been finalized"));
        }
        membership.world.leave(membership.rank);
        Ok(())
    }

    /// Ends the others' waiting for this rank, and its own, for good.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Relaxed);
        self.cancel();
        self.alarm(Alarm::Aborted);
        self.rest();
    }

    /// Waits for the operations in the background, but not for ranks that have yet to come to a communicator, this
    /// one or another made of it: they may never, and nobody could end that any more.
    pub(crate) fn destroy(&self) {
        if self.is_at_work() {
            self.cancel();
        }
        self.rest();
        if let Some(Membership { world, rank, .. }) = self.membership() {
            world.leave(*rank);
        }
    }

    /// Ends this rank's waiting for the others to join.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Relaxed)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    /// Says that its handle is none any more.
    pub(crate) fn go(&self) {
        self.gone.store(true, Relaxed);
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Relaxed)
    }

    /// Tells all ranks that this one cannot be relied on.
    pub(crate) fn alarm(&self, reason: Alarm) {
        if let Some(Membership { world, rank, .. }) = self.membership.get() {
            world.alarm(*rank, reason);
        }
    }

    /// A new reduction that multiplies this rank's inputs by an element first.
    pub(crate) fn create_scalar(&self, data_type: DataType, scalar: Scalar) -> ncclRedOp_t {
        // Numbers are never given twice, so that one that was destroyed, or is another communicator's, is
        // noticed.
        static NEXT: AtomicU32 = AtomicU32::new(ncclRedOp_t::ncclNumOps.0);
        let number = NEXT.fetch_add(1, Relaxed);
        self.scalars().insert(number, (data_type, scalar));
        ncclRedOp_t(number)
    }

    pub(crate) fn destroy_scalar(&self, op: ncclRedOp_t) -> Result {
        match self.scalars().remove(&op.0) {
            Some(_) => Ok(()),
            None => Err(Failure::argument(format!(
                "reduction {} is not one that this communicator created",
                op.0
            ))),
        }
    }

    /// The reduction, and where its scalar has to be read when it runs.
    pub(crate) fn reduction(
        &self,
        op: ncclRedOp_t,
        data_type: DataType,
    ) -> Result<(Reduction, Option<Source>)> {
        let reduction = match op {
            ncclRedOp_t::ncclSum => Reduction::Sum,
            ncclRedOp_t::ncclProd => Reduction::Prod,
            ncclRedOp_t::ncclMax => Reduction::Max,
            ncclRedOp_t::ncclMin => Reduction::Min,
            ncclRedOp_t::ncclAvg => Reduction::Avg,
            custom => match self.scalars().get(&custom.0) {
                Some((own, Scalar::Now(scalar))) if *own == data_type => Reduction::PreMulSum(*scalar),
                Some((own, Scalar::Later(place))) if *own == data_type => {
                    return Ok((Reduction::PreMulSum([0; 8]), Some(*place)));
                }
                Some((own, _)) => {
                    return Err(Failure::argument(format!(
                        "reduction {} was created for {own:?}, not for {data_type:?}",
                        custom.0
                    )));
                }
                None => {
                    return Err(Failure::argument(format!(
                        "reduction {} is unknown to this communicator",
                        custom.0
                    )));
                }
            },
        };
        Ok((reduction, None))
    }

    fn is_at_work(&self) -> bool {
        self.jobs.load(Acquire) > 0
    }

    fn outcome(&self) -> MutexGuard<'_, Result> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn scalars(&self) -> MutexGuard<'_, BTreeMap<u32, (DataType, Scalar)>> {
        self.scalars.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stop {
    fn tell(self) -> &'static str {
        match self {
            Self::Revoked => "it was revoked",
            Self::Shrunk => "it was shrunk with NCCL_SHRINK_ABORT",
        }
    }
}

impl Drop for Membership {
    /// Nothing comes from a rank whose communicator is gone, however it went.
    fn drop(&mut self) {
        self.world.leave(self.rank);
    }
}

/// A job in the background. One that is dropped without an [`end`](Self::end) has panicked.
#[derive(Debug)]
pub(crate) struct Job {
    communicator: Arc<Communicator>,
    outcome: Option<Result>,
    /// Whether the communicator had been stopped before.
    stopped: bool,
}

impl Job {
    pub(crate) fn end(mut self, result: &Result) {
        self.outcome = Some(result.clone());
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let mut outcome = self.communicator.outcome();
        if self.stopped || self.communicator.stopped().is_none() {
            *outcome = self.outcome.take().unwrap_or_else(|| Err(Failure::panic()));
            self.communicator.untold.store(true, Relaxed);
        }
        self.communicator.jobs.fetch_sub(1, Release);
        drop(outcome);
        self.communicator.job_ended.notify_all();
    }
}
