//! Models of threads that use and tear down a communicator, explored by [`loom`] in all interleavings:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p libnccl --no-default-features --features dlopen --lib loom_models`.
//!
//! They run the real [`State`], with every value that the memory model lets a load return. NCCL's communicator is a cell: loom
//! reports unordered accesses, and thereby two threads in NCCL at the same time, or a thread that does not see the effects of
//! another.
#![allow(unsafe_code)]

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::state::{Left, Purpose, State};
use crate::error::Result;

/// A communicator, reduced to what its state controls.
#[derive(Default)]
struct Communicator {
    state: State,
    /// Set once it no longer exists in NCCL.
    is_freed: UnsafeCell<bool>,
    /// The number of aborts requested by other threads. (Not a loom type, as it is not part of the model.)
    requests: AtomicUsize,
    /// The number of objects whose teardown is deferred.
    deferred: AtomicUsize,
}

// SAFETY: loom checks the accesses.
unsafe impl Send for Communicator {}
// SAFETY: as above.
unsafe impl Sync for Communicator {}

impl Communicator {
    fn call(&self) {
        // SAFETY: loom checks it.
        self.is_freed.with_mut(|is_freed| assert!(unsafe { !*is_freed }, "a call after the end"));
    }

    /// Calls `ncclCommAbort` or `ncclCommDestroy`.
    fn end(&self) {
        // SAFETY: loom checks it.
        self.is_freed.with_mut(|is_freed| assert!(unsafe { !is_freed.replace(true) }, "ended twice"));
    }

    /// Leaves NCCL like the drop of a `CallGuard`.
    fn leave(&self) {
        let mut left = self.state.leave();
        while left == Left::Deferred {
            self.call();
            self.deferred.store(0, Relaxed);
            left = self.state.leave();
        }
        if left == Left::Abort {
            self.end();
        }
    }

    /// Enters NCCL, makes some calls, and leaves.
    fn work(&self, entered: Result<()>, calls: usize) {
        if entered.is_ok() {
            (0..calls).for_each(|_| self.call());
            self.leave();
        }
    }
}

/// The preemption bound with two other threads: a larger one takes hours.
const BOUND: usize = 2;

type Act = fn(&Communicator);

fn operates(comm: &Communicator) {
    comm.work(comm.state.enter("work", Purpose::Work), 1);
}

/// Two operations of a group, which holds the communicator until its end.
fn groups(comm: &Communicator) {
    comm.work(comm.state.enter("group", Purpose::Work), 2);
}

fn fails_in_group(comm: &Communicator) {
    if comm.state.enter("group", Purpose::Work).is_ok() {
        comm.call();
        comm.state.fail();
        comm.leave();
        assert!(comm.state.enter("work", Purpose::Work).is_err(), "it has failed");
    }
}

fn queries(comm: &Communicator) {
    comm.work(comm.state.enter("query", Purpose::Query), 1);
}

/// A call that is in progress, until an abort is requested, or to its timeout.
fn waits(comm: &Communicator) {
    if comm.state.enter("wait", Purpose::Work).is_err() {
        return;
    }
    comm.call();
    if !comm.state.is_abort_requested() {
        comm.call();
        if !comm.state.is_abort_requested() {
            // As `Shared::give_up`.
            ends(comm);
        }
    }
    comm.leave();
}

/// Suspends, and resumes unless it was torn down meanwhile.
fn suspends(comm: &Communicator) {
    if comm.state.enter("suspend", Purpose::Work).is_err() {
        return;
    }
    comm.call();
    comm.state.set_suspended(true);
    comm.leave();
    assert!(comm.state.enter("work", Purpose::Work).is_err(), "it is suspended");
    if comm.state.enter("resume", Purpose::WhileSuspended).is_ok() {
        comm.call();
        comm.state.set_suspended(false);
        comm.leave();
    }
}

/// A drop, `destroy` or `abort`.
fn ends(comm: &Communicator) {
    if comm.state.end() {
        comm.end();
    }
}

fn aborts(comm: &Communicator) {
    comm.requests.fetch_add(1, Relaxed);
    if comm.state.abort() {
        comm.end();
    }
}

/// A health check of a watchdog, which then aborts.
fn watches(comm: &Communicator) {
    comm.work(comm.state.enter_for_object("object"), 1);
    if !comm.state.is_ended() && comm.state.is_inside() {
        aborts(comm);
    }
}

/// The teardown of an object, which is deferred if the communicator is in use.
fn drops_an_object(comm: &Communicator) {
    if comm.state.enter_for_object("object").is_ok() {
        return comm.work(Ok(()), 1);
    }
    comm.deferred.fetch_add(1, Relaxed);
    comm.state.set_deferred();
    comm.work(comm.state.enter_for_object("object"), 0);
}

/// Explores an owner with other threads: in all interleavings, or with at most `bound` preemptions.
fn explore(owner: &'static [Act], others: &[Act], bound: Option<usize>) {
    let others = others.to_vec();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = bound;
    builder.check(move || {
        let comm = Arc::new(Communicator::default());
        let start = |other: &Act| {
            let (comm, other) = (Arc::clone(&comm), *other);
            thread::spawn(move || other(&comm))
        };
        let threads: Vec<_> = others.iter().map(start).collect();
        owner.iter().for_each(|act| act(&comm));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // SAFETY: all threads have ended.
        let is_freed = || comm.is_freed.with(|is_freed| unsafe { *is_freed });
        // A request that found the owner inside NCCL is served when the owner leaves.
        assert!(is_freed() || comm.requests.load(Relaxed) == 0, "a request was lost");
        // Deferred teardowns are run by the thread that was inside, or by the teardown of the communicator.
        assert!(is_freed() || comm.deferred.load(Relaxed) == 0, "a teardown was lost");
        ends(&comm);
        assert!(is_freed(), "never ended");
    });
}

const OTHERS: [Act; 3] = [aborts, watches, drops_an_object];

/// Explores an owner with one other thread in all interleavings, and with two in bounded ones.
fn explore_all(owner: &'static [Act]) {
    for (number, first) in OTHERS.into_iter().enumerate() {
        explore(owner, &[first], None);
        OTHERS[number..].iter().for_each(|second| explore(owner, &[first, *second], Some(BOUND)));
    }
}

#[test]
fn owner_that_operates_ends_once() {
    explore_all(&[operates]);
    explore_all(&[operates, ends]);
}

#[test]
fn owner_in_a_group_ends_once() {
    explore_all(&[groups, queries]);
    explore_all(&[fails_in_group, ends]);
}

#[test]
fn owner_that_waits_ends_once() {
    explore_all(&[waits]);
    explore_all(&[waits, ends]);
}

#[test]
fn owner_that_suspends_ends_once() {
    // With two others, or without a bound, this takes ten minutes and more.
    OTHERS.into_iter().for_each(|other| explore(&[suspends, ends], &[other], Some(2 * BOUND)));
}
