//! Jobs of a communicator.
//!
//! The calls of a nonblocking communicator are jobs, which run in call order on the communicator's own thread.
//!
//! On streams, the operations of a call or group are one job. Jobs run one after the other in the order of the calls, even on
//! different streams. A job captured in a graph runs at each launch, in the order of launches and calls: the graph waits for the
//! event recorded after the previous job, and records it again.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex};

use crate::cuda::{Capture, Driver, Event, Stream};
use crate::diag::error::{Error, Result};
use crate::sync::lock;

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(crate) struct Jobs {
    number: AtomicUsize,
    is_exclusive: AtomicBool,
    outcome: Mutex<Outcome>,
    ended: Condvar,
    /// Set while the caller has not queried the outcome.
    is_unreported: AtomicBool,
    /// The channel to the thread. The thread ends when the channel is closed.
    thread: Mutex<Option<Sender<Work>>>,
}

/// The first error of the jobs since the communicator was idle.
#[derive(Default)]
struct Outcome {
    error: Option<Error>,
    /// The number of times that the outcome of the jobs in progress was discarded.
    discarded: u64,
}

/// A job, from the call until it has run. A job that is dropped without a call of [`end`](Self::end) has panicked.
pub(crate) struct Job {
    jobs: Arc<Jobs>,
    is_exclusive: bool,
    result: Option<Result>,
    discarded: u64,
}

impl Jobs {
    /// Starts the thread, unless it is running.
    pub(crate) fn start_thread(&self) -> Result {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let (sender, receiver) = mpsc::channel::<Work>();
            let run = move || {
                for work in receiver {
                    // Dropping the job records the panic.
                    let _ = catch_unwind(AssertUnwindSafe(work));
                }
            };
            let started = std::thread::Builder::new().name("libnccl-cpu".into()).spawn(run);
            started
                .map_err(|error| Error::system("a thread for nonblocking calls cannot be started", error))?;
            *thread = Some(sender);
        }
        Ok(())
    }

    /// Queues `work` on the thread, after all previously queued work. The thread must have been started.
    pub(crate) fn push(&self, work: impl FnOnce() + Send + 'static) -> Result {
        let sent = lock(&self.thread).as_ref().and_then(|thread| thread.send(Box::new(work)).ok());
        sent.ok_or_else(|| Error::internal("the thread of a nonblocking communicator has ended"))
    }

    /// Starts the thread if necessary, and runs `work` on it as a job.
    pub(crate) fn run(
        self: &Arc<Self>,
        is_exclusive: bool,
        work: impl FnOnce() -> Result + Send + 'static,
    ) -> Result {
        self.start_thread()?;
        let job = self.begin(is_exclusive);
        self.push(move || job.end(work()))
    }

    /// Ends the thread after it has run the queued work.
    pub(crate) fn end_thread(&self) {
        *lock(&self.thread) = None;
    }

    /// Begins a job: the communicator is busy from now on. An exclusive job creates the communicator or changes it for all later
    /// calls. During an exclusive job, no call that needs the communicator is accepted. During any other job, operations are
    /// accepted and run after the job.
    pub(crate) fn begin(self: &Arc<Self>, is_exclusive: bool) -> Job {
        let mut outcome = lock(&self.outcome);
        if self.number.fetch_add(1, Relaxed) == 0 {
            outcome.error = None;
        }
        if is_exclusive {
            self.is_exclusive.store(true, Relaxed);
        }
        Job { jobs: Arc::clone(self), is_exclusive, result: None, discarded: outcome.discarded }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.number.load(Acquire) > 0
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.is_exclusive.load(Acquire)
    }

    pub(crate) fn wait_idle(&self) {
        drop(self.ended.wait_while(lock(&self.outcome), |_| self.is_busy()));
    }

    /// Returns the first error of the jobs since the communicator was idle.
    pub(crate) fn result(&self) -> Result {
        lock(&self.outcome).error.clone().map_or(Ok(()), Err)
    }

    /// Discards the outcome of the jobs that have begun.
    pub(crate) fn discard_result(&self) {
        let mut outcome = lock(&self.outcome);
        outcome.error = None;
        outcome.discarded += 1;
    }

    pub(crate) fn set_unreported(&self) {
        self.is_unreported.store(true, Relaxed);
    }

    /// Returns whether the caller has not queried the outcome yet, and marks the outcome as queried.
    pub(crate) fn take_unreported(&self) -> bool {
        self.is_unreported.swap(false, Relaxed)
    }
}

impl Job {
    pub(crate) fn end(mut self, result: Result) {
        self.result = Some(result);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let mut outcome = lock(&self.jobs.outcome);
        if self.discarded == outcome.discarded {
            let result = self.result.take().unwrap_or_else(|| Err(Error::panic()));
            outcome.error = outcome.error.take().or(result.err());
            self.jobs.set_unreported();
        }
        if self.is_exclusive {
            self.jobs.is_exclusive.store(false, Release);
        }
        self.jobs.number.fetch_sub(1, Release);
        drop(outcome);
        self.jobs.ended.notify_all();
    }
}

/// The enqueued jobs of a communicator, and the event after the last job.
#[derive(Default)]
pub(crate) struct StreamJobs {
    counts: Mutex<Counts>,
    changed: Condvar,
    /// The event recorded after the last job. The next job waits for it.
    last: Mutex<Option<Arc<Event>>>,
}

#[derive(Default)]
struct Counts {
    /// The names of the jobs that have not ended, in order, without the jobs of graphs.
    enqueued: VecDeque<Arc<str>>,
    /// The number of graph jobs that have begun and not ended.
    launched: usize,
    /// The number of jobs that have begun and not ended, at most one.
    running: usize,
    last_call: u64,
    /// The names of the jobs that an abort prevented from running or completing.
    discarded: Vec<Arc<str>>,
    /// Set if nothing may run any more.
    is_released: bool,
}

/// Guard of a job that has begun. The job ends when the guard is dropped.
pub(crate) struct Running<'a> {
    jobs: &'a StreamJobs,
    capture: Capture,
}

impl StreamJobs {
    /// Reserves numbers for `calls` calls, which follow the `begun` calls of the communicator, and returns the first number.
    pub(crate) fn number(&self, begun: u64, calls: usize) -> u64 {
        let mut counts = lock(&self.counts);
        if counts.is_idle() {
            counts.last_call = begun;
        }
        let first = counts.last_call + 1;
        counts.last_call += calls as u64;
        first
    }

    /// Enqueues a job named `name` on the first of `streams` by calling `enqueue`. The job runs after the previous job and all work already
    /// on the streams, and before all later work on the streams. The current context must be the communicator's.
    pub(crate) fn enqueue(
        &self,
        driver: &'static Driver,
        streams: &[Stream],
        capture: Capture,
        name: Arc<str>,
        enqueue: impl FnOnce(Stream) -> Result,
    ) -> Result {
        let Some((stream, others)) = streams.split_first() else { return Ok(()) };
        let mut last = lock(&self.last);
        let last = match &*last {
            Some(last) => last,
            // Nothing waits for an event that was not recorded. When a graph is launched, another job may have recorded it.
            None => last.insert(Arc::new(driver.create_event()?)),
        };
        driver.wait(*stream, last, capture)?;
        for other in others {
            let before = driver.create_event()?;
            driver.record(&before, *other, None)?;
            driver.wait(*stream, &before, None)?;
        }
        if capture.is_none() {
            lock(&self.counts).enqueued.push_back(name);
            enqueue(*stream).inspect_err(|_| {
                lock(&self.counts).enqueued.pop_back();
                self.changed.notify_all();
            })?;
        } else {
            enqueue(*stream)?;
        }
        driver.record(last, *stream, capture)?;
        if !others.is_empty() {
            let after = driver.create_event()?;
            driver.record(&after, *stream, None)?;
            others.iter().try_for_each(|other| driver.wait(*other, &after, None))?;
        }
        Ok(())
    }

    /// Begins a job. Called on the thread of the stream.
    pub(crate) fn begin(&self, capture: Capture) -> Running<'_> {
        let mut counts = lock(&self.counts);
        counts.running += 1;
        if capture.is_some() {
            counts.launched += 1;
        }
        Running { jobs: self, capture }
    }

    /// Returns the name of the running job, or `None` if it belongs to a graph.
    pub(crate) fn running(&self) -> Option<Arc<str>> {
        let counts = lock(&self.counts);
        counts.enqueued.front().filter(|_| counts.launched == 0).cloned()
    }

    /// Returns the names of the jobs that an abort prevents from completing. The abort flag must be set, and no job running.
    pub(crate) fn discarded(&self) -> Vec<Arc<str>> {
        let counts = lock(&self.counts);
        counts.discarded.iter().chain(&counts.enqueued).cloned().collect()
    }

    /// Returns the event recorded after the last job. A wait for jobs must also query it, because only the event shows whether a
    /// graph was launched. The driver thereby also records what the host has waited for.
    fn last(&self) -> Option<Arc<Event>> {
        lock(&self.last).clone()
    }

    pub(crate) fn is_idle(&self) -> bool {
        lock(&self.counts).is_idle() && self.last().is_none_or(|last| last.is_over())
    }

    pub(crate) fn wait_idle(&self) {
        if let Some(last) = self.last() {
            last.synchronize();
        }
        drop(self.changed.wait_while(lock(&self.counts), |counts| !counts.is_idle()));
    }

    /// Waits until no job is running. Others may be enqueued.
    pub(crate) fn wait_not_running(&self) {
        drop(self.changed.wait_while(lock(&self.counts), |counts| counts.running > 0));
    }

    /// Destroys the CUDA objects. From now on, only graphs can enqueue jobs.
    pub(crate) fn release(&self) {
        lock(&self.counts).is_released = true;
        drop(lock(&self.last).take());
    }

    /// Returns whether [`release`](Self::release) was called. Jobs that graphs enqueue after that must not run.
    pub(crate) fn is_released(&self) -> bool {
        lock(&self.counts).is_released
    }
}

impl Counts {
    fn is_idle(&self) -> bool {
        self.enqueued.is_empty() && self.launched == 0
    }
}

impl Running<'_> {
    /// Records that an abort prevented the job with this name from completing.
    pub(crate) fn discard(&self, name: &Arc<str>) {
        lock(&self.jobs.counts).discarded.push(Arc::clone(name));
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut counts = lock(&self.jobs.counts);
        counts.running -= 1;
        if self.capture.is_none() {
            counts.enqueued.pop_front();
        } else {
            counts.launched -= 1;
        }
        drop(counts);
        self.jobs.changed.notify_all();
    }
}

#[cfg(test)]
#[path = "../../tests/unit/jobs.rs"]
mod tests;
