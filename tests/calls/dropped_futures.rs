//! The process after futures were dropped: all of its threads and descriptors are counted.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use libnccl::{Communicator, Config, Nccl};
use libnccl_test_support::executor::{block_on, join_all, poll};

use crate::own_process::is_own;

fn count(folder: &str) -> usize {
    fs::read_dir(folder).expect("proc is mounted").count()
}

/// Drops an initialisation, a split, a finalization and a destruction in progress, each polled or not.
fn drop_futures(nccl: &Nccl, is_polled: bool) {
    let config = Config::new();
    let id = nccl.unique_id().unwrap();
    let mut init = Box::pin(nccl.init_rank_async(2, 0, &id, &config));
    assert!(!is_polled || poll(&mut init).is_pending());
    drop(init);
    let id = nccl.unique_id().unwrap();
    let ranks = block_on(join_all([0, 1].map(|rank| nccl.init_rank_async(2, rank, &id, &config))));
    let mut ranks: Vec<Communicator> = ranks.into_iter().map(Result::unwrap).collect();
    let mut split = Box::pin(ranks[0].split_async(Some(0), 0, &config));
    assert!(!is_polled || poll(&mut split).is_pending());
    drop(split);
    let id = nccl.unique_id().unwrap();
    let ranks = block_on(join_all([0, 1].map(|rank| nccl.init_rank_async(2, rank, &id, &config))));
    let [first, second] = <[_; 2]>::try_from(ranks).expect("two ranks").map(Result::unwrap);
    let mut finalized = Box::pin(first.finalize_async());
    let mut destroyed = Box::pin(second.destroy_async());
    if is_polled {
        let _ = (poll(&mut finalized), poll(&mut destroyed));
    }
    drop((finalized, destroyed));
}

#[test]
fn dropped_futures_leave_no_threads_and_no_descriptors() {
    if !is_own(module_path!(), "dropped_futures_leave_no_threads_and_no_descriptors") {
        return;
    }
    let nccl = libnccl_cpu::nccl();
    // What the process keeps.
    drop_futures(&nccl, true);
    thread::sleep(Duration::from_millis(100));
    let (threads, descriptors) = (count("/proc/self/task"), count("/proc/self/fd"));
    for round in 0..20 {
        drop_futures(&nccl, round % 2 == 0);
    }
    let start = Instant::now();
    while (count("/proc/self/task"), count("/proc/self/fd")) != (threads, descriptors) {
        let now = (count("/proc/self/task"), count("/proc/self/fd"));
        assert!(start.elapsed() < Duration::from_secs(10), "{now:?}, before {:?}", (threads, descriptors));
        thread::sleep(Duration::from_millis(10));
    }
    let names: Vec<String> = fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .collect();
    assert!(!names.iter().any(|name| name.starts_with("libnccl-timer")), "{names:?}");
}
