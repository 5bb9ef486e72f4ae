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
