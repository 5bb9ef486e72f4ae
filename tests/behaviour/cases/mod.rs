//! The cases, and what they share.

mod arguments;
mod collectives;
mod device;
mod element_types;
mod groups;
mod lifecycle;
mod no_communicator;
mod nonblocking;
mod one_sided;
mod options;
mod parameters;
mod recovery;

use std::path::Path;
use std::time::{Duration, Instant};

use libnccl::{Communicator, Config, Group, MemorySpace, Nccl, PendingCommunicator, ReduceOp, StreamRef};

pub(crate) type Case = (&'static str, fn(&Nccl));

/// Lists functions with their names.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(crate) const CASES: &[super::Case] = &[$((stringify!($name), $name)),*];
    };
}
use cases;

/// The cases that need communicators of host memory.
const ON_HOST_MEMORY: &[&[Case]] = &[
    arguments::CASES,
    collectives::CASES,
    element_types::CASES,
    groups::CASES,
    lifecycle::CASES,
    nonblocking::CASES,
    one_sided::CASES,
    options::CASES,
    recovery::CASES,
];

/// The cases that run with an implementation: all if it works on host memory, otherwise those that need no
/// communicator.
pub(crate) struct Selection {
    pub(crate) run: Vec<Case>,
    pub(crate) skipped: Vec<Case>,
}

impl Selection {
    pub(crate) fn of(nccl: &Nccl) -> Self {
        let mut run = [no_communicator::CASES, parameters::CASES].concat();
        #[cfg(feature = "device-api")]
        run.extend(device::CASES);
        let on_host_memory = ON_HOST_MEMORY.concat();
        if nccl.memory_space() == MemorySpace::Host {
            run.extend(on_host_memory);
            return Self { run, skipped: Vec::new() };
        }
        if !Path::new("/dev/nvidiactl").exists() {
            run.extend(no_communicator::WITHOUT_A_GPU);
        }
        Self { run, skipped: on_host_memory }
    }
}

const STREAM: StreamRef<'static> = StreamRef::DEFAULT;
/// A limit for calls that wait for nothing, on a busy machine.
const SHORT: Duration = Duration::from_secs(20);

fn within<T>(limit: Duration, what: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let value = what();
    assert!(start.elapsed() < limit, "it took {:?}", start.elapsed());
    value
}

/// Asserts that an `all_reduce` with the other ranks gives the right result.
fn assert_works(comm: &Communicator) {
    const COUNT: usize = 1000;
    let mut buffer = [comm.rank() as i32 + 3; COUNT];
    comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, STREAM).unwrap();
    assert_eq!(buffer, [(0..comm.size() as i32).map(|rank| rank + 3).sum(); COUNT]);
}

/// Runs `rank` on one thread per rank, each with its communicator, and returns the results in rank order.
pub(crate) fn on_threads<R: Send>(
    nccl: &Nccl,
    size: usize,
    rank: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    on_threads_with(nccl, size, &Config::default(), rank)
}

/// Runs `rank` as [`on_threads`] does, with options.
fn on_threads_with<R: Send>(
    nccl: &Nccl,
    size: usize,
    config: &Config,
    rank: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let id = nccl.unique_id().unwrap();
    let make = |number| nccl.init_rank_with(size, number, &id, config).unwrap();
    // Create all ranks before any of them starts to work.
    on_threads_each(on_threads_each((0..size).collect(), make), rank)
}

/// Runs `work` on a thread for each input, and returns the results in the same order.
fn on_threads_each<I: Send, R: Send>(inputs: Vec<I>, work: impl Fn(I) -> R + Sync) -> Vec<R> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = inputs.into_iter().map(|input| scope.spawn(move || work(input))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Creates all communicators of a job, for one thread.
pub(crate) fn of_one_thread(nccl: &Nccl, size: usize) -> Vec<Communicator> {
    let devices: Vec<i32> = (0..).take(size).collect();
    nccl.init_all(&devices).unwrap()
}

/// Creates all communicators of a job, for one thread, with options.
fn of_one_thread_with(nccl: &Nccl, size: usize, config: &Config) -> Vec<Communicator> {
    let id = nccl.unique_id().unwrap();
    let ranks = |g: &Group<'_, '_>| (0..size).map(|rank| g.init_rank(size, rank, &id, config)).collect();
    let pending: Vec<PendingCommunicator> = nccl.group(|g| ranks(g)).unwrap();
    pending.into_iter().map(|pending| pending.finish().unwrap()).collect()
}
