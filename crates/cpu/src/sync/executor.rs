//! Polls operations on the calling thread until all have ended.
//!
//! Operations wait for memory that another rank writes, so no waker exists: they are polled again, with increasing pauses.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::sync::backoff::{self, Backoff};

/// A heap-allocated operation of a group, which may fail with an `E`.
pub(crate) type Boxed<'a, E> = Pin<Box<dyn Future<Output = Result<(), E>> + 'a>>;

/// Runs one operation. `ranks` is the number of threads on this host that may need a CPU for it. `idle` is called periodically
/// while there is no progress, with the time since the last progress.
pub(crate) fn run_one<T>(
    operation: impl Future<Output = T>,
    ranks: usize,
    mut idle: impl FnMut(Duration),
) -> T {
    let mut operation = pin!(operation);
    let mut context = Context::from_waker(Waker::noop());
    // The operation may spin itself: no other operation waits for this thread.
    backoff::set_spin_budget(backoff::spins(ranks));
    let mut backoff = Backoff::new(0);
    loop {
        if let Poll::Ready(result) = operation.as_mut().poll(&mut context) {
            return result;
        }
        backoff.pause(true, &mut idle);
    }
}

/// Runs the operations of each queue in order, and the queues concurrently. All operations run; the first error is returned.
pub(crate) fn run<E>(
    mut queues: Vec<VecDeque<Boxed<'_, E>>>,
    ranks: usize,
    mut idle: impl FnMut(Duration),
) -> Result<(), E> {
    let mut context = Context::from_waker(Waker::noop());
    backoff::set_spin_budget(0);
    let mut backoff = Backoff::new(backoff::spins(ranks));
    let mut result = Ok(());
    loop {
        queues.retain_mut(|queue| {
            while let Some(operation) = queue.front_mut() {
                let Poll::Ready(outcome) = operation.as_mut().poll(&mut context) else { return true };
                backoff::note_progress();
                result = std::mem::replace(&mut result, Ok(())).and(outcome);
                queue.pop_front();
            }
            false
        });
        if queues.is_empty() {
            return result;
        }
        backoff.pause(queues.len() == 1, &mut idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::{Arc, Mutex};

    /// Logs `name` after `polls` polls.
    fn after(
        polls: u32,
        name: &'static str,
        log: &Arc<Mutex<Vec<&'static str>>>,
    ) -> Boxed<'static, &'static str> {
        let (log, mut left) = (Arc::clone(log), polls);
        Box::pin(async move {
            poll_fn(|_| {
                left -= 1;
                if left == 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            log.lock().unwrap().push(name);
            if name == "bad" { Err(name) } else { Ok(()) }
        })
    }

    #[test]
    fn queue_runs_in_order_and_queues_run_concurrently() {
        let log = Arc::default();
        let queues = vec![
            VecDeque::from([after(3, "first", &log), after(1, "second", &log)]),
            VecDeque::from([after(1, "concurrent", &log)]),
        ];
        run(queues, 1, |_| ()).unwrap();
        assert_eq!(*log.lock().unwrap(), ["concurrent", "first", "second"]);
    }

    #[test]
    fn failed_operation_is_the_result_and_the_rest_still_runs() {
        let log = Arc::default();
        let queue = VecDeque::from([after(1, "bad", &log), after(1, "good", &log)]);
        assert_eq!(run(vec![queue], 1, |_| ()).unwrap_err(), "bad");
        assert_eq!(*log.lock().unwrap(), ["bad", "good"]);
    }
}
