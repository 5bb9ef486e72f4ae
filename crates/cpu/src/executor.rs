//! Runs operations together on the calling thread until all have ended.
//!
//! Operations wait by being polled: what they wait for is memory that another rank writes.

use std::cell::Cell;
use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::failure::Result;

pub(crate) type Operation<'a> = Pin<Box<dyn Future<Output = Result> + 'a>>;

/// How long nothing may happen before someone looks after the other ranks.
const PATROL: Duration = Duration::from_millis(50);

/// How often a rank looks for another before it gives up the processor, where there is one for each: a microsecond or
/// three.
const SPIN: u32 = 60;

/// The same where there is not.
const CROWDED: u32 = 2;

thread_local! {
    static PROGRESS: Cell<bool> = const { Cell::new(false) };
    /// How often an operation may look, all by itself, for what it waits for.
    static LOOKS: Cell<u32> = const { Cell::new(0) };
}

/// Whether what an operation waits for was `done` soon enough not to be polled for it, which takes longer than to look.
pub(crate) fn spin(done: impl Fn() -> bool) -> bool {
    (0..LOOKS.get()).any(|_| {
        let done = done();
        if !done {
            // It also keeps the processor from reading ahead what the other rank is about to write.
            std::hint::spin_loop();
        }
        done
    })
}

/// How often `ranks` that wait for each other look before they give up the processor.
fn spins(ranks: usize) -> u32 {
    static PROCESSORS: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    if ranks > *PROCESSORS { CROWDED } else { SPIN }
}

/// Says that an operation that waited got further.
pub(crate) fn progress() {
    PROGRESS.set(true);
}

/// Runs one operation. `ranks` is how many threads of this host may want a processor for it; `idle` is called
/// every now and then while nothing happens.
pub(crate) fn run_one(
    operation: impl Future<Output = Result>,
    ranks: usize,
    mut idle: impl FnMut(),
) -> Result {
    let mut operation = pin!(operation);
    let mut context = Context::from_waker(Waker::noop());
    // Nothing else is to be done meanwhile.
    LOOKS.set(spins(ranks));
    let mut patience = Patience::new(0);
    loop {
        if let Poll::Ready(result) = operation.as_mut().poll(&mut context) {
            return result;
        }
        patience.pause(&mut idle);
    }
}

/// Runs each lane's operations one after another and the lanes side by side; the first failure is the result,
/// but everything runs.
pub(crate) fn run(mut lanes: Vec<VecDeque<Operation<'_>>>, ranks: usize, mut idle: impl FnMut()) -> Result {
    let mut context = Context::from_waker(Waker::noop());
    LOOKS.set(0);
    let mut patience = Patience::new(spins(ranks));
    let mut result = Ok(());
    loop {
        lanes.retain_mut(|lane| {
            while let Some(operation) = lane.front_mut() {
                let Poll::Ready(outcome) = operation.as_mut().poll(&mut context) else { return true };
                progress();
                result = std::mem::replace(&mut result, Ok(())).and(outcome);
                lane.pop_front();
            }
            false
        });
        if lanes.is_empty() {
            return result;
        }
        patience.pause(&mut idle);
    }
}

/// Waits for other ranks, first without giving up the processor, later so that they can have it.
struct Patience {
    spin: u32,
    turns: u32,
    patrolled: Option<Instant>,
}

impl Patience {
    const YIELD: u32 = 1000;

    fn new(spin: u32) -> Self {
        Self { spin, turns: 0, patrolled: None }
    }

    fn pause(&mut self, idle: &mut impl FnMut()) {
        if PROGRESS.replace(false) {
            self.turns = 0;
        }
        self.turns = self.turns.saturating_add(1);
        if self.turns <= self.spin {
            std::hint::spin_loop();
        } else if self.turns <= self.spin + Self::YIELD {
            std::thread::yield_now();
        } else {
            self.sleep(idle);
        }
    }

    fn sleep(&mut self, idle: &mut impl FnMut()) {
        let doublings = ((self.turns - self.spin - Self::YIELD) / 8).min(5);
        std::thread::sleep(Duration::from_micros(32 << doublings));
        let now = Instant::now();
        if now - *self.patrolled.get_or_insert(now) >= PATROL {
            self.patrolled = Some(now);
            idle();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::sync::{Arc, Mutex};

    /// Notes `name` after `polls` polls.
    fn after(polls: u32, name: &'static str, log: &Arc<Mutex<Vec<&'static str>>>) -> Operation<'static> {
        let (log, mut left) = (Arc::clone(log), polls);
        Box::pin(async move {
            poll_fn(|_| {
                left -= 1;
                if left == 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            log.lock().unwrap().push(name);
            if name == "bad" { Err(Failure::usage(name)) } else { Ok(()) }
        })
    }

    #[test]
    fn a_lane_is_sequential_and_lanes_are_concurrent() {
        let log = Arc::default();
        let lanes = vec![
            VecDeque::from([after(3, "first", &log), after(1, "second", &log)]),
            VecDeque::from([after(1, "beside", &log)]),
        ];
        run(lanes, 1, || ()).unwrap();
        assert_eq!(*log.lock().unwrap(), ["beside", "first", "second"]);
    }

    #[test]
    fn a_failure_is_the_result_and_the_rest_still_runs() {
        let log = Arc::default();
        let lane = VecDeque::from([after(1, "bad", &log), after(1, "good", &log)]);
        assert_eq!(run(vec![lane], 1, || ()).unwrap_err().text, "bad");
        assert_eq!(*log.lock().unwrap(), ["bad", "good"]);
    }

    #[test]
    fn an_idle_run_patrols() {
        let patrols = AtomicU32::new(0);
        let twice = poll_fn(|_| if patrols.load(Relaxed) < 2 { Poll::Pending } else { Poll::Ready(Ok(())) });
        run_one(twice, 1, || {
            patrols.fetch_add(1, Relaxed);
        })
        .unwrap();
    }
}
