//! A communicator: one rank's membership in a group of ranks.
//!
//! Calls that use the state shared by the ranks also [`enter`](Communicator::enter) the communicator, one thread at a time.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use cuda_common::finding::Finding;
use libnccl::sys::ncclComm_t;

use crate::bootstrap::unique_id::UniqueId;
use crate::coll::call::CallHeader;
use crate::coll::wait_report;
use crate::comm::config::Config;
use crate::comm::invalid_buffer::Running;
use crate::comm::jobs::{Jobs, StreamJobs};
use crate::comm::open_group::QueuedCalls;
use crate::comm::registry::{Children, CustomReductions, Registry};
use crate::comm::window::Window;
use crate::cuda::{Driver, driver};
use crate::diag::error::{Error, Result};
use crate::diag::settings::{self, Fault, STRICT};
use crate::diag::{debug, report};
use crate::ras::service::Service;
use crate::shm::call_context::{CallContext, PeerAccess};
use crate::shm::liveness::AbortReason;
use crate::shm::shared_state::SharedState;
use crate::sync::lock;

#[derive(Default)]
pub(crate) struct Communicator {
    pub(crate) device: i32,
    /// The CUDA driver of the buffers and streams, or `None` if the buffers are in host memory. If the process has not loaded
    /// CUDA yet, the first call that uses memory or a stream determines this, because the program may load CUDA before that call.
    driver: OnceLock<Option<&'static Driver>>,
    /// Set if a call outside a group runs its operation on host memory before it returns. Requires that the communicator is
    /// blocking and that no faults are planted, because this call path does not check for them.
    runs_at_once: bool,
    pub(crate) config: Config,
    pub(crate) rank_info: OnceLock<RankInfo>,
    pub(crate) peers: PeerAccess,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) stream_jobs: StreamJobs,
    pub(crate) queued_calls: QueuedCalls,
    pub(crate) running: Running,
    pub(crate) aborted: AtomicBool,
    pub(crate) cancelled: AtomicBool,
    pub(crate) handle_destroyed: AtomicBool,
    /// Set once `ncclCommFinalize` waits for the operations in progress.
    pub(crate) is_finalizing: AtomicBool,
    pub(crate) finalized: AtomicBool,
    pub(crate) stopped: OnceLock<StopReason>,
    pub(crate) children: Children,
    /// Describes the ranks that the join of this communicator, or of its child, waits for. Empty if no join waits.
    pub(crate) join_wait: Mutex<String>,
    /// The error that made the communicator unusable.
    pub(crate) error: OnceLock<Error>,
    /// Set while CUDA calls fail because an operation on a stream has failed.
    pub(crate) fails_cuda: Mutex<bool>,
    /// Set once a failed operation stays pending, as requested by `LIBNCCL_CPU_FAILURES=wait`.
    pub(crate) is_stalled: AtomicBool,
    /// Set once an operation has reported to the caller that the ranks made different calls.
    pub(crate) knows_mistake: AtomicBool,
    pub(crate) custom_reductions: CustomReductions,
    pub(crate) windows: Arc<Registry<Arc<Window>>>,
    pub(crate) registrations: Registry<Range<usize>>,
    pub(crate) suspended: Arc<AtomicBool>,
    /// The caller's handle, or 0 before it exists.
    pub(crate) handle: AtomicUsize,
    /// This process's RAS service, until teardown of the communicator.
    pub(crate) ras: Mutex<Option<Arc<Service>>>,
    /// Set while a thread is in a call that uses the state shared by the ranks.
    pub(crate) is_entered: AtomicBool,
}

/// A rank's membership, available once the rank has found the other ranks.
pub(crate) struct RankInfo {
    pub(crate) state: Arc<SharedState>,
    pub(crate) rank: usize,
    /// The communicator's id, with a secret that only its ranks share. Child ids are derived from it.
    pub(crate) id: UniqueId,
    /// The planted fault of the rank.
    pub(crate) fault: Option<Fault>,
}

/// The call that stopped a communicator. A stopped communicator starts no operations and can only be used to create others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopReason {
    Revoked,
    Shrunk,
}

impl StopReason {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Revoked => "it was revoked",
            Self::Shrunk => "it was shrunk with NCCL_SHRINK_ABORT",
        }
    }
}

impl Communicator {
    /// Creates a communicator that has yet to [`join`](Self::join) the other ranks.
    pub(crate) fn new(device: i32, driver: Option<&'static Driver>, config: Config) -> Self {
        Self {
            device,
            driver: driver.map_or_else(OnceLock::new, |driver| OnceLock::from(Some(driver))),
            runs_at_once: config.blocking && !settings::has_faults(),
            config,
            ..Self::default()
        }
    }

    pub(crate) fn join(&self, rank_info: RankInfo) {
        rank_info.state.set_name(rank_info.id.hash.get(), self.name(&rank_info.id));
        rank_info.state.register();
        self.running.set_rank(rank_info.rank);
        rank_info.state.set_device(rank_info.rank, self.device);
        rank_info.state.set_maker(rank_info.rank);
        *lock(&self.ras) = Service::of_process();
        let joined = self.rank_info.set(rank_info);
        debug_assert!(joined.is_ok(), "a communicator joins once");
        // The outcome of a child's initialization is queried too.
        if !self.config.blocking {
            self.jobs.set_unreported();
        }
        if self.is_aborted() {
            self.set_abort(AbortReason::Aborted);
        }
    }

    pub(crate) fn fault(&self) -> Option<Fault> {
        self.rank_info.get()?.fault
    }

    /// Sleeps for the rank's planted delay, if any. Returns an error if the communicator was aborted. The operation itself might
    /// miss the abort, because the other ranks may already have published everything that it needs.
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

    /// Returns the CUDA driver of the buffers and streams. Determined by the first call.
    pub(crate) fn driver(&self) -> Option<&'static Driver> {
        *self.driver.get_or_init(driver)
    }

    /// Returns the CUDA driver of the buffers and streams, if it has been determined.
    pub(crate) fn known_driver(&self) -> Option<&'static Driver> {
        self.driver.get().copied().flatten()
    }

    pub(crate) fn synchronize(&self) {
        if self.known_driver().is_some() {
            self.stream_jobs.wait_idle();
        }
    }

    pub(crate) fn describe(&self) -> String {
        let name = self.config_name();
        let rank = self.rank_info.get().map_or_else(String::new, |RankInfo { state, rank, id, .. }| {
            let (ranks, hash) = (state.ranks(), id.hash.get());
            format!(" rank {rank} nranks {ranks} cudaDev {} commId {hash:#x}", self.device)
        });
        format!("comm {:p}{name}{rank}", self.handle())
    }

    /// Returns the name that reports use for the communicator with this id. The log calls the hash `commId`, as NCCL's log does.
    pub(crate) fn name(&self, id: &UniqueId) -> String {
        format!("communicator {}{}", id.hash, self.config_name())
    }

    fn config_name(&self) -> String {
        self.config.name.as_ref().map_or_else(String::new, |name| format!(" ({name})"))
    }

    /// Returns the caller's handle, or NULL before it exists.
    pub(crate) fn handle(&self) -> ncclComm_t {
        ptr::without_provenance_mut(self.handle.load(Relaxed))
    }

    /// Enters the communicator on the calling thread until the result is dropped. Background jobs do not enter it.
    ///
    /// # Errors
    /// Returns an error if another thread has entered the communicator, because both threads would run the same steps. This is no
    /// error once the communicator is stopped: steps do not matter any more, and the other thread is about to leave.
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

    /// Returns the rank's membership, if the communicator has joined the other ranks.
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

    #[inline]
    pub(crate) fn context(&self) -> Result<CallContext<'_>> {
        let RankInfo { state, rank, .. } = self.rank_info()?;
        Ok(CallContext { state, rank: *rank, peers: &self.peers })
    }

    /// Describes the ranks that the call or join in progress waits for, if there is one and the ranks are known.
    pub(crate) fn describe_wait(&self) -> Option<String> {
        if self.error.get().is_some() {
            return None;
        }
        let running = self.context().ok().and_then(wait_report::describe_running);
        running.or_else(|| Some(lock(&self.join_wait).clone()).filter(|text| !text.is_empty()))
    }

    /// In strict mode, reports objects created with this communicator that still exist at the event `what`.
    pub(crate) fn report_leaks(&self, what: &str) {
        let rank = self.rank_info.get().map(|info| info.rank);
        for (finding, number, object, end) in [
            (Finding::LeakedWindow, self.windows.len(), "window", "deregistered"),
            (Finding::LeakedRegistration, self.registrations.len(), "registered buffer", "deregistered"),
            (Finding::LeakedReduction, self.custom_reductions.len(), "custom reduction", "destroyed"),
        ] {
            if number > 0 {
                let were = if number == 1 { " was" } else { "s were" };
                let text = format!("{number} {object}{were} not {end} before {what}; {}", self.describe());
                report::report_if_strict(finding, rank, &text);
            }
        }
    }

    /// Reports that the process exits before the communicator is destroyed.
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
}

/// Guard that marks a thread as inside a communicator.
pub(crate) struct Entered<'a>(&'a Communicator);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.is_entered.store(false, Release);
    }
}

impl Drop for RankInfo {
    /// Marks the rank as departed. However the communicator was torn down, the rank does nothing more.
    fn drop(&mut self) {
        self.state.depart(self.rank);
    }
}
