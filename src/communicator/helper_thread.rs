use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A thread that runs one task. After a drop of this, the task goes on.
pub(super) struct HelperThread<R> {
    result: Receiver<R>,
    /// `None` if the system had no thread left, in which case the task has run.
    thread: Option<JoinHandle<()>>,
}

impl<R: Send + 'static> HelperThread<R> {
    /// Starts the task. If the system has no thread left, the task runs on this one.
    pub(super) fn start(task: impl Fn() -> R + Clone + Send + 'static) -> Self {
        let (sender, result) = sync_channel(1);
        let thread = thread::Builder::new().name("libnccl-end".into()).spawn({
            let (task, sender) = (task.clone(), sender.clone());
            move || drop(sender.send(task()))
        });
        let thread = thread.inspect_err(|_| drop(sender.send(task()))).ok();
        Self { result, thread }
    }

    /// Waits for the result, which is returned once; `None` after the `limit`.
    pub(super) fn wait(&mut self, limit: Duration) -> Option<R> {
        let result = self.result.recv_timeout(limit).ok()?;
        // It has nothing left to do; afterwards, nothing of it is left either.
        let _ = self.thread.take().map(JoinHandle::join);
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::HelperThread;

    #[test]
    fn task_within_limit_returns_result_of_other_thread() {
        let caller = thread::current().id();
        let helper = HelperThread::start(|| thread::current().id()).wait(Duration::from_secs(60)).unwrap();
        assert_ne!(helper, caller);
    }

    #[test]
    fn task_beyond_limit_goes_on_in_background() {
        const LIMIT: Duration = Duration::from_millis(20);
        let (ended, has_ended) = channel();
        let start = Instant::now();
        let mut helper = HelperThread::start(move || {
            thread::sleep(5 * LIMIT);
            ended.send(()).unwrap();
        });
        assert!(helper.wait(LIMIT).is_none() && start.elapsed() >= LIMIT);
        drop(helper);
        has_ended.recv_timeout(Duration::from_secs(60)).expect("the task has ended");
    }
}
