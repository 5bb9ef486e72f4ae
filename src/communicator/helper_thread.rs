use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Runs `task` on another thread and returns its result; after the `limit`, returns the time that has passed, and the
/// task goes on in the background.
///
/// If the system has no thread left, the task runs on this one, without a limit.
pub(super) fn run<R: Send + 'static>(
    limit: Duration,
    task: impl Fn() -> R + Clone + Send + 'static,
) -> Result<R, Duration> {
    let start = Instant::now();
    let (sender, receiver) = sync_channel(1);
    let spawned = thread::Builder::new().name("libnccl-end".into()).spawn({
        let task = task.clone();
        move || drop(sender.send(task()))
    });
    let Ok(helper) = spawned else { return Ok(task()) };
    match receiver.recv_timeout(limit) {
        Ok(result) => {
            // It has nothing left to do; afterwards, nothing of it is left either.
            let _ = helper.join();
            Ok(result)
        }
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(start.elapsed()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::run;

    #[test]
    fn task_within_limit_returns_result_of_other_thread() {
        let caller = thread::current().id();
        let helper = run(Duration::from_secs(60), || thread::current().id()).unwrap();
        assert_ne!(helper, caller);
    }

    #[test]
    fn task_beyond_limit_goes_on_in_background() {
        const LIMIT: Duration = Duration::from_millis(20);
        let (ended, has_ended) = channel();
        let elapsed = run(LIMIT, move || {
            thread::sleep(5 * LIMIT);
            ended.send(()).unwrap();
        });
        assert!(elapsed.unwrap_err() >= LIMIT);
        has_ended.recv_timeout(Duration::from_secs(60)).expect("the task has ended");
    }
}
