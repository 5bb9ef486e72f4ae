//! Access to other ranks' memory, and waiting until no rank accesses this rank's memory.
//!
//! A process that is stopped during an access (by a signal, a debugger or a frozen cgroup) may never finish it. Memory that it
//! has mapped is then taken back: see [`mem_alloc::take_back`].
#![cfg_attr(test, allow(unsafe_code))]

use std::future::poll_fn;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::task::Poll;
use std::time::{Duration, Instant};

use cuda_common::finding::Finding;

use crate::diag::error::{Error, Result};
use crate::diag::report;
use crate::diag::settings::WARN_AFTER;
use crate::shm::buffer::ReadBuf;
use crate::shm::layout::{ACCESSES, WINDOWS};
use crate::shm::liveness::AbortReason;
use crate::shm::mem_alloc;
use crate::shm::shared_state::SharedState;
use crate::sync::primitive::{AtomicU64, LOOM, fence};

/// Added to a rank's word when an access ends. The lower half counts current accesses, the upper half those that have ended.
const ENDED: u64 = (1 << 32) - 1;

/// A rank's window, as other ranks identify it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WindowId {
    /// The index of the window's word among the rank's window words.
    pub(crate) index: usize,
    /// The word's value while the window is open, unique among the rank's windows.
    pub(crate) serial: u64,
}

/// How often a rank checks that a rank accessing its memory is still running.
const LIVENESS_INTERVAL: Duration = if LOOM { Duration::MAX } else { Duration::from_millis(10) };

/// How long to wait before taking memory back from a process that does not seem to be stopped. A process in a frozen cgroup
/// appears to be sleeping.
const PATIENCE: Duration = Duration::from_secs(1);

const RETRY: Duration = Duration::from_secs(1);

/// A rank's memory that other ranks may access until the rank reclaims it.
#[derive(Clone, Copy)]
pub(crate) struct Exposed<'a> {
    pub(crate) buffers: &'a [ReadBuf],
    /// The maximum number of windows that contain the memory.
    pub(crate) windows: usize,
}

impl Exposed<'_> {
    fn take_back(&self) -> Result {
        let take = |buffer: &ReadBuf| mem_alloc::take_back(buffer.start(), buffer.length(), self.windows);
        self.buffers.iter().try_for_each(take)
    }
}

/// RAII guard of a rank's access to other ranks' memory.
pub(crate) struct AccessGuard<'a>(&'a AtomicU64);

impl Drop for AccessGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(ENDED, Release);
    }
}

impl SharedState {
    /// Begins an access by `rank` to other ranks' user buffers. The access ends when the guard is dropped.
    ///
    /// The accessor sets its flag, then checks for abort; the aborter sets abort, then checks for accessors. `SeqCst` fences
    /// ensure that at least one of them observes the other.
    pub(crate) fn begin_access(&self, rank: usize) -> Result<AccessGuard<'_>> {
        let access = AccessGuard(&self.control(rank)[ACCESSES]);
        access.0.fetch_add(1, Relaxed);
        fence(SeqCst);
        self.check_abort()?;
        Ok(access)
    }

    /// Cleans up after an operation of `rank` that failed after publishing its buffers: sets the abort flag and waits until no
    /// other rank accesses `exposed`, which then belongs to the caller again.
    pub(crate) async fn quiesce(&self, rank: usize, exposed: Exposed<'_>) {
        self.set_abort(rank, AbortReason::Failed);
        self.wait_for_accesses(rank, exposed).await;
    }

    /// Opens a window of `rank`, or returns `None` if it already has [`WINDOWS`] windows.
    pub(crate) fn open_window(&self, rank: usize) -> Option<WindowId> {
        static LAST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let serial = LAST.fetch_add(1, Relaxed) + 1;
        let open =
            |index: &usize| self.window(rank, *index).compare_exchange(0, serial, Release, Relaxed).is_ok();
        (0..WINDOWS).find(open).map(|index| WindowId { index, serial })
    }

    /// Returns `true` if a window of `rank` is open. While an [`AccessGuard`] is held, the window's memory can then be accessed.
    pub(crate) fn is_window_open(&self, rank: usize, window: WindowId) -> bool {
        window.index < WINDOWS && self.window(rank, window.index).load(Acquire) == window.serial
    }

    /// Closes a window of `rank` and waits until no other rank accesses its memory, `exposed`, which then belongs to the caller
    /// again.
    ///
    /// The accessor sets its flag, then checks that the window is open; the owner closes the window, then checks for accessors,
    /// as with the abort flag.
    pub(crate) async fn close_window(&self, rank: usize, window: WindowId, exposed: Exposed<'_>) {
        self.window(rank, window.index).store(0, Relaxed);
        self.wait_for_accesses(rank, exposed).await;
    }

    /// Waits until all accesses that other ranks have already begun have ended or can no longer reach `exposed`.
    async fn wait_for_accesses(&self, rank: usize, exposed: Exposed<'_>) {
        let split = |accesses: u64| (accesses as u32, (accesses >> 32) as u32);
        fence(SeqCst);
        let (begin, mut is_taken, mut tried, mut is_reported) = (Instant::now(), false, None, false);
        for other in (0..self.ranks()).filter(|other| *other != rank) {
            let accesses = &self.control(other)[ACCESSES];
            let (begun, before) = split(accesses.load(Acquire));
            let mut checked = Instant::now();
            poll_fn(|_| {
                // A rank that keeps accessing other memory must not block this wait forever.
                let (present, ended) = split(accesses.load(Acquire));
                if present == 0 || ended.wrapping_sub(before) >= begun {
                    return Poll::Ready(());
                }
                if checked.elapsed() < LIVENESS_INTERVAL {
                    return Poll::Pending;
                }
                checked = Instant::now();
                if self.death(other).is_some() {
                    return Poll::Ready(());
                }
                let (process, waited) = (self.process(other), begin.elapsed());
                if process == self.process(rank) {
                    // A thread of this process runs as long as this one.
                    return Poll::Pending;
                }
                let is_due = tried.as_ref().is_none_or(|(at, _): &(Instant, Error)| at.elapsed() >= RETRY);
                if !is_taken && is_due && (waited >= PATIENCE || process.is_stopped()) {
                    match exposed.take_back() {
                        Ok(()) => is_taken = true,
                        Err(error) => tried = Some((Instant::now(), error)),
                    }
                }
                if is_taken {
                    return Poll::Ready(());
                }
                if !is_reported && WARN_AFTER.is_some_and(|limit| waited >= limit) {
                    is_reported = true;
                    let why = tried.as_ref().map_or("", |(_, why)| &why.text);
                    report::report(Finding::LateRank, rank, &self.describe_access(rank, other, waited, why));
                }
                Poll::Pending
            })
            .await;
        }
    }

    /// Describes the wait for `other` to end an access to memory of `rank` that cannot be taken back for the reason `why`.
    #[cold]
    fn describe_access(&self, rank: usize, other: usize, waited: Duration, why: &str) -> String {
        let process = self.process(other);
        let state = process.state().map_or_else(String::new, |state| format!(", in state {state}"));
        let condition =
            process.condition().map_or_else(String::new, |condition| format!(", which {condition},"));
        format!(
            "after {:.1} s, in {}, rank {rank} of {} still waits for rank {other} (process {}{state}){condition} to end an \
             access to the memory of rank {rank}, which cannot be taken back: {why}; continue or kill that process",
            waited.as_secs_f64(),
            self.name(),
            self.ranks(),
            process.pid
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::process::Process;
    use crate::sync::executor;
    use std::process::{Child, Command};

    const NONE: Exposed<'_> = Exposed { buffers: &[], windows: 0 };

    #[test]
    fn closed_window_waits_for_accesses_that_have_begun_and_no_others() {
        let state = SharedState::create(&[Process::current().unwrap(); 2]).unwrap().0;
        let window = state.open_window(0).unwrap();
        assert!(state.is_window_open(0, window) && !state.is_window_open(1, window));
        let access = state.begin_access(1).unwrap();
        std::thread::scope(|scope| {
            let close = scope.spawn(|| executor::run_one(state.close_window(0, window, NONE), 2, |_| ()));
            while state.is_window_open(0, window) {
                std::thread::yield_now();
            }
            // By then it has read which accesses have begun.
            std::thread::sleep(Duration::from_millis(100));
            assert!(!close.is_finished(), "accessed");
            drop(access);
            // Another access begins immediately.
            let _access = state.begin_access(1).unwrap();
            close.join().unwrap();
        });
        let next = state.open_window(0).unwrap();
        assert_eq!(next.index, window.index);
        assert!(!state.is_window_open(0, window) && state.is_window_open(0, next));
        let outside = WindowId { index: WINDOWS, serial: 0 };
        assert!(!state.is_window_open(0, outside));
    }

    /// An idle process that represents another rank, optionally stopped. It is killed on drop.
    struct Other(Child);

    impl Other {
        fn new(is_stopped: bool) -> (Self, Process) {
            let other = Self(Command::new("sleep").arg("600").spawn().unwrap());
            let process = Process::from_pid(other.0.id().into()).unwrap();
            if is_stopped {
                let pid = rustix::process::Pid::from_child(&other.0);
                rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
                while !process.is_stopped() {
                    std::thread::yield_now();
                }
            }
            (other, process)
        }
    }

    impl Drop for Other {
        fn drop(&mut self) {
            // Also kills a stopped process.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Runs `quiesce` while the other rank is in an access. Returns `false` if it does not return before the other process is
    /// killed.
    fn returns(is_stopped: bool, exposed: Exposed<'_>, limit: Duration) -> bool {
        let (other, process) = Other::new(is_stopped);
        let state = SharedState::create(&[Process::current().unwrap(), process]).unwrap().0;
        // On behalf of the other process.
        let access = state.begin_access(1).unwrap();
        let begin = Instant::now();
        let (mut other, mut returned) = (Some(other), true);
        executor::run_one(state.quiesce(0, exposed), 2, |_| {
            if begin.elapsed() > limit {
                // The death of the other process ends the wait.
                (other, returned) = (None, false);
            }
        });
        drop(access);
        returned
    }

    /// Runs `test` with memory that other processes can map, and a second mapping of it.
    fn with_shared_memory(test: impl FnOnce(ReadBuf, *mut u8)) {
        const LENGTH: usize = 10_000;
        let memory = mem_alloc::allocate(LENGTH).unwrap().cast::<u8>();
        let handle = mem_alloc::find(memory, LENGTH).unwrap();
        let mapping = crate::shm::mapping::Mapping::open(&Process::current().unwrap(), handle.file).unwrap();
        // SAFETY: `LENGTH` bytes, which live until the end of this function.
        test(unsafe { ReadBuf::new(memory, LENGTH) }, mapping.start().as_ptr());
        // SAFETY: the memory is no longer used.
        unsafe { mem_alloc::free(memory.cast()) }.unwrap();
    }

    #[test]
    fn memory_is_taken_from_a_process_that_is_stopped_or_does_not_end_its_access() {
        for is_stopped in [true, false] {
            with_shared_memory(|buffer, there| {
                let exposed = Exposed { buffers: &[buffer], windows: 0 };
                assert!(returns(is_stopped, exposed, Duration::from_secs(60)), "stopped: {is_stopped}");
                // The other process now writes to the file only.
                // SAFETY: inside the mapping, and in the memory that `buffer` vouches for.
                let here = unsafe {
                    there.write_volatile(7);
                    buffer.start().read_volatile()
                };
                assert_eq!(here, 0);
            });
        }
    }

    #[test]
    fn memory_that_cannot_be_taken_back_is_waited_for() {
        let limit = PATIENCE + Duration::from_millis(500);
        with_shared_memory(|buffer, _| {
            let exposed = Exposed { buffers: &[buffer], windows: 0 };
            let _window = crate::shm::window_memory::WindowMemory::new(buffer.start(), 1);
            assert!(!returns(true, exposed, limit), "it is in a window");
            assert!(returns(true, Exposed { windows: 1, ..exposed }, Duration::from_secs(60)));
        });
        // Other processes cannot reach it at all.
        let bytes = [0_u8; 10];
        // SAFETY: `bytes` holds ten bytes.
        let private = [unsafe { ReadBuf::new(bytes.as_ptr(), 10) }];
        let exposed = Exposed { buffers: &private, windows: 0 };
        assert!(returns(true, exposed, Duration::from_secs(60)));
    }

    #[test]
    fn stopped_process_that_does_not_end_its_access_is_described() {
        let (_other, process) = Other::new(true);
        let state = SharedState::create(&[Process::current().unwrap(), process]).unwrap().0;
        let text = state.describe_access(0, 1, Duration::from_secs(10), "why");
        let expected = format!(
            "rank 0 of 2 still waits for rank 1 (process {}, in state T), which is stopped by a signal or a debugger, to end an \
             access to the memory of rank 0, which cannot be taken back: why; continue or kill that process",
            process.pid
        );
        assert!(text.starts_with("after 10.0 s, in ") && text.ends_with(&expected), "{text}");
    }
}
