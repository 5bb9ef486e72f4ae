//! Nonblocking communicators.

use std::ptr;
use std::thread;
use std::time::Duration;

use libnccl::sys::{ncclDataType_t, ncclRedOp_t, ncclUniqueId};

use crate::calls::{
    PROGRESS, async_error, count, init_nonblocking, init_nonblocking_pair, nonblocking, rank, sum, wait_async,
};
use crate::common::watchdog::Watchdog;
use crate::common::{ARGUMENT, Comm, OK, REMOTE, USAGE, alone, assert_last_error, last_error, unique_id};
use crate::nccl;

#[test]
fn nonblocking_calls_complete_in_background() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let id = unique_id();
    let first = init_nonblocking(id, 2, 0);
    let mut number = 0;
    assert_eq!(nccl!(ncclCommCount(first.0, &mut number)), ARGUMENT, "the initialisation is in progress");
    assert_eq!(async_error(first.0), PROGRESS);
    let comms = [first, init_nonblocking(id, 2, 1)];
    comms.iter().for_each(|comm| assert_eq!(wait_async(comm.0), OK));

    let mut children = [ptr::null_mut(); 2];
    for (comm, child) in comms.iter().zip(&mut children) {
        assert_eq!(nccl!(ncclCommSplit(comm.0, 0, -rank(comm.0), child, ptr::null_mut())), PROGRESS);
    }
    comms.iter().for_each(|comm| assert_eq!(wait_async(comm.0), OK));
    for (me, child) in children.into_iter().enumerate() {
        assert_eq!((wait_async(child), rank(child)), (OK, 1 - me as i32));
        Comm(child).destroy();
    }

    let (mut token, mut grown) = (ncclUniqueId::default(), [ptr::null_mut(); 3]);
    assert_eq!(nccl!(ncclCommGetUniqueId(comms[0].0, &mut token)), OK);
    let [one, two, three] = &mut grown;
    let none = ptr::null_mut();
    assert_eq!(nccl!(ncclCommGrow(comms[0].0, 3, &token, -1, one, none)), PROGRESS);
    assert_eq!(nccl!(ncclCommGrow(comms[1].0, 3, ptr::null(), -1, two, none)), PROGRESS);
    assert_eq!(nccl!(ncclCommGrow(ptr::null_mut(), 3, &token, 2, three, &mut nonblocking())), PROGRESS);
    assert!(!grown[2].is_null());
    for comm in [comms[0].0, comms[1].0, grown[2]] {
        assert_eq!(wait_async(comm), OK);
    }
    for (me, comm) in grown.into_iter().enumerate() {
        assert_eq!((count(comm), rank(comm)), (3, me as i32));
        Comm(comm).destroy();
    }

    let mut fewer = ptr::null_mut();
    assert_eq!(nccl!(ncclCommShrink(comms[1].0, [0].as_mut_ptr(), 1, &mut fewer, none, 0)), PROGRESS);
    assert_eq!(wait_async(comms[1].0), OK);
    assert_eq!((count(fewer), rank(fewer)), (1, 0));
    Comm(fewer).destroy();
    for comm in comms {
        assert_eq!(nccl!(ncclCommFinalize(comm.0)), OK);
        assert_eq!(wait_async(comm.0), OK);
        comm.destroy();
    }
}

/// A rank first gets the result of its own call, even if a peer has aborted since.
#[test]
fn completed_call_stays_successful_after_peer_abort() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init_nonblocking_pair();
    // In use until the communicators are destroyed.
    let mut places = [[1], [2]];
    let addresses = places.each_mut().map(|place| place.as_mut_ptr());
    for (comm, place) in comms.iter().zip(addresses) {
        let (place, data_type, sum) = (place.cast(), ncclDataType_t::ncclInt32, ncclRedOp_t::ncclSum);
        let started = nccl!(ncclAllReduce(place, place, 1, data_type, sum, comm.0, ptr::null_mut()));
        assert_eq!(started, PROGRESS);
    }
    // Rank 0 has not been polled yet, but its operation is certain to complete.
    assert_eq!(wait_async(comms[1].0), OK);
    assert_eq!(nccl!(ncclCommAbort(comms[1].0)), OK);
    assert_eq!(wait_async(comms[0].0), OK, "{}", last_error());
    assert_eq!(places[0], [3]);
    assert_eq!(async_error(comms[0].0), REMOTE, "then the peer's abort is reported");
    assert_eq!(sum(comms[0].0, 1), Err(REMOTE));
    comms[0].destroy();

    // Likewise for an initialisation.
    let id = unique_id();
    let comms = [init_nonblocking(id, 2, 0), init_nonblocking(id, 2, 1)];
    assert_eq!(wait_async(comms[1].0), OK);
    assert_eq!(nccl!(ncclCommAbort(comms[1].0)), OK);
    assert_eq!(wait_async(comms[0].0), OK, "{}", last_error());
    assert_eq!(async_error(comms[0].0), REMOTE);
    comms[0].destroy();

    // And for a split, of which both parent and child are polled.
    let comms = init_nonblocking_pair();
    let mut children = [ptr::null_mut(); 2];
    for (comm, child) in comms.iter().zip(&mut children) {
        assert_eq!(nccl!(ncclCommSplit(comm.0, 0, 0, child, ptr::null_mut())), PROGRESS);
    }
    comms.iter().for_each(|comm| assert_eq!(wait_async(comm.0), OK));
    assert_eq!(nccl!(ncclCommAbort(children[1])), OK);
    assert_eq!(wait_async(children[0]), OK, "{}", last_error());
    assert_eq!(async_error(children[0]), REMOTE);
    Comm(children[0]).destroy();
    comms.into_iter().for_each(Comm::destroy);
}

/// Even if the peer had done its part of the operation before it aborted.
#[test]
fn operation_after_peer_abort_returns_remote_error() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init_nonblocking_pair();
    let mut places = [[1], [2]];
    let codes = [0, 1].map(|rank| {
        let (place, data_type) = (places[rank].as_mut_ptr().cast(), ncclDataType_t::ncclInt32);
        let op = ncclRedOp_t::ncclSum;
        let code = nccl!(ncclAllReduce(place, place, 1, data_type, op, comms[rank].0, ptr::null_mut()));
        if rank == 0 {
            thread::sleep(Duration::from_millis(30));
            assert_eq!(nccl!(ncclCommAbort(comms[0].0)), OK);
        }
        code
    });
    assert_eq!(codes, [PROGRESS, REMOTE]);
    assert_eq!(places, [[1], [2]]);
    assert_eq!(async_error(comms[1].0), REMOTE);
    comms[1].destroy();
}

/// The polling thread gets the text of the background failure, not of its own last one.
#[test]
fn background_failure_sets_last_error_of_polling_thread() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init_nonblocking_pair();
    let mut places = [[1, 0], [2, 0]];
    let addresses = places.each_mut().map(|place| place.as_mut_ptr());
    for (rank, place) in addresses.into_iter().enumerate() {
        let (place, data_type, op) = (place.cast(), ncclDataType_t::ncclInt32, ncclRedOp_t::ncclSum);
        let (count, comm) = (rank + 1, comms[rank].0);
        assert_eq!(nccl!(ncclAllReduce(place, place, count, data_type, op, comm, ptr::null_mut())), PROGRESS);
    }
    for comm in comms {
        assert_eq!(nccl!(ncclCommCount(ptr::null_mut(), &mut 0)), ARGUMENT);
        assert_last_error("the communicator is NULL");
        assert_eq!(wait_async(comm.0), USAGE);
        assert_last_error("rank 1 called ncclAllReduce(count 2, ncclInt32, ncclSum)");
        comm.destroy();
    }
}

#[test]
fn failed_nonblocking_init_leaves_comm_to_query() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let id = unique_id();
    let comms = [init_nonblocking(id, 2, 0), init_nonblocking(id, 3, 1)];
    for comm in comms {
        assert_eq!(wait_async(comm.0), USAGE);
        assert_eq!(sum(comm.0, 1), Err(USAGE));
        assert_last_error("the ranks passed different nranks");
        assert_eq!(nccl!(ncclCommRevoke(comm.0, 0)), USAGE);
    }
    assert_eq!(nccl!(ncclCommAbort(comms[0].0)), OK);
    comms[1].destroy();
}
