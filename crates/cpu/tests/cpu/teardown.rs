//! `ncclCommAbort`, `ncclCommDestroy` and `ncclCommFinalize`.

use std::ptr;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use libnccl::sys::{ncclComm_t, ncclResult_t, ncclUniqueId};

use crate::common::{
    ARGUMENT, Comm, OK, PROGRESS, REMOTE, SOON, USAGE, all_reduce, alone, assert_last_error, async_error,
    broadcast, grow, in_group, init, init_nonblocking, nonblocking, shrink, split, sum, unique_id,
    wait_async, wait_for_peers,
};

/// Tears a communicator down without waiting for any rank.
fn soon(end: impl Fn(ncclComm_t) -> ncclResult_t, comm: Comm) {
    let start = Instant::now();
    assert_eq!(end(comm.0), OK);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

fn abort(comm: ncclComm_t) -> ncclResult_t {
    nccl!(ncclCommAbort(comm))
}

fn destroy(comm: ncclComm_t) -> ncclResult_t {
    nccl!(ncclCommDestroy(comm))
}

/// The thread caches the communicator that it used last, and the process may exit before the cache is dropped.
#[test]
fn destroyed_communicator_leaves_although_a_thread_caches_it() {
    let _alone = alone();
    let comms = init(2);
    assert_eq!(async_error(comms[1].0), OK);
    thread::scope(|scope| {
        scope.spawn(|| { comms[1] }.destroy());
    });
    let summed = thread::scope(|scope| scope.spawn(|| sum({ comms[0] }.0, 1)).join().unwrap());
    assert_eq!(summed, Err(REMOTE));
    assert_last_error("rank 1 has finalized or destroyed");
    comms[0].destroy();
}

/// Neither `ncclCommAbort` nor `ncclCommDestroy` waits for ranks that have yet to join a communicator.
#[test]
fn teardown_cancels_creation() {
    let _alone = alone();
    for end in [abort, destroy] {
        // The other ranks never join: once for a peer of the rendezvous, once for its root.
        let id = unique_id();
        let comms = [init_nonblocking(id, 3, 0), init_nonblocking(id, 3, 1)];
        wait_for_peers(&id, 1);
        assert_eq!(nccl!(ncclCommFinalize(comms[1].0)), ARGUMENT, "the initialization is in progress");
        soon(end, comms[1]);
        assert_eq!(end(comms[1].0), ARGUMENT, "it is no communicator any more");
        assert_eq!(wait_async(comms[0].0), REMOTE, "its peer was destroyed");
        assert_eq!(nccl!(ncclCommCount(comms[0].0, &mut 0)), REMOTE);
        assert_last_error("rank 1 was cancelled or aborted before all ranks had joined");
        soon(end, comms[0]);
        soon(end, init_nonblocking(unique_id(), 2, 0));

        // Communicators that the other ranks do not create, from a healthy parent and from a revoked one.
        for turn in 0..4 {
            let id = unique_id();
            let comms = [0, 1, 2].map(|rank| init_nonblocking(id, 3, rank));
            comms.iter().for_each(|comm| assert_eq!(wait_async(comm.0), OK));
            let (Comm(comm), mut token) = (comms[0], ncclUniqueId::default());
            if turn == 1 {
                assert_eq!(nccl!(ncclCommRevoke(comm, 0)), OK);
            }
            let child = match turn {
                0 | 1 => split(comm, 0, 0),
                2 => shrink(comm, &[2], 0),
                _ => {
                    assert_eq!(nccl!(ncclCommGetUniqueId(comm, &mut token)), OK);
                    grow(comm, 4, Some(&token), -1)
                }
            };
            let Comm(child) = child.unwrap();
            assert_eq!(async_error(comm), PROGRESS);
            thread::sleep(Duration::from_millis(30));
            soon(end, comms[0]);
            // As in NCCL, the handle of a growing communicator is valid immediately.
            assert_eq!(child.is_null(), turn < 3);
            if turn == 3 {
                assert_eq!([wait_async(child), abort(child)], [REMOTE, OK]);
            }
            comms[1..].iter().for_each(|comm| soon(end, *comm));
        }
    }
}

/// The inits of a group succeed or fail together.
#[test]
fn abort_of_one_comm_ends_group_of_inits() {
    let _alone = alone();
    let mut comms = [ptr::null_mut(); 2];
    let code = in_group(|| {
        for comm in &mut comms {
            let code = nccl!(ncclCommInitRankConfig(comm, 2, unique_id(), 0, &mut nonblocking()));
            assert!(matches!(code, OK | PROGRESS));
        }
    });
    assert_eq!(code, PROGRESS);
    thread::sleep(Duration::from_millis(30));
    soon(abort, Comm(comms[0]));
    assert_eq!([wait_async(comms[1]), abort(comms[1])], [REMOTE, OK]);
}

/// Opens a group and adds a sum of each communicator.
fn sum_in_an_open_group(comms: &[Comm], buffer: &mut [i32]) {
    assert_eq!(nccl!(ncclGroupStart()), OK);
    for (comm, element) in comms.iter().zip(buffer.chunks_mut(1)) {
        assert_eq!(all_reduce(element, comm.0), OK);
    }
}

/// Neither a call, nor an abort by the same thread, waits for operations of a group on another communicator.
#[test]
fn group_of_two_nonblocking_comms_blocks_neither() {
    let (_alone, ids) = (alone(), [unique_id(), unique_id()]);
    let [one, two] = ids.map(|id| [0, 1].map(|rank| init_nonblocking(id, 2, rank)));
    [one, two].as_flattened().iter().for_each(|comm| assert_eq!(wait_async(comm.0), OK));
    let (mut buffer, mut others) = ([1, 2], [10, 20]);
    sum_in_an_open_group(&[one[0], two[0]], &mut buffer);
    assert_eq!(nccl!(ncclGroupEnd()), PROGRESS);
    for (index, pair) in [one, two].into_iter().enumerate() {
        assert_eq!(async_error(two[0].0), PROGRESS);
        assert_eq!(all_reduce(&mut others[index..=index], pair[1].0), PROGRESS);
        assert_eq!(pair.map(|comm| wait_async(comm.0)), [OK; 2]);
    }
    assert_eq!((buffer, others), ([11, 22], [11, 22]));
    sum_in_an_open_group(&[one[0], two[0]], &mut buffer);
    assert_eq!(nccl!(ncclGroupEnd()), PROGRESS);
    thread::sleep(Duration::from_millis(30));
    soon(abort, one[0]);
    assert_eq!(async_error(two[0].0), PROGRESS);
    soon(abort, two[0]);
    assert_eq!([one[1], two[1]].map(|comm| (async_error(comm.0), destroy(comm.0))), [(REMOTE, OK); 2]);
}

#[test]
fn teardown_in_open_group_with_calls_is_invalid_usage() {
    const UNENDED: &str = "rank 0 called ncclAllReduce(count 1, ncclInt32, ncclSum) in a group that has not ended, so it has \
                           not run: ncclGroupEnd is missing before ";
    let _alone = alone();
    let mut buffer = [1, 2];

    // The communicators can be used after a refused ncclCommFinalize.
    let comms = init(2);
    sum_in_an_open_group(&comms, &mut buffer);
    assert_eq!(nccl!(ncclCommFinalize(comms[0].0)), USAGE);
    assert_last_error(&format!("{UNENDED}ncclCommFinalize"));
    assert_eq!(nccl!(ncclGroupEnd()), USAGE);
    assert_last_error("ncclCommFinalize in this group failed: rank 0 called ncclAllReduce(");
    assert_eq!(buffer, [1, 2]);
    sum_in_an_open_group(&comms, &mut buffer);
    assert_eq!(nccl!(ncclGroupEnd()), OK);
    assert_eq!(buffer, [3, 3]);
    sum_in_an_open_group(&comms, &mut buffer);
    assert_eq!([destroy(comms[0].0), destroy(comms[1].0)], [USAGE; 2]);
    assert_eq!(nccl!(ncclGroupEnd()), USAGE);
    assert_eq!(nccl!(ncclCommCount(comms[0].0, &mut 0)), ARGUMENT, "it is destroyed nevertheless");

    // Another thread destroys the communicator.
    let comms = init(2);
    let turn = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            sum_in_an_open_group(&comms, &mut buffer);
            turn.wait();
            turn.wait();
            assert_eq!(nccl!(ncclGroupEnd()), USAGE);
            assert_last_error("was destroyed before the group that it has calls in ended");
        });
        turn.wait();
        assert_eq!(nccl!(ncclCommDestroy(comms[0].0)), USAGE);
        assert_last_error(&format!("{UNENDED}ncclCommDestroy"));
        turn.wait();
    });
    comms[1].destroy();
    assert_eq!(buffer, [3, 3]);
}

#[test]
fn thread_exit_in_open_group_with_calls_fails_its_communicator() {
    let _alone = alone();
    let comms = init(2);
    let mut buffer = [1];
    thread::scope(|scope| {
        scope.spawn(|| sum_in_an_open_group(&comms[..1], &mut buffer)).join().unwrap();
    });
    assert_eq!(nccl!(ncclCommFinalize(comms[0].0)), OK, "nothing waits for the group any more");
    assert_eq!(async_error(comms[1].0), REMOTE);
    assert_eq!(buffer, [1]);
    comms.into_iter().for_each(Comm::destroy);
}

/// The root may be ahead of the others, and destroy its communicator before they begin.
#[test]
fn small_broadcast_root_returns_before_others_begin() {
    let _alone = alone();
    for calls in [1, 7] {
        let comms = init(2);
        for comm in &comms {
            for call in 0..calls {
                let mut buffer = [if *comm == comms[0] { call } else { -1 }; 4];
                assert_eq!((broadcast(&mut buffer, 0, comm.0), buffer), (OK, [call; 4]));
            }
            comm.destroy();
        }
    }
}

/// The rank that is aborted may have published its buffers, and then not do its part of the sum.
#[test]
fn successful_sum_is_complete_despite_an_aborted_rank() {
    let _alone = alone();
    for round in 0..100 {
        let comms = init(3);
        thread::scope(|scope| {
            for comm in &comms {
                scope.spawn(move || {
                    let mut buffer = vec![1; 70_000];
                    while all_reduce(&mut buffer, { *comm }.0) == OK {
                        let wrong = buffer.iter().position(|sum| *sum != 3);
                        assert_eq!(wrong, None, "round {round}");
                        buffer.fill(1);
                    }
                });
            }
            thread::sleep(Duration::from_micros(round * 20));
            assert_eq!(abort(comms[0].0), OK);
        });
        comms[1..].iter().for_each(|comm| assert_eq!(abort(comm.0), OK));
    }
}
