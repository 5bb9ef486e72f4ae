//! `ncclCommGrow`.

use std::ptr;
use std::thread;

use libnccl::sys::ncclUniqueId;

use super::calls::{assert_members, grow, sum};
use crate::common::processes::{RankProcess, finish, spawn};
use crate::common::watchdog::Watchdog;
use crate::common::{
    ARGUMENT, Comm, Mode, OK, REMOTE, USAGE, alone, assert_last_error, init, on_threads, unique_id,
    wait_for_peers,
};

/// Joins a communicator that grows, as a new rank.
pub(crate) fn join_as_new_rank(process: &RankProcess) {
    let (ranks, rank) = (process.ranks, process.rank() as i32);
    let comm = grow(ptr::null_mut(), ranks, Some(&process.id), rank).unwrap();
    assert_members(comm, rank, &(0..ranks as i32).collect::<Vec<_>>());
    comm.destroy();
}

#[test]
fn grow_adds_ranks_in_threads_and_processes() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Threads, 2);
    let Comm(holder) = comms[1];
    let mut token = ncclUniqueId::default();
    assert_eq!(nccl!(ncclCommGetUniqueId(holder, ptr::null_mut())), ARGUMENT);
    assert_eq!(nccl!(ncclCommGetUniqueId(ptr::null_mut(), &mut token)), ARGUMENT);
    assert_eq!(nccl!(ncclCommGetUniqueId(holder, &mut token)), OK);
    let mut another = token;
    assert_eq!(nccl!(ncclCommGetUniqueId(holder, &mut another)), USAGE, "the previous id is still unused");

    assert_eq!(grow(holder, 2, Some(&token), -1), Err(ARGUMENT), "the size does not grow");
    assert_eq!(grow(holder, 5, Some(&token), 1), Err(ARGUMENT), "an old rank must pass -1");
    assert_eq!(grow(holder, 5, Some(&unique_id()), -1), Err(ARGUMENT), "an id of another kind");
    assert_eq!(grow({ comms[0] }.0, 5, Some(&token), -1), Err(ARGUMENT), "an id from another rank");
    assert_eq!(grow(ptr::null_mut(), 5, None, 3), Err(ARGUMENT));
    assert_eq!(grow(ptr::null_mut(), 5, Some(&token), 5), Err(ARGUMENT));
    on_threads(2, |rank| {
        assert_eq!(grow({ comms[rank] }.0, 3, None, -1), Err(USAGE), "no rank passes the id");
        assert_last_error("one rank has to pass the id");
        assert_eq!(grow({ comms[rank] }.0, 3 + rank, (rank == 1).then_some(&token), -1), Err(ARGUMENT));
        assert_last_error("rank 1 passed 4, rank 0 passed 3");
    });

    let child = spawn("grow", &token, 5, 3);
    let grown = on_threads(5, |rank| match rank {
        0 | 1 => grow({ comms[rank] }.0, 5, (rank == 1).then_some(&token), -1),
        3 => Err(OK),
        _ => grow(ptr::null_mut(), 5, Some(&token), rank as i32),
    });
    let grown: Vec<Option<Comm>> = grown.into_iter().map(Result::ok).collect();
    on_threads(5, |rank| grown[rank].map(|comm| assert_members(comm, rank as i32, &[0, 1, 2, 3, 4])));
    finish(child);
    grown.into_iter().flatten().for_each(Comm::destroy);

    assert_eq!(grow(holder, 3, Some(&token), -1), Err(ARGUMENT), "the id has been used");
    assert_eq!(nccl!(ncclCommGetUniqueId(holder, &mut another)), OK);
    assert_ne!({ another }.internal, { token }.internal);
    on_threads(2, |rank| assert_eq!(sum({ comms[rank] }.0, 1), Ok(2), "the parent is unchanged"));
    comms.into_iter().for_each(Comm::destroy);
}

/// A new rank that dies makes the grow fail, but leaves the parent usable.
#[test]
fn grow_after_killed_new_rank_can_be_retried() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Threads, 2);
    let mut token = ncclUniqueId::default();
    assert_eq!(nccl!(ncclCommGetUniqueId(comms[0].0, &mut token)), OK);
    for retry in [false, true] {
        let new_ranks = if retry { 1 } else { 2 };
        let mut child = thread::scope(|scope| {
            let grown = [0, 1].map(|rank| {
                let comm = comms[rank];
                let token = (rank == 0).then_some(token);
                scope.spawn(move || grow({ comm }.0, 2 + new_ranks, token.as_ref(), -1))
            });
            // The root is here, and the other rank has connected.
            wait_for_peers(&token, 1);
            let mut child = spawn("grow", &token, 2 + new_ranks, 2);
            if !retry {
                wait_for_peers(&token, 2);
                child.kill().unwrap();
            }
            for (rank, grown) in grown.into_iter().enumerate() {
                let grown = grown.join().unwrap();
                if retry {
                    scope.spawn(move || {
                        assert_members(grown.unwrap(), rank as i32, &[0, 1, 2]);
                        grown.unwrap().destroy();
                    });
                } else {
                    assert_eq!(grown, Err(REMOTE));
                }
            }
            child
        });
        if retry {
            finish(child);
        } else {
            child.wait().unwrap();
        }
        on_threads(2, |rank| assert_eq!(sum({ comms[rank] }.0, 1), Ok(2)));
    }
    comms.into_iter().for_each(Comm::destroy);
}
