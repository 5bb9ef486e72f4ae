//! Models of the driver's threads, explored by [`loom`] in all interleavings:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p libnccl-cuda-driver --lib loom_models`.
//!
//! They run the real driver: its lock, the workers of streams, and the host that waits for them. A lost wake-up is a deadlock,
//! which loom reports.
#![allow(unsafe_code)]

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::callback::Callback;
use crate::config::Config;
use crate::driver::Driver;
use crate::handle::{ContextId, StreamId};
use crate::operation::Work;
use crate::scheduler::{Executor, Ordering, Point};
use crate::state::Request;

/// The context of the model.
const CONTEXT: ContextId = ContextId(1 << 40);

/// Explores a model. Limits how often loom switches threads that need not wait.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Creates a driver with a context, and two nonblocking streams.
fn driver(seed: Option<u64>) -> (&'static Driver, [StreamId; 2]) {
    let config = Config { devices: 1, seed, ..Config::from_env().expect("the defaults") };
    let driver = Box::leak(Box::new(Driver::new(config, vec![0])));
    let mut state = driver.enter();
    state.open_context(CONTEXT, 0, 0);
    let streams = [(); 2].map(|()| state.open_stream(CONTEXT, Ordering::NonBlocking, 0));
    drop(state);
    (driver, streams)
}

/// Closes a stream. If its worker does not end, the model does not end either.
fn close(driver: &Driver, stream: StreamId) {
    let mut state = driver.enter();
    state.close_stream(stream);
    driver.wake(&mut state);
}

/// A mark that an operation sets.
type Mark = Arc<OnceLock<Instant>>;

fn record(driver: &'static Driver, stream: StreamId, wait: &Point) -> (Mark, Point) {
    let mark = Mark::default();
    let request = Request::new("record", Vec::new(), Work::Record(Arc::clone(&mark)));
    let point = driver.enqueue(&mut driver.enter(), stream, wait, request).expect("the stream is open");
    (mark, point)
}

/// Enqueues a function of the program, which checks that a mark is set.
fn check(driver: &'static Driver, stream: StreamId, wait: &Point, mark: &Mark) -> Point {
    let mark = Arc::clone(mark);
    // SAFETY: any thread may read and drop the mark.
    let callback = unsafe { Callback::new(move || assert!(mark.get().is_some(), "begun too early"), None) };
    let work = Work::Call { callback, uses: Vec::new() };
    let request = Request { executor: Executor::Host, ..Request::new("check", Vec::new(), work) };
    driver.enqueue(&mut driver.enter(), stream, wait, request).expect("the stream is open")
}

#[test]
fn host_waits_for_a_stream_that_waits_for_another() {
    explore(|| {
        let (driver, [one, two]) = driver(None);
        let (mark, recorded) = record(driver, one, &Point::default());
        let checked = check(driver, two, &recorded, &mark);
        drop(driver.synchronize(driver.enter(), &checked));
        assert!(mark.get().is_some());
        assert!(recorded.is_complete());
        close(driver, one);
        close(driver, two);
    });
}

#[test]
fn stream_that_is_closed_executes_what_it_has() {
    explore(|| {
        let (driver, [one, two]) = driver(None);
        let (mark, recorded) = record(driver, one, &Point::default());
        close(driver, one);
        check(driver, two, &recorded, &mark);
        close(driver, two);
        let point = driver.enter().scheduler.point_of_context(CONTEXT);
        drop(driver.synchronize(driver.enter(), &point));
        assert!(mark.get().is_some());
    });
}

#[test]
fn host_that_waits_gives_the_turns() {
    for seed in 0..4 {
        explore(move || {
            let (driver, [one, two]) = driver(Some(seed));
            let (mark, recorded) = record(driver, one, &Point::default());
            let checked = check(driver, two, &recorded, &mark);
            drop(driver.synchronize(driver.enter(), &checked));
            close(driver, one);
            close(driver, two);
        });
    }
}

#[test]
fn two_threads_of_the_host_use_one_stream() {
    explore(|| {
        let (driver, [one, two]) = driver(None);
        let other = loom::thread::spawn(move || {
            let (mark, recorded) = record(driver, one, &Point::default());
            drop(driver.synchronize(driver.enter(), &recorded));
            assert!(mark.get().is_some());
        });
        let (mark, recorded) = record(driver, one, &Point::default());
        drop(driver.synchronize(driver.enter(), &recorded));
        assert!(mark.get().is_some());
        other.join().expect("no panic");
        close(driver, one);
        close(driver, two);
    });
}
