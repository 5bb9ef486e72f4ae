//! Jobs of a nonblocking communicator: its calls, which run in call order on the communicator's own thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::diag::error::{Error, Result};

type Work = Box<dyn FnOnce() + Send>;

/// The jobs of a communicator, and their outcome.
#[derive(Debug)]
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
#[derive(Debug)]
struct Outcome {
    result: Result,
    /// How often the outcome of the jobs in progress was discarded.
    discarded: u64,
}

/// A job, from the call until it has run. A job that is dropped without a call of [`end`](Self::end) has panicked.
#[derive(Debug)]
pub(crate) struct Job {
    jobs: Arc<Jobs>,
    is_exclusive: bool,
    result: Option<Result>,
    discarded: u64,
}

impl Jobs {
    pub(crate) fn new() -> Self {
        Self {
            number: AtomicUsize::new(0),
            is_exclusive: AtomicBool::new(false),
            outcome: Mutex::new(Outcome { result: Ok(()), discarded: 0 }),
            ended: Condvar::new(),
            is_unreported: AtomicBool::new(false),
            thread: Mutex::new(None),
        }
    }

    /// Starts the thread, unless it is running.
    pub(crate) fn start_thread(&self) -> Result {
        let mut thread = self.thread();
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
        let sent = self.thread().as_ref().and_then(|thread| thread.send(Box::new(work)).ok());
        sent.ok_or_else(|| Error::internal("the thread of a nonblocking communicator has ended"))
    }

    /// Ends the thread after it has run the queued work.
    pub(crate) fn end_thread(&self) {
        *self.thread() = None;
    }

    /// Begins a job: the communicator is busy from now on. An exclusive job creates the communicator or changes it for all later calls.
    /// During an exclusive job, no call that needs the communicator is accepted. During other jobs, operations are accepted and run after
    /// them.
    pub(crate) fn begin(self: &Arc<Self>, is_exclusive: bool) -> Job {
        let mut outcome = self.outcome();
        if self.number.fetch_add(1, Relaxed) == 0 {
            outcome.result = Ok(());
        }
        if is_exclusive {
            self.is_exclusive.store(true, Relaxed);
        }
        Job { jobs: Arc::clone(self), is_exclusive, result: None, discarded: outcome.discarded }
    }

    /// Returns whether a job has not ended.
    pub(crate) fn is_busy(&self) -> bool {
        self.number.load(Acquire) > 0
    }

    /// Returns whether an exclusive job has not ended.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.is_exclusive.load(Acquire)
    }

    /// Waits until all jobs have ended.
    pub(crate) fn wait_idle(&self) {
        drop(self.ended.wait_while(self.outcome(), |_| self.is_busy()));
    }

    /// Returns the first error of the jobs since the communicator was idle.
    pub(crate) fn result(&self) -> Result {
        self.outcome().result.clone()
    }

    /// Discards the outcome of the jobs that have begun.
    pub(crate) fn discard_result(&self) {
        let mut outcome = self.outcome();
        outcome.result = Ok(());
        outcome.discarded += 1;
    }

    /// Records that the caller has yet to query the outcome.
    pub(crate) fn set_unreported(&self) {
        self.is_unreported.store(true, Relaxed);
    }

    /// Returns whether the caller had not yet queried the outcome, and records that it has.
    pub(crate) fn take_unreported(&self) -> bool {
        self.is_unreported.swap(false, Relaxed)
    }

    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn thread(&self) -> MutexGuard<'_, Option<Sender<Work>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    pub(crate) fn end(mut self, result: Result) {
        self.result = Some(result);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let mut outcome = self.jobs.outcome();
        if self.discarded == outcome.discarded {
            let result = self.result.take().unwrap_or_else(|| Err(Error::panic()));
            outcome.result = std::mem::replace(&mut outcome.result, Ok(())).and(result);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::{self, ThreadId};

    /// Queues a job that calls `work` for its result.
    fn add(jobs: &Arc<Jobs>, is_exclusive: bool, work: impl FnOnce() -> Result + Send + 'static) {
        jobs.start_thread().unwrap();
        let job = jobs.begin(is_exclusive);
        jobs.push(move || job.end(work())).unwrap();
    }

    #[test]
    fn jobs_run_in_order_on_one_thread_and_the_first_error_is_the_result() {
        let jobs = Arc::new(Jobs::new());
        let ran: Arc<Mutex<Vec<(u32, ThreadId)>>> = Arc::default();
        let (go, wait) = mpsc::channel();
        // If the jobs became idle in between, the first error would be discarded.
        add(&jobs, false, move || {
            wait.recv().unwrap();
            Ok(())
        });
        for number in 0..4 {
            let ran = Arc::clone(&ran);
            add(&jobs, false, move || {
                ran.lock().unwrap().push((number, thread::current().id()));
                if number % 2 == 0 { Ok(()) } else { Err(Error::usage(format!("job {number}"))) }
            });
        }
        go.send(()).unwrap();
        jobs.wait_idle();
        let ran = ran.lock().unwrap();
        assert!(ran.iter().map(|(number, _)| *number).eq(0..4) && ran.iter().all(|job| job.1 == ran[0].1));
        assert!(jobs.take_unreported());
        assert_eq!(jobs.result().unwrap_err().text, "job 1");
        add(&jobs, false, || Ok(()));
        jobs.wait_idle();
        assert!(jobs.result().is_ok(), "it was idle");
    }

    #[test]
    fn job_that_panics_is_an_error_and_the_next_runs() {
        let jobs = Arc::new(Jobs::new());
        let (go, wait) = mpsc::channel();
        let (sender, receiver) = mpsc::channel();
        add(&jobs, true, move || {
            wait.recv().unwrap();
            panic!("on purpose")
        });
        add(&jobs, false, move || {
            sender.send(()).unwrap();
            Ok(())
        });
        go.send(()).unwrap();
        receiver.recv().unwrap();
        jobs.wait_idle();
        assert!(!jobs.is_exclusive());
        assert_eq!(jobs.result().unwrap_err().text, Error::panic().text);
    }

    #[test]
    fn discarded_result_of_jobs_in_progress_is_not_reported() {
        let jobs = Arc::new(Jobs::new());
        let (go, wait) = mpsc::channel();
        add(&jobs, false, move || {
            wait.recv().unwrap();
            Err(Error::usage("too late"))
        });
        jobs.discard_result();
        add(&jobs, false, || Ok(()));
        go.send(()).unwrap();
        jobs.wait_idle();
        assert!(jobs.result().is_ok());
    }
}
