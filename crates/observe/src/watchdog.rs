use std::cell::Cell;
use std::fmt;
use std::io;
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{mem, panic};

use libnccl::communicator::{AbortHandle, Health};
use libnccl::observer::{CommunicatorId, Observer, OperationStart};
use libnccl::{Communicator, Error, Result};

use crate::Recorder;

/// A thread that watches communicators of this process. It queries each communicator's asynchronous error, and detects a
/// communicator that has been in one call for longer than a limit.
///
/// It passes each finding to a callback, and takes the [`Action`] that the callback returns. It never calls NCCL with a
/// communicator while the communicator's owner is in an NCCL call, and never destroys a communicator twice. It stops when it is
/// dropped.
///
/// If the communicator has a [timeout](libnccl::Config::timeout), an abort interrupts a blocked call within about a millisecond.
/// Without a timeout, the call is not interrupted, and the communicator is aborted when the call returns. See [`AbortHandle`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use libnccl_observe::{Action, Finding, RecordExt, Watchdog};
///
/// let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
/// let watchdog = Watchdog::new(Duration::from_secs(600), |finding: &Finding| {
///     eprintln!("rank {} of {}: {}", finding.rank, finding.size, finding.cause);
///     Action::AbortAll
/// })?;
/// for comm in &comms {
///     comm.record(1000);
///     watchdog.watch(comm)?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # For users of PyTorch
/// | PyTorch's variable | counterpart |
/// |---|---|
/// | `TORCH_NCCL_ASYNC_ERROR_HANDLING` 0, 2 | [`Action::Continue`], [`Action::Abort`] |
/// | `TORCH_NCCL_ASYNC_ERROR_HANDLING` 1, 3 | the callback exits the process; with 1, it aborts all communicators first |
/// | `TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC`, 480 s | the `limit` of [`Watchdog::new`], [`Watchdog::DEFAULT_LIMIT`] |
/// | `TORCH_NCCL_TRACE_BUFFER_SIZE` | [`RecordExt::record`](crate::RecordExt::record), `LIBNCCL_RECORDER` |
/// | `TORCH_NCCL_DUMP_ON_TIMEOUT`, `TORCH_NCCL_DEBUG_INFO_TEMP_FILE` | `LIBNCCL_RECORDER_FILE` |
/// | `TORCH_NCCL_DESYNC_DEBUG` | `nccl recorder diff` |
pub struct Watchdog {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

/// A failure or a stalled call that a [`Watchdog`] has found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Finding {
    /// The identity of the communicator, if known.
    pub communicator: Option<CommunicatorId>,
    /// The number of ranks of the communicator.
    pub size: u32,
    /// The rank in the communicator.
    pub rank: u32,
    /// The failure, or the duration of the stalled call.
    pub cause: Cause,
    /// The recorder of the communicator, if it is recorded.
    pub recorder: Option<Recorder>,
    /// A handle that aborts the communicator.
    pub abort_handle: AbortHandle,
}

/// The failure or stall that a [`Watchdog`] has found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The communicator has an asynchronous error.
    Failed(Error),
    /// The communicator has been in one call, or in one group, for this time.
    Stalled(Duration),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::Stalled(time) => write!(f, "in the same call for {} ms", time.as_millis()),
        }
    }
}

/// The action that a [`Watchdog`] takes on a [`Finding`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Does nothing. A failure is not reported again; a stalled call is reported again after each further `limit`.
    Continue,
    /// Aborts the communicator of the finding.
    Abort,
    /// Aborts all communicators that the watchdog watches; see [`Watchdog::abort_all`].
    AbortAll,
}

/// The number of a communicator's last operation.
#[derive(Debug, Default)]
struct Heartbeat(AtomicU64);

impl Observer for Heartbeat {
    fn on_start(&self, start: &OperationStart<'_>) {
        self.0.store(start.number(), Relaxed);
    }
}

struct State {
    watched: Mutex<Watched>,
    /// Notified when the watchdog is dropped.
    changed: Condvar,
}

#[derive(Default)]
struct Watched {
    /// The communicators that still exist.
    communicators: Vec<AbortHandle>,
    /// The communicators that the thread has not checked yet.
    new: Vec<Entry>,
    is_over: bool,
}

/// The state that the thread keeps for a watched communicator.
struct Entry {
    handle: AbortHandle,
    communicator: Option<CommunicatorId>,
    size: u32,
    rank: u32,
    heartbeat: Arc<Heartbeat>,
    /// While the owner is in a call, the number of the last operation and the time at which it was first seen.
    seen: Option<(u64, Instant)>,
    has_failed: bool,
}

thread_local! {
    /// The state of this thread's watchdog.
    static WATCHES: Cell<*const State> = const { Cell::new(ptr::null()) };
}

impl Watchdog {
    /// A limit for [`new`](Self::new): 480 s, the default of PyTorch's heartbeat timeout.
    pub const DEFAULT_LIMIT: Duration = Duration::from_secs(480);
    /// The pause between two checks, the same as in PyTorch's watchdog.
    const PAUSE: Duration = Duration::from_millis(100);

    /// Starts a watchdog. Its thread calls `on_finding` when a communicator has failed, or has been in one call for `limit`.
    ///
    /// # Errors
    /// Returns the system's error if the thread cannot be started.
    pub fn new(
        limit: Duration,
        mut on_finding: impl FnMut(&Finding) -> Action + Send + 'static,
    ) -> io::Result<Self> {
        libnccl::internal::keep_loaded();
        let state = Arc::new(State { watched: Mutex::default(), changed: Condvar::new() });
        let pause = Self::PAUSE.min(limit / 4).max(Duration::from_millis(1));
        let thread = thread::Builder::new().name("libnccl-watchdog".into()).spawn({
            let state = Arc::clone(&state);
            move || {
                WATCHES.set(Arc::as_ptr(&state));
                state.watch(pause, limit, &mut on_finding);
            }
        })?;
        Ok(Self { state, thread: Some(thread) })
    }

    /// Watches a communicator until it is destroyed or aborted.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] if the communicator is borrowed ([`Communicator::borrow_raw`]), because its owner may destroy it
    /// at any time.
    pub fn watch(&self, communicator: &Communicator) -> Result<()> {
        if communicator.is_borrowed() {
            let problem = "other code owns the communicator, and may destroy it meanwhile".into();
            return Err(Error::InvalidUsage { call: "watch", problem });
        }
        let heartbeat = Arc::new(Heartbeat::default());
        communicator.observe(heartbeat.clone());
        let handle = communicator.abort_handle();
        // NCCL's numbers of ranks fit into an i32.
        let (size, rank) = (communicator.size() as u32, communicator.rank() as u32);
        let mut watched = self.state.lock();
        watched.communicators.push(handle.clone());
        let communicator = communicator.membership().id;
        watched.new.push(Entry {
            handle,
            communicator,
            size,
            rank,
            heartbeat,
            seen: None,
            has_failed: false,
        });
        Ok(())
    }

    /// Aborts all watched communicators. The communicators of one library are aborted in one NCCL group, so that no abort waits
    /// for another. If the owner of a communicator is in a call, the owner aborts the communicator itself; see [`AbortHandle`].
    ///
    /// # Errors
    /// Returns the errors of [`AbortHandle::abort`].
    #[doc(alias = "ncclCommAbort")]
    pub fn abort_all(&self) -> Result<()> {
        self.state.abort_all()
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Watched> {
        // Nothing panics while it holds the lock.
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the communicators until the watchdog is dropped.
    fn watch(&self, pause: Duration, limit: Duration, on_finding: &mut dyn FnMut(&Finding) -> Action) {
        let mut entries = Vec::new();
        let mut watched = self.lock();
        while !watched.is_over {
            entries.append(&mut watched.new);
            // Unlocked, because leaving a communicator's call guard may abort it, and the callback may watch another communicator.
            drop(watched);
            for finding in look(&mut entries, limit) {
                if matches!(finding.cause, Cause::Stalled(_)) {
                    finding.abort_handle.report_stall();
                }
                // A panic of the callback must not stop the thread. The payload is leaked, because its drop may panic too.
                let returned = panic::catch_unwind(panic::AssertUnwindSafe(|| on_finding(&finding)));
                let action = returned.map_err(mem::forget).unwrap_or(Action::Continue);
                // The owner of the communicator gets the error too.
                let _ = match action {
                    Action::Continue => Ok(()),
                    Action::Abort => finding.abort_handle.abort(),
                    Action::AbortAll => self.abort_all(),
                };
            }
            watched = self.lock();
            watched.communicators =
                entries.iter().chain(&watched.new).map(|entry| entry.handle.clone()).collect();
            if !watched.is_over {
                let waited = self.changed.wait_timeout(watched, pause);
                watched = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    fn abort_all(&self) -> Result<()> {
        let all = self.lock().communicators.clone();
        AbortHandle::abort_all(all)
    }
}

/// Checks each communicator, removes destroyed ones, and returns the findings.
fn look(entries: &mut Vec<Entry>, limit: Duration) -> Vec<Finding> {
    let mut findings = Vec::new();
    entries.retain_mut(|entry| {
        let health = entry.handle.health();
        let exists = health != Health::Ended;
        findings.extend(entry.look(health, limit).map(|cause| entry.finding(cause)));
        exists
    });
    findings
}

impl Entry {
    fn look(&mut self, health: Health, limit: Duration) -> Option<Cause> {
        let now = (self.heartbeat.0.load(Relaxed), Instant::now());
        let last = self.seen.take();
        match health {
            Health::Failed(error) => {
                (!mem::replace(&mut self.has_failed, true)).then_some(Cause::Failed(error))
            }
            // The owner is in a call, or in a group.
            Health::Busy => {
                let (_, since) = *self.seen.insert(last.filter(|last| last.0 == now.0).unwrap_or(now));
                let time = since.elapsed();
                let is_late = last.is_some() && time >= limit;
                self.seen.take_if(|_| is_late);
                is_late.then_some(Cause::Stalled(time))
            }
            _ => None,
        }
    }

    fn finding(&self, cause: Cause) -> Finding {
        Finding {
            communicator: self.communicator,
            size: self.size,
            rank: self.rank,
            cause,
            recorder: self.handle.observer().cloned(),
            abort_handle: self.handle.clone(),
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.state.lock().is_over = true;
        self.state.changed.notify_all();
        // The callback may own the watchdog.
        let thread = self.thread.take().filter(|_| WATCHES.get() != Arc::as_ptr(&self.state));
        // The drop of the callback may have panicked, with any payload.
        let _ = thread.map(|thread| thread.join().map_err(mem::forget));
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog").field("communicators", &self.state.lock().communicators.len()).finish()
    }
}
