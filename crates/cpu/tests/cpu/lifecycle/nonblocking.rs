//! Nonblocking communicators.

use std::ffi::CStr;
use std::fs;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use libnccl::sys::{NCCL_SUSPEND_MEM, ncclResult_t, ncclUniqueId};

use super::calls::{count, init_nonblocking_pair, sum};
use crate::common::watchdog::Watchdog;
use crate::common::{
    ARGUMENT, Address, Comm, I32, LIMIT, OK, PROGRESS, REMOTE, STREAM, SUM, USAGE, alone, assert_last_error,
    async_error, init_nonblocking, last_error, nonblocking, unique_id, wait_async,
};

/// A rank gets the result of its call first, even if a peer has aborted since.
#[test]
fn completed_call_stays_successful_after_peer_abort() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init_nonblocking_pair();
    // In use until the communicators are destroyed.
    let mut places = [[1], [2]];
    let addresses = places.each_mut().map(|place| place.as_mut_ptr());
    for (comm, place) in comms.iter().zip(addresses) {
        let place = place.cast();
        assert_eq!(nccl!(ncclAllReduce(place, place, 1, I32, SUM, comm.0, STREAM)), PROGRESS);
    }
    // Rank 0 has not been polled yet, but its operation is certain to complete.
    assert_eq!(wait_async(comms[1].0), OK);
    assert_eq!(nccl!(ncclCommAbort(comms[1].0)), OK);
    assert_eq!(wait_async(comms[0].0), OK, "{}", last_error());
    assert_eq!(places[0], [3]);
    assert_eq!(async_error(comms[0].0), REMOTE, "then the peer's abort is reported");
    assert_eq!(sum(comms[0].0, 1), Err(REMOTE));
    comms[0].destroy();

    // Likewise for an initialization.
    let id = unique_id();
    let comms = [init_nonblocking(id, 2, 0), init_nonblocking(id, 2, 1)];
    assert_eq!(wait_async(comms[1].0), OK);
    assert_eq!(nccl!(ncclCommAbort(comms[1].0)), OK);
    assert_eq!(wait_async(comms[0].0), OK, "{}", last_error());
    assert_eq!(async_error(comms[0].0), REMOTE);
    comms[0].destroy();

    // And for a split, where both parent and child are polled.
    let comms = init_nonblocking_pair();
    let mut children = [ptr::null_mut(); 2];
    for (comm, child) in comms.iter().zip(&mut children) {
        assert_eq!(nccl!(ncclCommSplit(comm.0, 0, 0, child, ptr::null_mut())), OK);
    }
    comms.iter().for_each(|comm| assert_eq!(wait_async(comm.0), OK));
    assert_eq!(nccl!(ncclCommAbort(children[1])), OK);
    assert_eq!(wait_async(children[0]), OK, "{}", last_error());
    assert_eq!(async_error(children[0]), REMOTE);
    Comm(children[0]).destroy();
    comms.into_iter().for_each(Comm::destroy);
}

/// The text of a wait is not an error, and is returned only for its communicator.
#[test]
fn wait_text_belongs_to_its_communicator_and_keeps_the_last_error() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init_nonblocking_pair();
    assert_eq!(sum(ptr::null_mut(), 1), Err(ARGUMENT));
    let error = last_error();
    let has_own_text =
        |comm: Comm| nccl!(ncclGetLastError(comm.0)) != nccl!(ncclGetLastError(ptr::null_mut()));
    assert_eq!(comms.iter().map(|comm| has_own_text(*comm)).collect::<Vec<_>>(), [false; 2]);
    let mut places = [[0], [7]];
    let [to, from] = places.each_mut().map(|place| place.as_mut_ptr().cast());
    assert_eq!(nccl!(ncclRecv(to, 1, I32, 1, comms[0].0, STREAM)), PROGRESS);
    // Its thread begins the call.
    while !has_own_text(comms[0]) {
        thread::yield_now();
    }
    // SAFETY: a NUL-terminated string, as the header promises.
    let text = unsafe { CStr::from_ptr(nccl!(ncclGetLastError(comms[0].0))) }.to_str().unwrap();
    assert!(text.contains("rank 0 of 2 still waits in call 1, ncclRecv("), "{text}");
    assert_eq!((has_own_text(comms[1]), last_error()), (false, error));
    assert_eq!(nccl!(ncclSend(from, 1, I32, 0, comms[1].0, STREAM)), PROGRESS);
    comms.iter().for_each(|comm| assert_eq!(wait_async(comm.0), OK));
    assert!(!has_own_text(comms[0]));
    assert_eq!(places[0], [7]);
    comms.into_iter().for_each(Comm::destroy);
}

/// Even if the peer had done its part of the operation before it aborted.
#[test]
fn operation_after_peer_abort_returns_remote_error() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init_nonblocking_pair();
    let mut places = [[1], [2]];
    let codes = [0, 1].map(|rank| {
        let place = places[rank].as_mut_ptr().cast();
        let code = nccl!(ncclAllReduce(place, place, 1, I32, SUM, comms[rank].0, STREAM));
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

/// The polling thread gets the text of the background failure, not of an earlier failure on this thread.
#[test]
fn background_failure_sets_last_error_of_polling_thread() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init_nonblocking_pair();
    let mut places = [[1, 0], [2, 0]];
    let addresses = places.each_mut().map(|place| place.as_mut_ptr());
    for (rank, place) in addresses.into_iter().enumerate() {
        let (place, count, comm) = (place.cast(), rank + 1, comms[rank].0);
        assert_eq!(nccl!(ncclAllReduce(place, place, count, I32, SUM, comm, STREAM)), PROGRESS);
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

/// Numbers that calls in progress use, so that they are accessed by their address alone.
struct Numbers(Vec<i32>);

impl Numbers {
    fn new(length: usize, value: i32) -> Self {
        Self(vec![value; length])
    }

    fn at(&mut self, index: usize) -> Address<i32> {
        Address(self.0[index..].as_mut_ptr())
    }
}

/// Starts the sum of `count` numbers, in place.
fn start_sum(Comm(comm): Comm, Address(place): Address<i32>, count: usize) -> ncclResult_t {
    nccl!(ncclAllReduce(place.cast(), place.cast(), count, I32, SUM, comm, STREAM))
}

fn start_send(Comm(comm): Comm, Address(place): Address<i32>, count: usize, peer: i32) -> ncclResult_t {
    nccl!(ncclSend(place.cast(), count, I32, peer, comm, STREAM))
}

/// Waits until no thread of a nonblocking communicator is left.
fn wait_for_end_of_threads() {
    let is_ours = |task: &fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "libnccl-cpu\n")
    };
    let start = Instant::now();
    while fs::read_dir("/proc/self/task").unwrap().flatten().any(|task| is_ours(&task)) {
        assert!(start.elapsed() < LIMIT, "a thread is left");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The calls after a group do not wait for its operations on another communicator.
#[test]
fn group_of_two_comms_blocks_neither() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let (first, second) = (init_nonblocking_pair(), init_nonblocking_pair());
    let mut numbers = Numbers::new(6, 1);
    let place: [_; 6] = std::array::from_fn(|index| numbers.at(index));
    assert_eq!(nccl!(ncclGroupStart()), OK);
    assert_eq!([start_sum(first[0], place[0], 1), start_sum(second[0], place[1], 1)], [OK; 2]);
    assert_eq!(nccl!(ncclGroupEnd()), PROGRESS);
    assert_eq!(start_sum(first[0], place[2], 1), PROGRESS, "{}", last_error());
    assert_eq!([start_sum(first[1], place[3], 1), start_sum(first[1], place[4], 1)], [PROGRESS; 2]);
    first.iter().for_each(|comm| assert_eq!(wait_async(comm.0), OK, "{}", last_error()));
    assert_eq!(async_error(second[0].0), PROGRESS);
    assert_eq!(start_sum(second[1], place[5], 1), PROGRESS);
    second.iter().for_each(|comm| assert_eq!(wait_async(comm.0), OK, "{}", last_error()));
    assert_eq!(numbers.0, [2; 6]);
    first.into_iter().chain(second).for_each(Comm::destroy);
}

/// Like blocking communicators: the ranks continue after an error that keeps them in step.
#[test]
fn first_error_of_queued_operations_is_reported_and_the_rest_succeeds() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init_nonblocking_pair();
    let mut numbers = [Numbers::new(6, 1), Numbers::new(6, 10)];
    for (me, numbers) in numbers.iter_mut().enumerate() {
        let places = [numbers.at(0), numbers.at(2), numbers.at(4)];
        for (place, count) in places.into_iter().zip([1 + me, 2 - me, 2]) {
            assert_eq!(start_sum(comms[me], place, count), PROGRESS, "{}", last_error());
        }
    }
    // Rank 1's first operation may have ended before its next one was called.
    wait_async(comms[1].0);
    assert_eq!(wait_async(comms[0].0), USAGE);
    assert_last_error("rank 1 called ncclAllReduce(count 2, ncclInt32, ncclSum)");
    let [Numbers(one), Numbers(ten)] = &numbers;
    assert_eq!((&one[..], &ten[..]), (&[1, 1, 1, 1, 11, 11][..], &[10, 10, 10, 10, 11, 11][..]));

    // It is not reported again after a call that was made when none was in progress.
    let places = numbers.each_mut().map(|numbers| numbers.at(0));
    for (comm, place) in comms.iter().zip(places) {
        assert_eq!(start_sum(*comm, place, 1), PROGRESS);
    }
    comms.iter().for_each(|comm| assert_eq!(wait_async(comm.0), OK));
    comms.into_iter().for_each(Comm::destroy);
    wait_for_end_of_threads();
}

#[test]
fn queued_operations_after_a_remote_error_do_not_run() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init_nonblocking_pair();
    let mut numbers = Numbers::new(3, 1);
    let places = [numbers.at(0), numbers.at(1), numbers.at(2)];
    assert_eq!(start_sum(comms[0], places[0], 1), PROGRESS);
    // Rank 1 would never receive it, and it is short enough to be sent without waiting.
    assert_eq!(start_send(comms[0], places[1], 1, 1), PROGRESS, "{}", last_error());
    assert_eq!(start_sum(comms[0], places[2], 1), PROGRESS);
    assert_eq!(nccl!(ncclCommAbort(comms[1].0)), OK);
    assert_eq!(wait_async(comms[0].0), REMOTE);
    assert_last_error("rank 1 aborted the communicator");
    assert_eq!(start_sum(comms[0], places[2], 1), REMOTE);
    assert_eq!(numbers.0, [1; 3]);
    comms[0].destroy();
}

/// NCCL refuses all calls while one is in progress.
#[test]
fn call_that_needs_an_idle_comm_is_refused_while_one_is_in_progress() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init_nonblocking_pair();
    let mut numbers = [Numbers::new(1024, 1), Numbers::new(1024, 10)];
    let [one, ten] = numbers.each_mut().map(|numbers| numbers.at(0));
    for _ in 0..2 {
        assert_eq!(start_sum(comms[0], one, 1024), PROGRESS, "{}", last_error());
    }
    let (Comm(comm), mut child, none) = (comms[0], ptr::null_mut(), ptr::null_mut());
    let assert_refused = |code| {
        assert_eq!(code, ARGUMENT);
        assert_last_error("the communicator is still busy");
    };
    assert_refused(nccl!(ncclCommSplit(comm, 0, 0, &mut child, none)));
    assert_refused(nccl!(ncclCommShrink(comm, [1].as_mut_ptr(), 1, &mut child, none, 0)));
    assert_refused(nccl!(ncclCommGrow(comm, 3, ptr::null(), -1, &mut child, none)));
    assert_refused(nccl!(ncclCommWindowRegister(comm, one.0.cast(), 4096, &mut ptr::null_mut(), 0)));
    assert_refused(nccl!(ncclCommSuspend(comm, NCCL_SUSPEND_MEM as i32)));
    assert_refused(nccl!(ncclCommFinalize(comm)));
    // Before ncclGroupEnd, where it is found that the group creates a communicator, too.
    assert_eq!(nccl!(ncclGroupStart()), OK);
    let mut other = ptr::null_mut();
    assert_eq!(nccl!(ncclCommInitRankConfig(&mut other, 1, unique_id(), 0, &mut nonblocking())), OK);
    assert_eq!(start_sum(comms[0], one, 1024), OK);
    assert_refused(nccl!(ncclGroupEnd()));
    for _ in 0..2 {
        assert_eq!(start_sum(comms[1], ten, 1024), PROGRESS);
    }
    comms.iter().for_each(|comm| assert_eq!(wait_async(comm.0), OK, "{}", last_error()));
    assert!(numbers.iter().all(|Numbers(all)| all.iter().all(|number| *number == 22)));

    // And nothing is queued behind a call that changes the communicator.
    assert_eq!(nccl!(ncclCommSuspend(comm, NCCL_SUSPEND_MEM as i32)), PROGRESS);
    assert_refused(start_sum(comms[0], one, 1024));
    assert_eq!(nccl!(ncclCommSuspend(comms[1].0, NCCL_SUSPEND_MEM as i32)), PROGRESS);
    comms.iter().for_each(|comm| assert_eq!(wait_async(comm.0), OK, "{}", last_error()));
    comms.into_iter().for_each(Comm::destroy);
}

/// As in NCCL, the handle of a growing communicator is valid immediately.
#[test]
fn grow_of_a_nonblocking_comm_returns_success_in_progress() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init_nonblocking_pair();
    let (mut id, mut grown) = (ncclUniqueId::default(), [ptr::null_mut(); 3]);
    assert_eq!(nccl!(ncclCommGetUniqueId(comms[0].0, &mut id)), OK);
    let mut config = nonblocking();
    for (rank, grown) in grown.iter_mut().enumerate() {
        let (comm, number) = comms.get(rank).map_or((ptr::null_mut(), rank as i32), |comm| (comm.0, -1));
        let id = if rank == 1 { ptr::null() } else { &raw const id };
        assert_eq!(nccl!(ncclCommGrow(comm, 3, id, number, grown, &mut config)), OK, "{}", last_error());
        // As in NCCL, this handle is valid immediately.
        assert!(rank == 2 || async_error(*grown) == PROGRESS);
    }
    grown.iter().for_each(|comm| assert_eq!(wait_async(*comm), OK, "{}", last_error()));
    comms.iter().for_each(|comm| assert_eq!(wait_async(comm.0), OK, "{}", last_error()));
    grown.iter().for_each(|comm| assert_eq!(count(*comm), 3));
    grown.into_iter().for_each(|comm| Comm(comm).destroy());
    comms.into_iter().for_each(Comm::destroy);
}
