//! A communicator: one rank's membership in a group of ranks, and what its calls may do in its present state.
//!
//! It is created without the other ranks (`new`), joins them (`join`), and ends by `destroy` or `abort`. In between it
//! can be finalized, stopped (revoked or shrunk), failed, or suspended. Jobs are the calls of a nonblocking communicator
//! that are in progress; some are exclusive, because they make the communicator or change it for all that follows.
//!
//! | function | precondition | refused |
//! |---|---|---|
//! | collectives, send and receive, put, signal and wait, `ncclCommRegister`, `ncclCommGetUniqueId` | `check_operable` | after the end of operations (finalized, stopped, aborted, failed), suspended, beside an exclusive job |
//! | window registration, `ncclCommSuspend`, `ncclCommGrow` | `check_exclusive` | also beside any job |
//! | `ncclCommSplit`, `ncclCommShrink` | `check_parent` | as before, but not if it was revoked |
//! | `ncclCommResume` | `check_not_failed`, `check_idle` | after the end of operations, beside any job |
//! | `ncclCommFinalize`, deregistration, `ncclCommMemStats` | `check_idle` | beside any job |
//! | count, rank, device, `ncclWinGetUserPtr` | `check_ready` | beside an exclusive job |
//! | `ncclCommRevoke`, `ncclCommShrink` with `NCCL_SHRINK_ABORT` | `stop` | finalized, or revoked before |
//! | `ncclCommGetAsyncError`, `ncclCommDestroy`, `ncclCommAbort` | none | never |
//!
//! On a communicator of CUDA devices, operations are enqueued on streams, where they run later. Calls that make or change a
//! communicator run on the host nevertheless. They [`synchronize`](Communicator::synchronize) before, as both would do the
//! same steps.
//!
//! Calls that use what the ranks share also [`enter`](Communicator::enter): one thread at a time.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use libnccl::sys::{ncclComm_t, ncclRedOp_t};

use crate::bootstrap::unique_id::UniqueId;
use crate::coll::call::CallHeader;
use crate::coll::wait_report;
use crate::comm::config::Config;
use crate::comm::invalid_buffer::Running;
use crate::comm::jobs::Jobs;
use crate::comm::open_group::QueuedCalls;
use crate::comm::registry::Children;
use crate::comm::registry::CustomReductions;
use crate::comm::registry::{Kind, Registry};
use crate::comm::stream_jobs::StreamJobs;
use crate::comm::window::Windows;
use crate::cuda::{Driver, driver};
use crate::diag::debug;
use crate::diag::error::{Error, Progress, Result};
use crate::diag::failures::Failures;
use crate::diag::fault::{self, Fault};
use crate::diag::finding::Finding;
use crate::diag::report;
use crate::diag::settings::{FAILURES, STRICT};
use crate::ras::service::Service;
use crate::reduce::data_type::DataType;
use crate::reduce::reduction::Reduction;
use crate::shm::buffer::ReadBuf;
use crate::shm::call_context::CallContext;
use crate::shm::liveness::AbortReason;
use crate::shm::peer_access::PeerAccess;
use crate::shm::shared_state::SharedState;

#[derive(Debug)]
pub(crate) struct Communicator {
    pub(crate) device: i32,
    /// The CUDA in whose memory the buffers are and on whose streams operations run; `None` if they are in host memory.
    /// Without CUDA in the process, the first call that uses memory or a stream decides: the program may load it meanwhile.
    driver: OnceLock<Option<&'static Driver>>,
    /// Set if a call outside groups runs its operation on host memory before it returns: if it is blocking, and no rank has
    /// a planted fault, which that path does not look for.
    runs_at_once: bool,
    pub(crate) config: Config,
    pub(crate) rank_info: OnceLock<RankInfo>,
    /// The planted fault of its rank, set when it joins.
    pub(crate) fault: OnceLock<Fault>,
    pub(crate) peers: PeerAccess,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) stream_jobs: StreamJobs,
    pub(crate) queued_calls: QueuedCalls,
    pub(crate) running: Running,
    pub(crate) aborted: AtomicBool,
    pub(crate) cancelled: AtomicBool,
    /// The handle has been destroyed.
    pub(crate) handle_destroyed: AtomicBool,
    pub(crate) finalized: AtomicBool,
    pub(crate) stopped: OnceLock<StopReason>,
    pub(crate) children: Children,
    /// The text that says for whom the join of this communicator, or of one that is made from it, waits; empty if for nobody.
    pub(crate) join_wait: Mutex<String>,
    /// The error after which the communicator is unusable.
    pub(crate) error: OnceLock<Error>,
    /// True while CUDA's calls fail because an operation on a stream has.
    pub(crate) fails_cuda: Mutex<bool>,
    /// Set once an operation has failed that stays pending, as `LIBNCCL_CPU_FAILURES=wait` asks for.
    pub(crate) is_stalled: AtomicBool,
    /// Set once an operation has told the caller that the ranks made different calls.
    pub(crate) knows_mistake: AtomicBool,
    pub(crate) custom_reductions: CustomReductions,
    pub(crate) windows: Arc<Windows>,
    pub(crate) registrations: Registry<Range<usize>>,
    pub(crate) suspended: Arc<AtomicBool>,
    /// The caller's handle, 0 before there is one.
    pub(crate) handle: AtomicUsize,
    /// This process's answers to RAS requests, until the communicator ends.
    pub(crate) ras: Mutex<Option<Arc<Service>>>,
    /// Set while a thread is in a call that uses what the ranks share.
    pub(crate) is_entered: AtomicBool,
}

/// A rank's membership, once it has found the other ranks.
#[derive(Debug)]
pub(crate) struct RankInfo {
    pub(crate) state: Arc<SharedState>,
    pub(crate) rank: usize,
    /// The secret that the ranks share, from which child ids are derived.
    pub(crate) id: UniqueId,
}

/// The call after which a communicator starts no operations, and only serves to make others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopReason {
    Revoked,
    Shrunk,
}

impl Communicator {
    /// Creates a communicator that has yet to [`join`](Self::join) the other ranks.
    pub(crate) fn new(device: i32, driver: Option<&'static Driver>, config: Config) -> Self {
        Self {
            device,
            driver: driver.map_or_else(OnceLock::new, |driver| OnceLock::from(Some(driver))),
            runs_at_once: config.blocking && !fault::is_planted(),
            rank_info: OnceLock::new(),
            fault: OnceLock::new(),
            peers: PeerAccess::default(),
            config,
            jobs: Arc::new(Jobs::new()),
            stream_jobs: StreamJobs::default(),
            queued_calls: QueuedCalls::default(),
            running: Running::new(),
            aborted: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            handle_destroyed: AtomicBool::new(false),
            finalized: AtomicBool::new(false),
            stopped: OnceLock::new(),
            children: Children::default(),
            join_wait: Mutex::default(),
            error: OnceLock::new(),
            fails_cuda: Mutex::new(false),
            is_stalled: AtomicBool::new(false),
            knows_mistake: AtomicBool::new(false),
            custom_reductions: CustomReductions::default(),
            windows: Arc::default(),
            registrations: Registry::new(Kind::Registration),
            suspended: Arc::default(),
            handle: AtomicUsize::new(0),
            ras: Mutex::default(),
            is_entered: AtomicBool::new(false),
        }
    }

    pub(crate) fn join(&self, rank_info: RankInfo, fault: Option<Fault>) {
        if let Some(fault) = fault {
            let _ = self.fault.set(fault);
        }
        rank_info.state.set_name(self.name(&rank_info.id));
        rank_info.state.register();
        self.running.set_rank(rank_info.rank);
        rank_info.state.set_device(rank_info.rank, self.device);
        rank_info.state.set_maker(rank_info.rank);
        *self.ras() = Service::of_process();
        let joined = self.rank_info.set(rank_info);
        debug_assert!(joined.is_ok(), "a communicator joins once");
        // A child is asked for the outcome of its initialisation, too.
        if !self.config.blocking {
            self.jobs.set_unreported();
        }
        if self.is_aborted() {
            self.set_abort(AbortReason::Aborted);
        }
    }

    /// Returns the planted fault of the rank.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.fault.get().copied()
    }

    /// Sleeps for the delay that is planted in the rank, if there is one. An abort ends it, and is an error: the other ranks may
    /// have published all that this one would need to go on.
    pub(crate) fn delay(&self) -> Result {
        const TURN: Duration = Duration::from_millis(10);
        let Some(Fault { delay, .. }) = self.fault() else { return Ok(()) };
        let begin = Instant::now();
        while let Some(left) = delay.checked_sub(begin.elapsed())
            && !self.is_cancelled()
        {
            self.context()?.state.check_abort()?;
            std::thread::sleep(left.min(TURN));
        }
        if self.is_aborted() {
            self.set_abort(AbortReason::Aborted);
        }
        self.context()?.state.check_abort()
    }

    pub(crate) fn runs_at_once(&self) -> bool {
        self.runs_at_once && self.driver().is_none()
    }

    /// Returns the CUDA of buffers and streams. The first call decides.
    pub(crate) fn driver(&self) -> Option<&'static Driver> {
        *self.driver.get_or_init(driver)
    }

    /// Returns the CUDA of the buffers and streams so far.
    pub(crate) fn known_driver(&self) -> Option<&'static Driver> {
        self.driver.get().copied().flatten()
    }

    /// Checks that no call of this rank waits for the end of a group, after which it would have run, before `what`. Calls that
    /// have failed, or that the caller has given up, do not count.
    ///
    /// # Errors
    /// There are such calls. They are reported the first time.
    pub(crate) fn check_group_ended(&self, what: &str) -> Result {
        if self.failure().is_some() || self.stopped().is_some() {
            return Ok(());
        }
        let Some((calls, is_reported)) = self.queued_calls.describe() else { return Ok(()) };
        let rank = self.rank_info.get().map(|info| info.rank);
        let who = rank.map_or_else(|| "a rank".into(), |rank| format!("rank {rank}"));
        let text = format!("{who} {calls}: ncclGroupEnd is missing before {what}");
        if !is_reported {
            report::report(Finding::UnendedGroup, rank, &format!("{text}; {}", self.describe()));
        }
        Err(Error::usage(text))
    }

    /// Waits until the operations on streams have run.
    pub(crate) fn synchronize(&self) {
        if self.known_driver().is_some() {
            self.stream_jobs.wait_idle();
        }
    }

    /// Describes the communicator for the log.
    pub(crate) fn describe(&self) -> String {
        let name = self.config_name();
        let rank = self.rank_info.get().map_or_else(String::new, |RankInfo { state, rank, id }| {
            format!(" rank {rank} nranks {} cudaDev {} commId {}", state.ranks(), self.device, id.short())
        });
        format!("comm {:p}{name}{rank}", self.handle())
    }

    /// Returns the name in reports of the communicator that has the id, which is the `commId` of the log.
    pub(crate) fn name(&self, id: &UniqueId) -> String {
        format!("communicator {}{}", id.short(), self.config_name())
    }

    fn config_name(&self) -> String {
        self.config.name.as_ref().map_or_else(String::new, |name| format!(" ({name})"))
    }

    /// Returns the caller's handle, NULL before there is one.
    pub(crate) fn handle(&self) -> ncclComm_t {
        ptr::without_provenance_mut(self.handle.load(Relaxed))
    }

    pub(crate) fn set_handle(&self, handle: ncclComm_t) {
        self.handle.store(handle.addr(), Relaxed);
    }

    /// Enters the communicator on the calling thread, until the result is dropped. A background job does not count.
    ///
    /// # Errors
    /// Another thread is inside: both would do the same steps. Once the communicator is stopped, no step counts any more,
    /// and the other thread is about to leave.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Entered<'_>> {
        if self.is_entered.swap(true, Acquire) && self.stopped().is_none() {
            return Err(self.second_thread());
        }
        Ok(Entered(self))
    }

    #[cold]
    #[inline(never)]
    fn second_thread(&self) -> Error {
        let call = self.rank_info.get().and_then(|info| CallHeader::running(&info.state, info.rank));
        let call = call.map_or_else(|| "another call".into(), |call| call.to_string());
        Error::usage(format!(
            "another thread is in {call} on this communicator, which takes calls of one thread at a time"
        ))
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Relaxed)
    }

    /// Returns the rank's membership.
    ///
    /// # Errors
    /// The communicator has not joined the other ranks.
    #[inline]
    pub(crate) fn rank_info(&self) -> Result<&RankInfo> {
        self.rank_info.get().ok_or_else(|| self.not_joined())
    }

    #[cold]
    #[inline(never)]
    fn not_joined(&self) -> Error {
        let error = self.error.get().cloned();
        error.unwrap_or_else(|| Error::argument("the communicator was never initialized"))
    }

    /// Returns the context of calls, whatever the communicator's state.
    #[inline]
    pub(crate) fn context(&self) -> Result<CallContext<'_>> {
        let RankInfo { state, rank, .. } = self.rank_info()?;
        Ok(CallContext { state, rank: *rank, peers: &self.peers })
    }

    /// Returns the context, unless an earlier call is still in progress beside which nothing can be called.
    pub(crate) fn check_ready(&self) -> Result<CallContext<'_>> {
        if self.jobs.is_exclusive() { Err(busy()) } else { self.context() }
    }

    /// Returns the context, unless an earlier call is still in progress.
    pub(crate) fn check_idle(&self) -> Result<CallContext<'_>> {
        self.check_not_busy()?;
        self.context()
    }

    /// Returns an error if an earlier call is still in progress.
    pub(crate) fn check_not_busy(&self) -> Result {
        if self.jobs.is_busy() { Err(busy()) } else { Ok(()) }
    }

    /// Returns the context if operations can be started, which then run after those in progress.
    pub(crate) fn check_operable(&self) -> Result<CallContext<'_>> {
        let context = self.check_not_failed()?;
        if self.is_suspended() {
            return Err(Error::usage("the communicator is suspended: call ncclCommResume first"));
        }
        Ok(context)
    }

    /// Returns the context if operations can be started or the communicator is suspended.
    pub(crate) fn check_not_failed(&self) -> Result<CallContext<'_>> {
        self.check_usable()?;
        if self.config.blocking { self.context() } else { self.check_not_failed_beside_jobs() }
    }

    #[inline(never)]
    fn check_not_failed_beside_jobs(&self) -> Result<CallContext<'_>> {
        let context = self.check_ready()?;
        // The peer may have begun this call, or another one, before it aborted: the outcome of this one must not depend
        // on how far that got. Those in progress have begun, and may still succeed.
        check_peers(context.state).map_err(|error| has_failed(&error))?;
        Ok(context)
    }

    /// Returns an error if no operation may run any more.
    #[inline(always)]
    pub(crate) fn check_usable(&self) -> Result {
        if self.finalized.load(Relaxed) {
            return Err(Error::usage("the communicator has been finalized"));
        }
        if let Some(reason) = self.stopped() {
            return Err(Error::usage(format!("the communicator is unusable: {}", reason.describe())));
        }
        if self.is_aborted() {
            return Err(Error::usage("the communicator was aborted"));
        }
        match self.error.get() {
            Some(error) => Err(has_failed(error)),
            None => Ok(()),
        }
    }

    /// Returns the context if a call can be started that has to run alone.
    pub(crate) fn check_exclusive(&self) -> Result<CallContext<'_>> {
        self.check_operable()?;
        if self.config.blocking {
            self.synchronize();
        }
        self.check_idle()
    }

    /// Returns the context if another communicator can be made of this one, also if it was revoked.
    pub(crate) fn check_parent(&self) -> Result<CallContext<'_>> {
        if self.stopped() == Some(StopReason::Revoked) { self.check_idle() } else { self.check_exclusive() }
    }

    pub(crate) fn stopped(&self) -> Option<StopReason> {
        self.stopped.get().copied()
    }

    /// Returns the asynchronous state. The outcome of the jobs comes first: it holds whatever a peer did afterwards.
    pub(crate) fn async_state(&self) -> Result<Progress> {
        if self.jobs.is_busy() {
            return Ok(Progress::Running);
        }
        let outcome = || self.jobs.result().map(|()| Progress::Done);
        if self.jobs.take_unreported() || self.stopped().is_some() {
            return outcome();
        }
        if self.error.get().is_none()
            && !self.finalized.load(Relaxed)
            && let Some(RankInfo { state, .. }) = self.rank_info.get()
        {
            state.check_liveness();
            // On CUDA devices, a peer that is done may be the first to revoke or to shrink: that ends nothing here.
            let is_error = self.known_driver().is_none() || !state.is_stopped();
            if let Err(error) = check_peers(state)
                && is_error
            {
                self.record_error(&error);
            }
        }
        self.error.get().map_or_else(outcome, |error| Err(error.clone()))
    }

    /// Returns whom the call in progress, or the join, waits for, if one is and if it is known.
    pub(crate) fn describe_wait(&self) -> Option<String> {
        if self.error.get().is_some() {
            return None;
        }
        let running = self.context().ok().and_then(wait_report::describe_running);
        running.or_else(|| Some(self.join_wait().clone()).filter(|text| !text.is_empty()))
    }

    /// Sets the text that says for whom the join of this communicator, or of one that is made from it, waits.
    pub(crate) fn set_join_wait(&self, text: String) {
        *self.join_wait() = text;
    }

    fn join_wait(&self) -> MutexGuard<'_, String> {
        self.join_wait.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn ras(&self) -> MutexGuard<'_, Option<Arc<Service>>> {
        self.ras.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports what was made of this communicator and is left before something happens.
    pub(crate) fn report_leaks(&self, what: &str) {
        let rank = self.rank_info.get().map(|info| info.rank);
        for (finding, number, one, many) in [
            (
                Finding::LeakedWindow,
                self.windows.len(),
                "window was not deregistered",
                "windows were not deregistered",
            ),
            (
                Finding::LeakedRegistration,
                self.registrations.len(),
                "registered buffer was not deregistered",
                "registered buffers were not deregistered",
            ),
            (
                Finding::LeakedReduction,
                self.custom_reductions.len(),
                "custom reduction was not destroyed",
                "custom reductions were not destroyed",
            ),
        ] {
            if number > 0 {
                let were = if number == 1 { one } else { many };
                report::report_if_strict(
                    finding,
                    rank,
                    &format!("{number} {were} before {what}; {}", self.describe()),
                );
            }
        }
    }

    /// Reports that the process ends before this is destroyed.
    pub(crate) fn report_end(&self) {
        const END: &str = "the process exits";
        let _ = self.check_group_ended("the exit of the process");
        let text = format!("{} was not destroyed before {END}", self.describe());
        let rank = self.rank_info.get().map(|info| info.rank);
        report::report_if_strict(Finding::LeakedCommunicator, rank, &text);
        self.report_leaks(END);
        if !*STRICT {
            debug::warn(|| text);
        }
    }

    /// Cancels this rank's wait for other ranks to join.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Relaxed)
    }

    pub(crate) fn is_handle_destroyed(&self) -> bool {
        self.handle_destroyed.load(Relaxed)
    }

    pub(crate) fn mark_destroyed(&self) {
        self.handle_destroyed.store(true, Relaxed);
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Relaxed)
    }

    /// Returns the reduction, and the place of its scalar if that is to be read when the operation runs.
    pub(crate) fn reduction(
        &self,
        op: ncclRedOp_t,
        data_type: DataType,
    ) -> Result<(Reduction, Option<ReadBuf>)> {
        match Reduction::built_in(op) {
            Some(reduction) => Ok((reduction, None)),
            None => self.custom_reductions.get(op, data_type),
        }
    }
}

/// Returns an error if a peer ended the communicator, which is seen before an operation waits for that peer; with
/// `LIBNCCL_CPU_FAILURES=wait`, as in NCCL, only a wait fails.
fn check_peers(state: &SharedState) -> Result {
    if *FAILURES == Failures::Wait { state.check_timed_out() } else { state.check_abort() }
}

/// Returns the error of a call that an earlier one in progress excludes.
#[cold]
fn busy() -> Error {
    Error::argument(
        "the communicator is still busy with a call that returned ncclInProgress: poll ncclCommGetAsyncError until it \
         returns something else",
    )
}

#[cold]
fn has_failed(error: &Error) -> Error {
    let text = format!("the communicator has failed: {}", error.text);
    Error { text, ..error.clone() }
}

impl StopReason {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Revoked => "it was revoked",
            Self::Shrunk => "it was shrunk with NCCL_SHRINK_ABORT",
        }
    }
}

/// A thread's stay in a communicator.
#[derive(Debug)]
pub(crate) struct Entered<'a>(&'a Communicator);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.is_entered.store(false, Release);
    }
}

impl Drop for RankInfo {
    /// Departs: a rank whose communicator is gone does nothing more, however it ended.
    fn drop(&mut self) {
        self.state.depart(self.rank);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::shm::process::Process;

    /// Returns the communicators of ranks that have joined.
    pub(crate) fn communicators(ranks: usize, config: &Config) -> Vec<Arc<Communicator>> {
        let state = Arc::new(SharedState::create(&vec![Process::current().unwrap(); ranks]).unwrap().0);
        let id = UniqueId::generate().unwrap();
        let join = |rank| {
            let communicator = Communicator::new(0, None, config.clone());
            communicator.join(RankInfo { state: Arc::clone(&state), rank, id }, None);
            Arc::new(communicator)
        };
        (0..ranks).map(join).collect()
    }
}
