//! The smallest executor, which shows that futures need no other.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// A limit for futures that are woken, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, which sleeps until the future wakes it.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        let start = Instant::now();
        thread::park_timeout(PATIENCE);
        assert!(start.elapsed() < PATIENCE, "the future does not wake its task");
    }
}

/// Polls a future once, for a task that nobody wakes.
pub fn poll<T>(future: &mut Pin<Box<impl Future<Output = T> + ?Sized>>) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits for all futures at the same time, on one task.
pub async fn join_all<T>(futures: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut values: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, value) in futures.iter_mut().zip(&mut values).filter(|(_, value)| value.is_none()) {
            if let Poll::Ready(ready) = future.as_mut().poll(context) {
                *value = Some(ready);
            }
        }
        if values.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    values.into_iter().flatten().collect()
}
