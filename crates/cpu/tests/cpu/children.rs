//! Communicators created from others, and revocation: failures of ranks, and checks of the CPU backend.

use std::ptr;
use std::thread;
use std::time::Duration;

use libnccl::sys::ncclUniqueId;

use crate::common::processes::{RankProcess, finish, kill, spawn};
use crate::common::{
    ARGUMENT, Comm, I32, OK, REMOTE, STREAM, USAGE, alone, assert_last_error, assert_sum, async_error, grow,
    in_group, init, init_rank, last_error, on_threads, shrink, split, sum, unique_id, wait_for_peers,
};

rank_tasks!(join_as_new_rank, hang);

/// Asserts that a communicator's operations work, and that its ranks are `members` in this order.
fn assert_members(Comm(comm): Comm, me: i32, members: &[i32]) {
    let mut gathered = vec![me; members.len()];
    let (mine, all) = ((&raw const me).cast(), gathered.as_mut_ptr().cast());
    assert_eq!(nccl!(ncclAllGather(mine, all, 1, I32, comm, STREAM)), OK, "{}", last_error());
    assert_eq!(gathered, members);
    assert_eq!(sum(comm, me), Ok(members.iter().sum()));
}

fn hang(process: &RankProcess) {
    assert_sum(process.join().0, process.ranks);
    thread::sleep(Duration::from_secs(60));
}

/// A rank leaves a communicator if another communicator of the same group could not be created.
#[test]
fn rank_of_failed_group_leaves_the_child_it_joined() {
    let _alone = alone();
    let comms = init(2);
    on_threads(2, |rank| {
        let Comm(comm) = { &comms }[rank];
        if rank == 1 {
            let child = split(comm, 0, 0).unwrap();
            assert_eq!(nccl!(ncclCommAbort(comm)), OK);
            assert_eq!(sum(child.0, 1), Err(REMOTE));
            assert_last_error("rank 0 has finalized or destroyed");
            return child.destroy();
        }
        let mut children = [ptr::dangling_mut(); 2];
        let code = in_group(|| {
            for child in &mut children {
                assert_eq!(nccl!(ncclCommSplit(comm, 0, 0, child, ptr::null_mut())), OK);
            }
        });
        assert_eq!((code, children), (REMOTE, [ptr::null_mut(); 2]));
    });
    comms[0].destroy();
}

#[test]
fn shrink_abort_after_killed_rank_creates_usable_comm() {
    let _alone = alone();
    let id = unique_id();
    let mut child = spawn("hang", &id, 4, 2);
    let comms = on_threads(4, |rank| (rank != 2).then(|| init_rank(id, 4, rank).unwrap()));
    let alive = |rank: usize| comms[rank].map(|comm| comm.0);
    on_threads(4, |rank| alive(rank).map(|comm| assert_eq!(sum(comm, 1), Ok(4))));
    kill(&mut child);
    on_threads(4, |rank| {
        let Some(comm) = alive(rank) else { return };
        // One rank shrinks before its communicator has noticed the failure; the others wait in an operation.
        if rank != 0 {
            assert_eq!(sum(comm, 1), Err(REMOTE));
            assert_eq!(shrink(comm, &[2], 0), Err(REMOTE), "the communicator has failed");
        }
        let fewer = shrink(comm, &[2], 1).unwrap_or_else(|code| panic!("{code:?} {}", last_error()));
        assert_members(fewer, rank as i32, &[0, 1, 3]);
        assert_eq!(async_error(comm), OK, "the shrink has cleared the error");
        assert_eq!(sum(comm, 1), Err(USAGE));
        assert_eq!(nccl!(ncclCommFinalize(comm)), ARGUMENT);
        Comm(comm).destroy();
        // The new communicator can be split.
        let fewest = split(fewer.0, i32::from(rank == 3), 0).unwrap();
        assert_members(fewest, rank as i32, if rank == 3 { &[3] } else { &[0, 1] });
        [fewer, fewest].into_iter().for_each(Comm::destroy);
    });
}

#[test]
fn shrink_with_invalid_arguments_names_the_mistake() {
    let _alone = alone();
    let comms = init(4);
    for (exclude, text) in [
        (&[4, 0][..], "invalid list of excluded ranks: rank 4 is not in 0..4"),
        (&[-1, 0], "rank -1 is not in 0..4"),
        (&[0, 0], "rank 0 is in it twice"),
        (&[0, 1], "rank 1 calls this and is in it"),
        (&[], "invalid number of excluded ranks 0: it has to be in 1..4"),
        (&[0, 1, 2, 3], "invalid number of excluded ranks 4"),
    ] {
        assert_eq!(shrink(comms[1].0, exclude, 0), Err(ARGUMENT), "{exclude:?}");
        assert_last_error(text);
    }
    comms.into_iter().for_each(Comm::destroy);
}

/// Ranks 0 and 1 shrink with `NCCL_SHRINK_ABORT`, after rank 1 has aborted or without it; rank 2 is excluded.
#[test]
fn shrink_abort_fails_excluded_ranks_and_does_not_wait_for_an_aborted_survivor() {
    let _alone = alone();
    let comms = init(3);
    let fewer = on_threads(2, |rank| shrink({ comms[rank] }.0, &[2], 1).unwrap());
    assert_eq!(sum(comms[2].0, 1), Err(REMOTE));
    assert_last_error("shrank the communicator with NCCL_SHRINK_ABORT");
    fewer.into_iter().chain(comms).for_each(Comm::destroy);

    let comms = init(3);
    assert_eq!(nccl!(ncclCommAbort(comms[1].0)), OK);
    assert_eq!(shrink(comms[0].0, &[2], 1), Err(REMOTE));
    assert_last_error("rank 1 aborted the communicator");
    [comms[0], comms[2]].into_iter().for_each(Comm::destroy);
}

fn join_as_new_rank(process: &RankProcess) {
    let (ranks, rank) = (process.ranks, process.rank() as i32);
    let comm = grow(ptr::null_mut(), ranks, Some(&process.id), rank).unwrap();
    assert_members(comm, rank, &(0..ranks as i32).collect::<Vec<_>>());
    comm.destroy();
}

/// A new rank that dies makes the grow fail, but leaves the parent usable.
#[test]
fn grow_after_killed_new_rank_can_be_retried() {
    let _alone = alone();
    let comms = init(2);
    let mut token = ncclUniqueId::default();
    assert_eq!(nccl!(ncclCommGetUniqueId(comms[0].0, &mut token)), OK);
    for ranks in [4, 3] {
        thread::scope(|scope| {
            let grown = [0, 1].map(|rank| {
                let (comm, id) = (comms[rank], (rank == 0).then_some(token));
                scope.spawn(move || {
                    let grown = grow({ comm }.0, ranks, id.as_ref(), -1)?;
                    assert_members(grown, rank as i32, &[0, 1, 2]);
                    grown.destroy();
                    Ok(())
                })
            });
            // The root is here, and the other rank has connected.
            wait_for_peers(&token, 1);
            let mut new = spawn("join_as_new_rank", &token, ranks, 2);
            if ranks == 4 {
                wait_for_peers(&token, 2);
                kill(&mut new);
            } else {
                finish(new);
            }
            let expected = if ranks == 4 { Err(REMOTE) } else { Ok(()) };
            grown.into_iter().for_each(|grown| assert_eq!(grown.join().unwrap(), expected));
        });
        on_threads(2, |rank| assert_eq!(sum({ comms[rank] }.0, 1), Ok(2)));
    }
    comms.into_iter().for_each(Comm::destroy);
}

/// The waiting ranks get an error with the reason, which a revocation on the same rank clears.
#[test]
fn revocation_fails_waiting_ranks() {
    let _alone = alone();
    let comms = init(3);
    thread::scope(|scope| {
        for comm in &comms[1..] {
            scope.spawn(move || {
                assert_eq!(sum({ *comm }.0, 1), Err(REMOTE));
                assert_last_error("rank 0 revoked the communicator");
                assert_eq!(async_error(comm.0), REMOTE);
                assert_eq!(nccl!(ncclCommRevoke(comm.0, 0)), OK);
                assert_eq!(async_error(comm.0), OK);
            });
        }
        thread::sleep(Duration::from_millis(50));
        assert_eq!(nccl!(ncclCommRevoke(comms[0].0, 0)), OK);
    });
    comms.into_iter().for_each(Comm::destroy);
}
