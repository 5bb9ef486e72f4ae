use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use crate::observer::catch_panic;

/// Wakes a task some time from now.
///
/// One thread wakes the tasks of all timers. It lives as long as there is a timer that has been set.
#[derive(Debug, Default)]
pub(super) struct Timer {
    /// The key in [`TIMERS`], once it has been set.
    key: Option<u64>,
}

struct Timers {
    next_key: u64,
    /// The time and the task of each timer that has been set; `None` if the task has been woken.
    tasks: BTreeMap<u64, Option<(Instant, Waker)>>,
    has_thread: bool,
    /// The time at which the thread wakes up by itself.
    sleeps_until: Option<Instant>,
}

static TIMERS: Mutex<Timers> =
    Mutex::new(Timers { next_key: 0, tasks: BTreeMap::new(), has_thread: false, sleeps_until: None });
/// Notified when the thread has to look at the timers.
static CHANGED: Condvar = Condvar::new();

fn timers() -> MutexGuard<'static, Timers> {
    // Nothing panics while it holds the lock.
    TIMERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Timer {
    /// Wakes the task after the `pause`, once, instead of at the time that was set before.
    pub(super) fn set(&mut self, pause: Duration, task: &Waker) {
        let (task, time) = (task.clone(), Instant::now() + pause);
        let mut timers = timers();
        let key = *self.key.get_or_insert_with(|| {
            timers.next_key += 1;
            timers.next_key
        });
        let before = timers.tasks.insert(key, Some((time, task)));
        if !timers.has_thread {
            let spawned = thread::Builder::new().name("libnccl-timer".into()).spawn(wake_tasks);
            timers.has_thread = spawned.is_ok();
        } else if timers.sleeps_until.is_none_or(|until| time < until) {
            CHANGED.notify_one();
        }
        // Without a thread, the task is woken at once, and looks again and again.
        let unserved =
            if timers.has_thread { None } else { timers.tasks.get_mut(&key).and_then(Option::take) };
        drop(timers);
        // Without the lock: dropping or waking a task may drop or set another timer.
        drop(before);
        if let Some((_, task)) = unserved {
            task.wake();
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut timers = timers();
        let removed = timers.tasks.remove(&key);
        if timers.tasks.is_empty() {
            CHANGED.notify_one();
        }
        drop(timers);
        // As above.
        drop(removed);
    }
}

/// Wakes tasks at their times until there is no timer left.
fn wake_tasks() {
    let mut timers = timers();
    while !timers.tasks.is_empty() {
        let now = Instant::now();
        let is_due = |task: &mut (Instant, Waker)| task.0 <= now;
        let due: Vec<_> = timers.tasks.values_mut().filter_map(|task| task.take_if(is_due)).collect();
        if !due.is_empty() {
            drop(timers);
            // A panic in an executor is its own, and does not concern the tasks of others.
            for (_, task) in due {
                let _ = catch_panic(|| task.wake());
            }
            timers = self::timers();
            continue;
        }
        let next = timers.tasks.values().flatten().map(|(time, _)| *time).min();
        timers.sleeps_until = next;
        timers = match next {
            Some(next) => {
                let waited = CHANGED.wait_timeout(timers, next.saturating_duration_since(now));
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => CHANGED.wait(timers).unwrap_or_else(PoisonError::into_inner),
        };
    }
    timers.has_thread = false;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Sender, channel};
    use std::task::{Wake, Waker};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{Timer, timers};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A task that says when it is woken.
    struct Task(Sender<Instant>);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(Instant::now());
        }
    }

    /// A task whose executor panics, with a payload whose drop panics.
    struct Panicking;

    impl Wake for Panicking {
        fn wake(self: Arc<Self>) {
            std::panic::panic_any(Panicking);
        }
    }

    impl Drop for Panicking {
        fn drop(&mut self) {
            if !thread::panicking() {
                panic!("the payload of a panic panics, as this test wants");
            }
        }
    }

    /// A task that owns a timer, as a task owns its futures.
    struct Owner(#[expect(dead_code, reason = "dropped")] Timer);

    impl Wake for Owner {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn earlier_timer_is_not_held_up_by_a_later_one() {
        let (woken, times) = channel();
        let (mut late, mut early) = (Timer::default(), Timer::default());
        late.set(PATIENCE, Waker::noop());
        thread::sleep(Duration::from_millis(20));
        early.set(Duration::from_millis(1), &Arc::new(Task(woken)).into());
        times.recv_timeout(PATIENCE / 2).unwrap();
    }

    #[test]
    fn panic_of_an_executor_does_not_end_the_thread() {
        let (woken, times) = channel();
        let (mut first, mut second) = (Timer::default(), Timer::default());
        first.set(Duration::ZERO, &Arc::new(Panicking).into());
        second.set(Duration::from_millis(5), &Arc::new(Task(woken)).into());
        times.recv_timeout(PATIENCE).unwrap();
    }

    #[test]
    fn timer_dropped_with_a_task_that_owns_another_returns() {
        let mut inner = Timer::default();
        inner.set(PATIENCE, Waker::noop());
        let mut outer = Timer::default();
        outer.set(PATIENCE, &Arc::new(Owner(inner)).into());
        outer.set(PATIENCE, Waker::noop());
        let mut inner = Timer::default();
        inner.set(PATIENCE, Waker::noop());
        outer.set(PATIENCE, &Arc::new(Owner(inner)).into());
        drop(outer);
        assert!(timers().next_key > 0);
    }
}
