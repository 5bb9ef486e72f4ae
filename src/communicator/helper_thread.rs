use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

/// Runs a task on another thread, or on this one if the system has no thread left. Returns `None` after the `limit`; the task
/// then goes on.
pub(super) fn run_on_helper_thread<R: Send + 'static>(
    limit: Duration,
    task: impl Fn() -> R + Clone + Send + 'static,
) -> Option<R> {
    let (sender, result) = sync_channel(1);
    let thread = thread::Builder::new().name("libnccl-end".into()).spawn({
        let (task, sender) = (task.clone(), sender.clone());
        move || drop(sender.send(task()))
    });
    let thread = thread.inspect_err(|_| drop(sender.send(task()))).ok();
    let result = result.recv_timeout(limit).ok()?;
    // It has nothing left to do; afterwards, nothing of it is left either.
    let _ = thread.map(thread::JoinHandle::join);
    Some(result)
}
