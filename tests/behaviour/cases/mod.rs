//! The cases, by what they need.

mod anywhere;
mod arguments;
mod collectives;
mod device;
mod groups;
mod lifecycle;
mod parameters;

use std::path::Path;

use libnccl::{Communicator, MemorySpace, Nccl};

pub(crate) type Case = (&'static str, fn(&Nccl));

/// A function's name and itself.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(crate) const CASES: &[super::Case] = &[$((stringify!($name), $name)),*];
    };
}
use cases;

/// Everything, on an implementation that works on host memory; without a GPU the real library can do only what
/// needs no communicator.
pub(crate) fn for_implementation(nccl: &Nccl) -> Vec<Case> {
    let mut cases = [anywhere::CASES, parameters::CASES].concat();
    #[cfg(feature = "device-api")]
    cases.extend(device::CASES);
    match nccl.memory_space() {
        MemorySpace::Host => {
            for more in [arguments::CASES, collectives::CASES, groups::CASES, lifecycle::CASES] {
                cases.extend(more);
            }
        }
        _ if Path::new("/dev/nvidiactl").exists() => {}
        _ => cases.extend(anywhere::WITHOUT_A_GPU),
    }
    cases
}

/// Runs `rank` on as many threads, each with its communicator; the results in the order of the ranks.
pub(crate) fn on_threads<R: Send>(
    nccl: &Nccl,
    size: usize,
    rank: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let id = nccl.unique_id().unwrap();
    std::thread::scope(|scope| {
        let start = |number| {
            let rank = &rank;
            let id = &id;
            scope.spawn(move || rank(nccl.init_rank(size, number, id).unwrap()))
        };
        let threads: Vec<_> = (0..size).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Communicators of one thread.
pub(crate) fn of_one_thread(nccl: &Nccl, size: usize) -> Vec<Communicator> {
    let devices: Vec<i32> = (0..).take(size).collect();
    nccl.init_all(&devices).unwrap()
}
