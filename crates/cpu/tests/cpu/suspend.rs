//! Suspending and resuming communicators, and their memory statistics.
#![allow(unsafe_code)]

use std::ptr;

use crate::common::processes::{self, RankProcess};
use crate::common::watchdog::Watchdog;
use crate::common::{
    self, ARGUMENT, Comm, I32, Mode, OK, STREAM, USAGE, all_reduce, alone, assert_last_error, init,
    last_error, together,
};
use libnccl::sys::{ncclComm_t, ncclCommMemStat_t, ncclResult_t};

/// Returns the memory statistics: suspendable, suspended, persistent, total.
fn memory(comm: ncclComm_t) -> [u64; 4] {
    std::array::from_fn(|stat| {
        let mut value = u64::MAX;
        assert_eq!(nccl!(ncclCommMemStats(comm, ncclCommMemStat_t(stat as u32), &mut value)), OK);
        value
    })
}

fn suspend(comm: ncclComm_t) -> ncclResult_t {
    nccl!(ncclCommSuspend(comm, 1))
}

fn resume(comm: ncclComm_t) -> ncclResult_t {
    nccl!(ncclCommResume(comm))
}

/// Reduces, suspends and resumes, three times.
fn cycle(rank: usize, ranks: usize, comm: ncclComm_t) {
    for round in 0..3 {
        for count in [1, 1000, 300_000] {
            let mut buffer = vec![(rank + round) as f32; count];
            assert_eq!(all_reduce(&mut buffer, comm), OK, "{}", last_error());
            let sum = (0..ranks).map(|rank| rank + round).sum::<usize>() as f32;
            assert!(buffer.iter().all(|element| *element == sum), "{count} in round {round}");
        }
        let [_, suspended, _, _] = memory(comm);
        assert_eq!(suspended, 0);
        assert_eq!(suspend(comm), OK, "{}", last_error());
        let [temporary, suspended, rest, all] = memory(comm);
        // Parts of pages are not released.
        assert!(temporary <= 2 * 4096, "{temporary}");
        assert_eq!((suspended, all), (1, temporary + rest));
        assert_eq!(all_reduce(&mut [1.0], comm), USAGE);
        assert_eq!(suspend(comm), USAGE);
        assert_eq!(resume(comm), OK, "{}", last_error());
        assert_eq!(resume(comm), USAGE);
    }
}

#[test]
fn suspend_in_group_blocks_operations_until_resume() {
    let _alone = alone();
    let _watchdog = Watchdog::new();
    let comms = init(Mode::Group, 3);
    together(Mode::Group, &comms, |_, comm| suspend(comm));
    assert_eq!(all_reduce(&mut [1.0], comms[0].0), USAGE);
    assert_last_error("is suspended: call ncclCommResume first");
    let mut ranks = 0;
    assert_eq!(nccl!(ncclCommCount(comms[1].0, &mut ranks)), OK, "queries are allowed");
    together(Mode::Group, &comms, |_, comm| resume(comm));
    let mut buffers = vec![vec![1.0]; 3];
    let places = common::addresses(&mut buffers);
    together(Mode::Group, &comms, |rank, comm| {
        // SAFETY: one element, which only this rank uses.
        all_reduce(unsafe { std::slice::from_raw_parts_mut(places[rank].0, 1) }, comm)
    });
    assert_eq!(buffers, vec![vec![3.0]; 3]);
    // A suspended communicator can be destroyed.
    together(Mode::Group, &comms, |_, comm| suspend(comm));
    comms.into_iter().for_each(Comm::destroy);
}

/// Relies on buffers: with `LIBNCCL_CPU_STRICT=1`, the send waits.
#[test]
fn message_sent_before_suspend_arrives_after_resume() {
    let _watchdog = Watchdog::new();
    let comms = init(Mode::Group, 2);
    let (sent, mut received) = ([1, 2, 3], [0; 3]);
    assert_eq!(nccl!(ncclSend(sent.as_ptr().cast(), 3, I32, 1, comms[0].0, STREAM)), OK);
    together(Mode::Group, &comms, |_, comm| suspend(comm));
    together(Mode::Group, &comms, |_, comm| resume(comm));
    let place = received.as_mut_ptr().cast();
    assert_eq!(nccl!(ncclRecv(place, 3, I32, 0, comms[1].0, STREAM)), OK);
    assert_eq!(received, sent);
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn suspend_and_mem_stats_with_invalid_arguments_fail() {
    let _alone = alone();
    let comms = init(Mode::Group, 1);
    let Comm(comm) = comms[0];
    assert_eq!(nccl!(ncclCommSuspend(comm, 0)), OK, "nothing to suspend");
    for flags in [2, i32::MIN] {
        assert_eq!(nccl!(ncclCommSuspend(comm, flags)), OK, "NCCL ignores other flags");
        assert_eq!(resume(comm), USAGE);
    }
    for flags in [3, -1] {
        assert_eq!(nccl!(ncclCommSuspend(comm, flags)), OK);
        assert_eq!(resume(comm), OK);
    }
    assert_eq!(resume(comm), USAGE);
    assert_last_error("is not suspended");
    assert_eq!((suspend(ptr::null_mut()), resume(ptr::null_mut())), (ARGUMENT, ARGUMENT));
    let mut value = 0;
    for stat in [4, u32::MAX] {
        assert_eq!(nccl!(ncclCommMemStats(comm, ncclCommMemStat_t(stat), &mut value)), ARGUMENT);
    }
    let total = ncclCommMemStat_t::ncclStatGpuMemTotal;
    assert_eq!(nccl!(ncclCommMemStats(comm, total, ptr::null_mut())), ARGUMENT);
    assert_eq!(nccl!(ncclCommMemStats(ptr::null_mut(), total, &mut value)), ARGUMENT);
    comms[0].destroy();
}

rank_tasks! { "cycle" => cycle_in_process }

/// Checks the memory statistics around a reduction, and then suspends and resumes.
fn cycle_in_process(process: &RankProcess) {
    let Comm(comm) = process.join();
    let [before, ..] = memory(comm);
    let mut buffer = vec![1f32; 300_000];
    assert_eq!(all_reduce(&mut buffer, comm), OK);
    let [during, ..] = memory(comm);
    // Processes stage the reductions of private memory.
    assert!(during > before, "{before} {during}");
    assert!(during > 500_000, "{during}");
    cycle(process.rank(), process.ranks, comm);
    Comm(comm).destroy();
}

#[test]
fn suspend_releases_staging_memory() {
    let _watchdog = Watchdog::new();
    processes::run("cycle", 2);
}
