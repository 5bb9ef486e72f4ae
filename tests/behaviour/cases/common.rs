//! The form of a case, and helpers of the cases.

use std::time::{Duration, Instant};

use libnccl::communicator::{AbortHandle, Health};
use libnccl::{Communicator, Config, Error, Nccl, ReduceOp, Result, StreamRef};
use libnccl_test_support::init_in_group;

pub(crate) type Case = (&'static str, fn(&Nccl));

/// Lists functions with their names.
macro_rules! cases {
    ($($(#[$feature:meta])* $name:ident),* $(,)?) => {
        pub(crate) const CASES: &[crate::cases::common::Case] =
            &[$($(#[$feature])* (stringify!($name), $name)),*];
    };
}
pub(super) use cases;

pub(super) const STREAM: StreamRef<'static> = StreamRef::DEFAULT;
/// A limit for calls that wait for nothing, on a busy machine.
pub(super) const SHORT: Duration = Duration::from_secs(20);

pub(super) fn within<T>(limit: Duration, what: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let value = what();
    assert!(start.elapsed() < limit, "it took {:?}", start.elapsed());
    value
}

/// Waits until a communicator's owner is in a call.
pub(super) fn wait_until_busy(handle: &AbortHandle) {
    while handle.health() != Health::Busy {
        std::thread::yield_now();
    }
}

/// Asserts that an `all_reduce` with the other ranks gives the right result.
pub(super) fn assert_works(comm: &Communicator) {
    const COUNT: usize = 1000;
    let mut buffer = [comm.rank() as i32 + 3; COUNT];
    comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, STREAM).unwrap();
    assert_eq!(buffer, [(0..comm.size() as i32).map(|rank| rank + 3).sum::<i32>(); COUNT]);
}

/// Sums ones over communicators of one thread, in a group.
pub(super) fn sum_of_all(nccl: &Nccl, comms: &[Communicator]) -> Result<Vec<[i32; 50]>> {
    let mut buffers = vec![[1; 50]; comms.len()];
    nccl.group(|g| {
        let mut pairs = comms.iter().zip(&mut buffers);
        pairs.try_for_each(|(comm, buffer)| comm.all_reduce_in_place(buffer, ReduceOp::Sum, g.stream(STREAM)))
    })?;
    Ok(buffers)
}

/// Runs `rank` on one thread per rank, each with its communicator.
pub(super) fn on_threads(nccl: &Nccl, size: usize, config: &Config, rank: impl Fn(Communicator) + Sync) {
    // Create all ranks before any of them starts to work.
    let comms = of_one_thread_with(nccl, size, config);
    std::thread::scope(|scope| {
        for comm in comms {
            scope.spawn(|| rank(comm));
        }
    });
}

/// Creates all communicators of a job, for one thread.
pub(super) fn of_one_thread(nccl: &Nccl, size: usize) -> Vec<Communicator> {
    let devices: Vec<i32> = (0..).take(size).collect();
    nccl.init_all(&devices).unwrap()
}

/// Creates all communicators of a job, for one thread, with options.
pub(super) fn of_one_thread_with(nccl: &Nccl, size: usize, config: &Config) -> Vec<Communicator> {
    for _ in 0..10 {
        match init_in_group(nccl, size, config) {
            // The creation may reach a short timeout on a busy machine.
            Err(Error::Timeout { .. }) => {}
            created => return created.unwrap(),
        }
    }
    panic!("ten creations took longer than {config:?}");
}
