//! Futures, polled in ways in which no executor would.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use libnccl_test_support::executor::{block_on, poll};

use crate::buffer::panic_twice_on_purpose;
use crate::kind::Kind;
use crate::random::Random;
use crate::usage::HAS_FORGOTTEN;

/// The end of a future.
pub(crate) enum Driven<T> {
    Ready(T),
    /// It was dropped before it was ready.
    Dropped,
    /// It was forgotten before it was ready.
    Forgotten,
}

/// A waker that panics.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic_twice_on_purpose();
    }
}

/// Makes a future, and polls it to its end or not.
pub(crate) fn drive<T: Send>(random: &mut Random, future: impl Future<Output = T> + Send) -> Driven<T> {
    let mut future: Pin<Box<dyn Future<Output = T> + Send + '_>> = Box::pin(future);
    if Kind::PanickingWaker.is_on() && random.once_in(10) {
        let waker = Waker::from(Arc::new(Panics));
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Driven::Ready(value);
        }
        thread::sleep(Duration::from_micros(500));
    }
    // Between none, and more than it takes.
    let polls = match random.below(4) {
        0 => 0,
        1 => random.below(3),
        _ => random.below(400),
    };
    for _ in 0..polls {
        if let Poll::Ready(value) = poll(&mut future) {
            return Driven::Ready(value);
        }
    }
    match random.below(6) {
        0 if Kind::DropFuture.is_on() => {
            drop(future);
            Driven::Dropped
        }
        1 if Kind::ForgetFuture.is_on() => {
            std::mem::forget(future);
            HAS_FORGOTTEN.store(true, Relaxed);
            Driven::Forgotten
        }
        2 => Driven::Ready(thread::scope(|scope| scope.spawn(|| block_on(future)).join()).unwrap()),
        3 => {
            // Another task has it meanwhile, which is gone before the future is ready.
            let first = thread::scope(|scope| scope.spawn(|| poll(&mut future)).join()).unwrap();
            match first {
                Poll::Ready(value) => Driven::Ready(value),
                Poll::Pending => Driven::Ready(block_on(future)),
            }
        }
        _ => Driven::Ready(block_on(future)),
    }
}
