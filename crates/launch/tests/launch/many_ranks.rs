//! The exchange of 1,024 ranks in one process: 1,023 threads connect to the first.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use libnccl_launch::Launch;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::rank_process::{free_port, manual};

const RANKS: usize = 1_024;

/// The project's limit is 2 s on two idle cores, but this test runs concurrently with others.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn thousand_ranks_exchange_within_the_limit() {
    // Each connection has two ends in this process; many shells allow 1,024 files.
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).unwrap();
    let port = free_port();
    let barrier = Barrier::new(RANKS + 1);
    let (ids, elapsed) = thread::scope(|scope| {
        let start = |rank| {
            let barrier = &barrier;
            let ready = move || {
                let launch = Launch::from_variables(manual(rank, RANKS, port)).unwrap();
                let (launch, nccl) = (launch.timeout(Duration::from_secs(60)), libnccl_cpu::nccl());
                barrier.wait();
                launch.unique_id(&nccl).unwrap()
            };
            thread::Builder::new().stack_size(128 << 10).spawn_scoped(scope, ready).unwrap()
        };
        let ranks: Vec<_> = (0..RANKS).map(start).collect();
        barrier.wait();
        let started = Instant::now();
        let ids: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        (ids, started.elapsed())
    });
    assert!(ids.iter().all(|id| *id == ids[0]));
    println!("{RANKS} ranks exchanged an id in {} ms", elapsed.as_millis());
    assert!(elapsed < LIMIT, "{elapsed:?}");
}
