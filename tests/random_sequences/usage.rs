//! The resources of this process.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// The elements of a buffer that may become a window.
pub(crate) const WINDOW: usize = 1024;

/// The number of buffers whose memory may be kept for good, with the descriptor by which other processes would map it: those
/// of windows, which safe code cannot free, as nothing proves that other ranks do not use them, and those of registrations
/// that could not be ended.
pub(crate) static KEPT: AtomicUsize = AtomicUsize::new(0);

/// The growth of the process's memory, beyond the kept buffers, that its allocator may cause.
const SLACK: usize = 32 << 20;

/// The resources that a process has at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Usage {
    threads: usize,
    descriptors: usize,
    bytes: usize,
    kept: usize,
}

impl Usage {
    /// The number of threads where nothing runs: the main thread and the test's.
    const THREADS: usize = 2;

    fn now() -> Self {
        let count = |path| std::fs::read_dir(path).map_or(0, Iterator::count);
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let resident: usize = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap();
        Self {
            threads: count("/proc/self/task"),
            descriptors: count("/proc/self/fd"),
            bytes: resident * 4096,
            kept: KEPT.load(Relaxed),
        }
    }

    /// Returns the usage as soon as no thread of a sequence is left, or after a while.
    pub(crate) fn settled() -> Self {
        let start = Instant::now();
        loop {
            let now = Self::now();
            if now.threads <= Self::THREADS || start.elapsed() > Duration::from_secs(10) {
                return now;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Fails if there is more at the `end` than kept buffers explain.
    pub(crate) fn check_end(self, end: Self) {
        let kept = end.kept - self.kept;
        assert!(end.threads <= Self::THREADS, "{end:?}: {:?}", names_of_threads());
        assert!(end.descriptors <= self.descriptors + kept, "{self:?}, then {end:?}");
        let limit = self.bytes + kept * WINDOW * size_of::<f32>() + SLACK;
        assert!(end.bytes <= limit, "{self:?}, then {end:?}");
    }
}

fn names_of_threads() -> Vec<String> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok()).collect()
}
