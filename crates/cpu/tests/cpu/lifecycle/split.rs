//! `ncclCommSplit`.

use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use super::calls::{assert_members, join, shrink, split, sum};
use crate::common::processes::{RankProcess, kill, spawn};
use crate::common::watchdog::Watchdog;
use crate::common::{
    ARGUMENT, Comm, Mode, OK, REMOTE, SOON, USAGE, alone, assert_last_error, async_error, init, init_rank,
    last_error, on_threads, unique_id,
};

/// Splits again and again until the process is killed.
pub(crate) fn split_until_killed(process: &RankProcess) {
    let comm = join(process);
    for _ in 0..1_000_000 {
        let child = split(comm.0, 0, -(process.rank() as i32));
        child.unwrap_or_else(|_| panic!("{}", last_error())).destroy();
    }
    panic!("not killed");
}

#[test]
fn split_with_invalid_arguments_fails() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Group, 1);
    let mut child = ptr::null_mut();
    let Comm(comm) = comms[0];
    assert_eq!(nccl!(ncclCommSplit(comm, -2, 0, &mut child, ptr::null_mut())), ARGUMENT);
    assert_eq!(nccl!(ncclCommSplit(comm, 0, 0, ptr::null_mut(), ptr::null_mut())), ARGUMENT);
    assert_eq!(nccl!(ncclCommSplit(ptr::null_mut(), 0, 0, &mut child, ptr::null_mut())), ARGUMENT);
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn splits_in_one_group_create_all_children() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Group, 3);
    let mut children = [[ptr::null_mut(); 3]; 2];
    assert_eq!(nccl!(ncclGroupStart()), OK);
    for (turn, children) in children.iter_mut().enumerate() {
        for (rank, child) in children.iter_mut().enumerate() {
            let color = i32::from(turn == 1 && rank == 2);
            let comm = { comms[rank] }.0;
            assert_eq!(nccl!(ncclCommSplit(comm, color, 0, child, ptr::null_mut())), OK);
        }
    }
    assert_eq!(nccl!(ncclGroupEnd()), OK, "{}", last_error());
    let children = children.map(|children| children.map(Comm));
    on_threads(3, |rank| {
        assert_members(children[0][rank], rank as i32, &[0, 1, 2]);
        assert_members(children[1][rank], rank as i32, if rank == 2 { &[2] } else { &[0, 1] });
    });
    children.into_iter().flatten().for_each(Comm::destroy);
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn split_while_peer_calls_all_reduce_is_invalid_usage() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Threads, 2);
    let codes = on_threads(2, |rank| {
        let Comm(comm) = comms[rank];
        if rank == 0 { split(comm, 0, 0).map(|_| 0) } else { sum(comm, 1) }
    });
    assert_eq!(codes, [Err(USAGE); 2]);
    assert_last_error("rank 1 called ncclAllReduce");
    assert_last_error("rank 0 called ncclCommSplit");
    on_threads(2, |rank| split({ comms[rank] }.0, 0, 0).unwrap().destroy());
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn split_with_aborted_rank_returns_remote_error() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Threads, 3);
    let codes = on_threads(3, |rank| {
        let Comm(comm) = comms[rank];
        if rank == 2 {
            thread::sleep(Duration::from_millis(20));
            assert_eq!(nccl!(ncclCommAbort(comm)), OK);
            return REMOTE;
        }
        split(comm, 0, 0).unwrap_err()
    });
    assert_eq!(codes, [REMOTE; 3]);
    assert_eq!(async_error({ comms[0] }.0), REMOTE);
    comms[..2].iter().for_each(|comm| comm.destroy());
}

#[test]
fn split_with_killed_rank_returns_remote_error() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    for turn in 0..8 {
        let id = unique_id();
        let mut child = spawn("split", &id, 3, 1);
        let joined = std::sync::Barrier::new(3);
        let joined = &joined;
        thread::scope(|scope| {
            let others = [0, 2].map(|rank| {
                scope.spawn(move || {
                    let Comm(comm) = init_rank(id, 3, rank).unwrap();
                    assert_eq!(sum(comm, 1), Ok(3));
                    joined.wait();
                    let (code, at) = loop {
                        match split(comm, 0, -(rank as i32)) {
                            Ok(child) => child.destroy(),
                            Err(code) => break (code, Instant::now()),
                        }
                    };
                    assert_eq!(async_error(comm), REMOTE);
                    Comm(comm).destroy();
                    (code, at)
                })
            });
            // A different delay each time, so that the rank dies at different points of a split.
            joined.wait();
            thread::sleep(Duration::from_micros(5_000 + 1_370 * turn));
            kill(&mut child);
            let killed = Instant::now();
            for other in others {
                let (code, at) = other.join().unwrap();
                assert_eq!(code, REMOTE);
                assert!(at.saturating_duration_since(killed) < SOON, "{:?}", at - killed);
            }
        });
    }
}

/// A rank leaves a communicator when another communicator of the same group could not be created.
#[test]
fn shrink_with_rank_of_failed_group_returns_remote_error() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let (bad, good) = (init(Mode::Threads, 2), init(Mode::Threads, 3));
    assert_eq!(nccl!(ncclCommAbort(bad[1].0)), OK);
    let (mut children, mut list) = ([ptr::dangling_mut(); 2], [2]);
    let [one, two] = &mut children;
    assert_eq!(nccl!(ncclGroupStart()), OK);
    assert_eq!(nccl!(ncclCommSplit(bad[0].0, 0, 0, one, ptr::null_mut())), OK);
    assert_eq!(nccl!(ncclCommShrink(good[0].0, list.as_mut_ptr(), 1, two, ptr::null_mut(), 0)), OK);
    assert_eq!(nccl!(ncclGroupEnd()), REMOTE);
    assert_eq!(children, [ptr::null_mut(); 2]);
    assert_eq!(shrink(good[1].0, &[2], 0), Err(REMOTE));
    assert_last_error("rank 0 has left: its communicator is gone");
    assert_eq!(sum(good[0].0, 1), Err(REMOTE));
    bad[0].destroy();
    good.into_iter().for_each(Comm::destroy);
}
