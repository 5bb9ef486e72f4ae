//! The jobs of a communicator on streams: its operations, one job for each call or group, which run one after the other
//! in the order of the calls, whatever streams they are on.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::cuda::driver::{Driver, Event, Stream};
use crate::diag::error::Result;

/// The enqueued jobs of a communicator, and the event after the last one.
#[derive(Debug, Default)]
pub(crate) struct StreamJobs {
    counts: Mutex<Counts>,
    changed: Condvar,
    /// The end of the last job, for which the next one waits.
    last: Mutex<Option<Event>>,
}

#[derive(Debug, Default)]
struct Counts {
    /// The number of jobs that have not ended.
    enqueued: usize,
    /// The number of them that have begun, one at most.
    running: usize,
    /// The number of the last call in a job.
    last_call: u64,
}

/// A job that has begun, until this is dropped.
#[derive(Debug)]
pub(crate) struct Running<'a>(&'a StreamJobs);

impl StreamJobs {
    /// Returns the number of the first of `calls` calls, which are the next after the `begun` that the communicator has
    /// begun so far.
    pub(crate) fn number(&self, begun: u64, calls: usize) -> u64 {
        let mut counts = self.counts();
        if counts.enqueued == 0 {
            counts.last_call = begun;
        }
        let first = counts.last_call + 1;
        counts.last_call += calls as u64;
        first
    }

    /// Enqueues a job on the first of `streams` by `enqueue`: after the job before it and all that the streams have been
    /// given, and before all that they will be given. The current context is the communicator's.
    pub(crate) fn enqueue(
        &self,
        driver: &'static Driver,
        streams: &[Stream],
        enqueue: impl FnOnce(Stream) -> Result,
    ) -> Result {
        let Some((stream, others)) = streams.split_first() else { return Ok(()) };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = &*last {
            driver.wait(*stream, last)?;
        }
        for other in others {
            let before = driver.create_event()?;
            driver.record(&before, *other)?;
            driver.wait(*stream, &before)?;
        }
        if last.is_none() {
            *last = Some(driver.create_event()?);
        }
        self.counts().enqueued += 1;
        enqueue(*stream).inspect_err(|_| self.end(0))?;
        if let Some(last) = &*last {
            driver.record(last, *stream)?;
            others.iter().try_for_each(|other| driver.wait(*other, last))?;
        }
        Ok(())
    }

    /// Begins a job, on the stream's thread.
    pub(crate) fn begin(&self) -> Running<'_> {
        self.counts().running += 1;
        Running(self)
    }

    fn end(&self, running: usize) {
        let mut counts = self.counts();
        counts.running -= running;
        counts.enqueued -= 1;
        drop(counts);
        self.changed.notify_all();
    }

    /// Returns `true` if no job is enqueued or runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.counts().enqueued == 0
    }

    /// Waits until all jobs have ended.
    pub(crate) fn wait_idle(&self) {
        drop(self.changed.wait_while(self.counts(), |counts| counts.enqueued > 0));
    }

    /// Waits until no job runs. Others may be enqueued.
    pub(crate) fn wait_not_running(&self) {
        drop(self.changed.wait_while(self.counts(), |counts| counts.running > 0));
    }

    /// Destroys what CUDA has of it. Nothing is enqueued any more.
    pub(crate) fn release(&self) {
        drop(self.last.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.end(1);
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
        jobs.counts().enqueued = 1;
        assert_eq!(jobs.number(4, 1), 7, "calls 5 and 6 may not have begun");
        jobs.counts().enqueued = 0;
        assert_eq!(jobs.number(9, 1), 10, "two calls on the host since");
    }

    #[test]
    fn wait_ends_when_no_job_runs_or_none_is_enqueued() {
        let jobs = Arc::new(StreamJobs::default());
        jobs.counts().enqueued = 2;
        let running = jobs.begin();
        let (one, two) = (Arc::clone(&jobs), Arc::clone(&jobs));
        let not_running = thread::spawn(move || one.wait_not_running());
        let idle = thread::spawn(move || two.wait_idle());
        assert!(!jobs.is_idle());
        drop(running);
        not_running.join().unwrap();
        assert!(!idle.is_finished(), "one is enqueued");
        drop(jobs.begin());
        idle.join().unwrap();
        assert!(jobs.is_idle());
    }
}
