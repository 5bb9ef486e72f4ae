//! Runs operations together on the calling thread until all have ended.
//!
//! Operations wait by being polled: what they wait for is memory that another rank writes.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake};
use std::time::{Duration, Instant};

use crate::failure::Result;

pub(crate) type Operation = Pin<Box<dyn Future<Output = Result>>>;

/// How long nothing may happen before someone looks after the other ranks.
const PATROL: Duration = Duration::from_millis(50);

/// Runs each lane's operations one after another and the lanes side by side; the first failure is the result,
/// but everything runs. Calls `idle` every now and then while nothing happens.
pub(crate) fn run(mut lanes: Vec<VecDeque<Operation>>, mut idle: impl FnMut()) -> Result {
    let activity = Arc::new(Activity(AtomicBool::new(false)));
    let waker = Arc::clone(&activity).into();
    let mut context = Context::from_waker(&waker);
    let mut patience = Patience::new();
    let mut result = Ok(());
    loop {
        lanes.retain_mut(|lane| {
            while let Some(operation) = lane.front_mut() {
                let Poll::Ready(outcome) = operation.as_mut().poll(&mut context) else { return true };
                result = std::mem::replace(&mut result, Ok(())).and(outcome);
                lane.pop_front();
            }
            false
        });
        if lanes.is_empty() {
            return result;
        }
        if activity.0.swap(false, Relaxed) {
            patience = Patience::new();
        } else if patience.pause() {
            idle();
        }
    }
}

/// Whether any operation got further: it wakes its waker when it does.
struct Activity(AtomicBool);

impl Wake for Activity {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

/// Waits for other ranks, first without giving up the processor, later so that they can have it.
struct Patience {
    turns: u32,
    patrolled: Option<Instant>,
}

impl Patience {
    const SPIN: u32 = 50;
    const YIELD: u32 = 150;

    fn new() -> Self {
        Self { turns: 0, patrolled: None }
    }

    /// Pauses, and says whether a patrol is due.
    fn pause(&mut self) -> bool {
        self.turns = self.turns.saturating_add(1);
        if self.turns <= Self::SPIN {
            std::hint::spin_loop();
            return false;
        }
        if self.turns <= Self::YIELD {
            std::thread::yield_now();
            return false;
        }
        let doublings = ((self.turns - Self::YIELD) / 8).min(5);
        std::thread::sleep(Duration::from_micros(32 << doublings));
        let now = Instant::now();
        let due = now - *self.patrolled.get_or_insert(now) >= PATROL;
        if due {
            self.patrolled = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;
    use std::cell::RefCell;
    use std::future::poll_fn;
    use std::rc::Rc;

    /// Notes `name` after `polls` polls.
    fn after(polls: u32, name: &'static str, log: &Rc<RefCell<Vec<&'static str>>>) -> Operation {
        let (log, mut left) = (Rc::clone(log), polls);
        Box::pin(async move {
            poll_fn(|_| {
                left -= 1;
                if left == 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            log.borrow_mut().push(name);
            if name == "bad" { Err(Failure::usage(name)) } else { Ok(()) }
        })
    }

    #[test]
    fn a_lane_is_sequential_and_lanes_are_concurrent() {
        let log = Rc::default();
        let lanes = vec![
            VecDeque::from([after(3, "first", &log), after(1, "second", &log)]),
            VecDeque::from([after(1, "beside", &log)]),
        ];
        run(lanes, || ()).unwrap();
        assert_eq!(*log.borrow(), ["beside", "first", "second"]);
    }

    #[test]
    fn a_failure_is_the_result_and_the_rest_still_runs() {
        let log = Rc::default();
        let lane = VecDeque::from([after(1, "bad", &log), after(1, "good", &log)]);
        assert_eq!(run(vec![lane], || ()).unwrap_err().text, "bad");
        assert_eq!(*log.borrow(), ["bad", "good"]);
    }

    #[test]
    fn an_idle_run_patrols() {
        let patrols = Rc::new(RefCell::new(0));
        let seen = Rc::clone(&patrols);
        let operation: Operation =
            Box::pin(poll_fn(move |_| if *seen.borrow() < 2 { Poll::Pending } else { Poll::Ready(Ok(())) }));
        run(vec![VecDeque::from([operation])], || *patrols.borrow_mut() += 1).unwrap();
    }
}
