//! Tasks of other threads with a rank's communicators, at a time that no rank chooses.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use libnccl::communicator::AbortHandle;

/// A task of another thread.
struct Errand {
    delay: Duration,
    task: Box<dyn FnOnce() + Send>,
}

/// The threads that run errands, each one after the other.
#[derive(Clone)]
pub(crate) struct Errands {
    /// Of those that are due within milliseconds.
    slow: Sender<Errand>,
    /// Of those that are due at a point of a call that is about to begin.
    fast: Sender<Errand>,
}

impl Errands {
    /// Starts the threads, which end when this and its clones are dropped.
    pub(crate) fn start<'scope>(scope: &'scope Scope<'scope, '_>) -> Self {
        let start = |pause: fn(Duration)| {
            let (sender, errands) = channel();
            scope.spawn(move || run(errands, pause));
            sender
        };
        Self { slow: start(thread::sleep), fast: start(spin) }
    }

    /// Aborts soon.
    pub(crate) fn abort(&self, handle: AbortHandle, delay: Duration) {
        self.send(&self.slow, delay, move || drop(handle.abort()));
    }

    /// Aborts within microseconds.
    pub(crate) fn abort_at_once(&self, handle: AbortHandle, delay: Duration) {
        self.send(&self.fast, delay, move || drop(handle.abort()));
    }

    /// Drops something.
    pub(crate) fn drop(&self, value: impl Send + 'static, delay: Duration) {
        self.send(&self.slow, delay, move || drop(value));
    }

    /// Runs something that looks at a communicator.
    pub(crate) fn look(&self, task: impl FnOnce() + Send + 'static, delay: Duration) {
        self.send(&self.slow, delay, task);
    }

    fn send(&self, to: &Sender<Errand>, delay: Duration, task: impl FnOnce() + Send + 'static) {
        // The thread has ended only if an errand has panicked, which its scope tells.
        let _ = to.send(Errand { delay, task: Box::new(task) });
    }
}

fn run(errands: Receiver<Errand>, pause: fn(Duration)) {
    for Errand { delay, task } in errands {
        pause(delay);
        task();
    }
}

fn spin(delay: Duration) {
    let start = Instant::now();
    while start.elapsed() < delay {
        std::hint::spin_loop();
    }
}
