//! Jobs of a communicator on streams: its operations, one job for each call or group. They run one after the other in the order of the
//! calls, on any streams.
//!
//! A job captured in a graph runs at each launch, in the order of launches and calls: the graph waits for the event after the last job, and
//! records it again.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::cuda::{Capture, Driver, Event, Stream};
use crate::diag::error::Result;

/// The enqueued jobs of a communicator, and the event after the last job.
#[derive(Debug, Default)]
pub(crate) struct StreamJobs {
    counts: Mutex<Counts>,
    changed: Condvar,
    /// The event after the last job, for which the next job waits.
    last: Mutex<Option<Arc<Event>>>,
}

#[derive(Debug, Default)]
struct Counts {
    /// The names of the jobs that have not ended, in order, without the jobs of graphs.
    enqueued: VecDeque<Arc<str>>,
    /// The number of graph jobs that have begun and not ended.
    launched: usize,
    /// The number of jobs that have begun and not ended, at most one.
    running: usize,
    /// The number of the last call in a job.
    last_call: u64,
    /// The names of the jobs that an abort prevented from running or completing.
    discarded: Vec<Arc<str>>,
    /// Set if nothing may run any more.
    is_released: bool,
}

/// A job that has begun. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    jobs: &'a StreamJobs,
    capture: Capture,
}

impl StreamJobs {
    /// Returns the number of the first of `calls` calls. They follow the `begun` calls that the communicator has begun so far.
    pub(crate) fn number(&self, begun: u64, calls: usize) -> u64 {
        let mut counts = self.counts();
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
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let last = match &*last {
            Some(last) => {
                driver.wait_at_launch(*stream, last, capture)?;
                last
            }
            None => {
                let fresh = last.insert(Arc::new(driver.create_event()?));
                if capture != Capture::None {
                    // Another job may precede it when the graph is launched.
                    driver.wait_at_launch(*stream, fresh, capture)?;
                }
                fresh
            }
        };
        for other in others {
            let before = driver.create_event()?;
            driver.record(&before, *other)?;
            driver.wait(*stream, &before)?;
        }
        if capture == Capture::None {
            self.counts().enqueued.push_back(name);
            enqueue(*stream).inspect_err(|_| {
                self.counts().enqueued.pop_back();
                self.changed.notify_all();
            })?;
        } else {
            enqueue(*stream)?;
        }
        driver.record_at_launch(last, *stream, capture)?;
        if !others.is_empty() {
            let after = driver.create_event()?;
            driver.record(&after, *stream)?;
            others.iter().try_for_each(|other| driver.wait(*other, &after))?;
        }
        Ok(())
    }

    /// Begins a job, on the thread of the stream.
    pub(crate) fn begin(&self, capture: Capture) -> Running<'_> {
        let mut counts = self.counts();
        counts.running += 1;
        if capture != Capture::None {
            counts.launched += 1;
        }
        Running { jobs: self, capture }
    }

    /// Returns the name of the running job, or `None` if it belongs to a graph.
    pub(crate) fn running(&self) -> Option<Arc<str>> {
        let counts = self.counts();
        counts.enqueued.front().filter(|_| counts.launched == 0).cloned()
    }

    /// Returns the names of the jobs that an abort prevents from running or completing. The abort has been set, and no job is running.
    pub(crate) fn discarded(&self) -> Vec<Arc<str>> {
        let counts = self.counts();
        counts.discarded.iter().chain(&counts.enqueued).cloned().collect()
    }

    /// Returns the event after the last job. A wait for jobs must query it too: only the event shows whether a graph was launched, and the
    /// driver must record what the host has waited for.
    fn last(&self) -> Option<Arc<Event>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether no job is enqueued or running.
    pub(crate) fn is_idle(&self) -> bool {
        self.counts().is_idle() && self.last().is_none_or(|last| last.is_over())
    }

    /// Waits until all jobs have ended.
    pub(crate) fn wait_idle(&self) {
        if let Some(last) = self.last() {
            last.synchronize();
        }
        drop(self.changed.wait_while(self.counts(), |counts| !counts.is_idle()));
    }

    /// Waits until no job is running. Others may be enqueued.
    pub(crate) fn wait_not_running(&self) {
        drop(self.changed.wait_while(self.counts(), |counts| counts.running > 0));
    }

    /// Destroys the CUDA objects. Nothing is enqueued any more, except by graphs.
    pub(crate) fn release(&self) {
        self.counts().is_released = true;
        drop(self.last.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Returns whether only graphs can still enqueue jobs, which must not run any more.
    pub(crate) fn is_released(&self) -> bool {
        self.counts().is_released
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn is_idle(&self) -> bool {
        self.enqueued.is_empty() && self.launched == 0
    }
}

impl Running<'_> {
    /// Records that an abort prevented the job, which has this name, from completing.
    pub(crate) fn discard(&self, name: &Arc<str>) {
        self.jobs.counts().discarded.push(Arc::clone(name));
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut counts = self.jobs.counts();
        counts.running -= 1;
        if self.capture == Capture::None {
            counts.enqueued.pop_front();
        } else {
            counts.launched -= 1;
        }
        drop(counts);
        self.jobs.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn calls_are_numbered_on_from_those_that_have_begun_or_are_enqueued() {
        let jobs = StreamJobs::default();
        assert_eq!(jobs.number(4, 2), 5);
        jobs.counts().enqueued.push_back("one".into());
        assert_eq!(jobs.number(4, 1), 7, "calls 5 and 6 may not have begun");
        jobs.counts().enqueued.clear();
        assert_eq!(jobs.number(9, 1), 10, "two calls on the host since");
    }

    #[test]
    fn wait_ends_when_no_job_runs_or_none_is_enqueued() {
        let jobs = Arc::new(StreamJobs::default());
        jobs.counts().enqueued.extend(["one".into(), "two".into()]);
        let running = jobs.begin(Capture::None);
        let (one, two) = (Arc::clone(&jobs), Arc::clone(&jobs));
        let not_running = thread::spawn(move || one.wait_not_running());
        let idle = thread::spawn(move || two.wait_idle());
        assert!(!jobs.is_idle());
        drop(running);
        not_running.join().unwrap();
        assert!(!idle.is_finished(), "one is enqueued");
        assert_eq!(jobs.discarded(), ["two".into()]);
        drop(jobs.begin(Capture::None));
        idle.join().unwrap();
        assert!(jobs.is_idle());
    }

    #[test]
    fn job_of_a_graph_counts_while_it_runs() {
        let jobs = StreamJobs::default();
        for _launch in 0..2 {
            assert!(jobs.is_idle());
            let running = jobs.begin(Capture::Graph(1));
            assert!(!jobs.is_idle());
            drop(running);
        }
        jobs.wait_idle();
    }
}
