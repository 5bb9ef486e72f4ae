//! Nonblocking communicators.

use std::ffi::CStr;
use std::ptr;
use std::thread;
use std::time::Duration;

use libnccl::sys::NCCL_SUSPEND_MEM;

use crate::common::{
    ARGUMENT, Comm, Memory, OK, PROGRESS, REMOTE, USAGE, all_reduce, alone, assert_last_error, async_error,
    in_group, init_nonblocking, last_error, nonblocking, receive, send, sum, unique_id, wait_async,
    wait_for_peers,
};

/// Creates a nonblocking communicator of two ranks, and waits for it.
fn init_nonblocking_pair() -> [Comm; 2] {
    let id = unique_id();
    let comms = [init_nonblocking(id, 2, 0), init_nonblocking(id, 2, 1)];
    comms.iter().for_each(|comm| assert_eq!(wait_async(comm.0), OK));
    comms
}

/// Returns memory for calls in progress, which use it by its address alone.
fn numbers(length: usize, value: i32) -> Memory {
    let memory = Memory::new(length);
    memory.elements().fill(value);
    memory
}

/// A rank gets the result of its call first, even if a peer has aborted since.
#[test]
fn completed_call_stays_successful_after_peer_abort() {
    let _alone = alone();
    let comms = init_nonblocking_pair();
    // In use until the communicators are destroyed.
    let numbers = numbers(2, 1);
    for (number, comm) in numbers.elements().chunks_mut(1).zip(&comms) {
        assert_eq!(all_reduce(number, comm.0), PROGRESS);
    }
    let end = |comms: [Comm; 2]| {
        // Rank 0 has not been polled yet, but its call is certain to complete.
        assert_eq!(wait_async(comms[1].0), OK);
        assert_eq!(nccl!(ncclCommAbort(comms[1].0)), OK);
        assert_eq!(wait_async(comms[0].0), OK, "{}", last_error());
        assert_eq!(async_error(comms[0].0), REMOTE, "then the peer's abort is reported");
        assert_eq!(sum(comms[0].0, 1), Err(REMOTE));
        comms[0].destroy();
    };
    end(comms);
    assert_eq!(numbers.elements(), [2; 2]);

    // Likewise for an initialization.
    let id = unique_id();
    end([init_nonblocking(id, 2, 0), init_nonblocking(id, 2, 1)]);
}

/// The text of a wait is not an error, and is returned only for its communicator.
#[test]
fn wait_text_belongs_to_its_communicator_and_keeps_the_last_error() {
    let _alone = alone();
    let comms = init_nonblocking_pair();
    assert_eq!(sum(ptr::null_mut(), 1), Err(ARGUMENT));
    let error = last_error();
    let has_own_text =
        |comm: Comm| nccl!(ncclGetLastError(comm.0)) != nccl!(ncclGetLastError(ptr::null_mut()));
    assert_eq!(comms.map(has_own_text), [false; 2]);
    let numbers = numbers(2, 7);
    let (to, from) = numbers.elements().split_at_mut(1);
    assert_eq!(receive(to, 1, comms[0].0), PROGRESS);
    // Its thread begins the call.
    while !has_own_text(comms[0]) {
        thread::yield_now();
    }
    // SAFETY: a NUL-terminated string, as the header promises.
    let text = unsafe { CStr::from_ptr(nccl!(ncclGetLastError(comms[0].0))) }.to_str().unwrap();
    assert!(text.contains("rank 0 of 2 still waits in call 1, ncclRecv("), "{text}");
    assert_eq!((has_own_text(comms[1]), last_error()), (false, error));
    assert_eq!(send(from, 0, comms[1].0), PROGRESS);
    comms.iter().for_each(|comm| assert_eq!(wait_async(comm.0), OK));
    assert!(!has_own_text(comms[0]));
    comms.into_iter().for_each(Comm::destroy);
}

/// The rank whose number is beyond the root's number of ranks fails all, also one that joins later.
#[test]
fn failed_nonblocking_init_leaves_comm_to_query() {
    let (_alone, id) = (alone(), unique_id());
    let root = init_nonblocking(id, 2, 0);
    wait_for_peers(&id, 0);
    let beyond = init_nonblocking(id, 3, 2);
    thread::sleep(Duration::from_millis(100));
    let comms = [root, beyond, init_nonblocking(id, 2, 1)];
    for comm in comms {
        assert_eq!(wait_async(comm.0), USAGE);
        assert_eq!(sum(comm.0, 1), Err(USAGE));
        assert_last_error("the ranks passed different nranks: rank 2 passed 3, rank 0 passed 2");
        assert_eq!(nccl!(ncclCommRevoke(comm.0, 0)), USAGE);
    }
    assert_eq!(nccl!(ncclCommAbort(comms[0].0)), OK);
    comms[1..].iter().for_each(|comm| comm.destroy());
}

/// Like blocking communicators: the ranks continue after an error that keeps them in step.
#[test]
fn first_error_of_queued_operations_is_reported_and_the_rest_succeeds() {
    let _alone = alone();
    let comms = init_nonblocking_pair();
    let numbers = [numbers(6, 1), numbers(6, 10)];
    for (me, numbers) in numbers.iter().enumerate() {
        for (place, count) in numbers.elements().chunks_mut(2).zip([1 + me, 2 - me, 2]) {
            assert_eq!(all_reduce(&mut place[..count], comms[me].0), PROGRESS, "{}", last_error());
        }
    }
    // Rank 1's first operation may have ended before its next one was called.
    wait_async(comms[1].0);
    // The polling thread gets the text of the failure in the background, not of an earlier failure on this thread.
    assert_eq!(sum(ptr::null_mut(), 1), Err(ARGUMENT));
    assert_eq!(wait_async(comms[0].0), USAGE);
    assert_last_error("rank 1 called ncclAllReduce(count 2, ncclInt32, ncclSum)");
    assert_eq!(numbers[0].elements(), [1, 1, 1, 1, 11, 11]);
    assert_eq!(numbers[1].elements(), [10, 10, 10, 10, 11, 11]);

    // It is not reported again after a call that was made when none was in progress.
    for (comm, numbers) in comms.iter().zip(&numbers) {
        assert_eq!(all_reduce(&mut numbers.elements()[..1], comm.0), PROGRESS);
    }
    comms.iter().for_each(|comm| assert_eq!(wait_async(comm.0), OK));
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn queued_operations_after_a_remote_error_do_not_run() {
    let _alone = alone();
    let comms = init_nonblocking_pair();
    let numbers = numbers(3, 1);
    let at = |index: usize| &mut numbers.elements()[index..=index];
    assert_eq!(all_reduce(at(0), comms[0].0), PROGRESS);
    // Rank 1 would never receive it, and it is short enough to be sent without waiting.
    assert_eq!(send(at(1), 1, comms[0].0), PROGRESS, "{}", last_error());
    assert_eq!(all_reduce(at(2), comms[0].0), PROGRESS);
    assert_eq!(nccl!(ncclCommAbort(comms[1].0)), OK);
    assert_eq!(wait_async(comms[0].0), REMOTE);
    assert_last_error("rank 1 aborted the communicator");
    assert_eq!(all_reduce(at(2), comms[0].0), REMOTE);
    assert_eq!(numbers.elements(), [1; 3]);
    comms[0].destroy();
}

/// NCCL refuses all calls while one is in progress.
#[test]
fn call_that_needs_an_idle_comm_is_refused_while_one_is_in_progress() {
    let _alone = alone();
    let comms = init_nonblocking_pair();
    let [one, ten] = [numbers(1024, 1), numbers(1024, 10)];
    for _ in 0..2 {
        assert_eq!(all_reduce(one.elements(), comms[0].0), PROGRESS, "{}", last_error());
    }
    let (Comm(comm), mut child, none) = (comms[0], ptr::null_mut(), ptr::null_mut());
    let assert_refused = |code| {
        assert_eq!(code, ARGUMENT);
        assert_last_error("the communicator is still busy");
    };
    assert_refused(nccl!(ncclCommSplit(comm, 0, 0, &mut child, none)));
    assert_refused(nccl!(ncclCommShrink(comm, [1].as_mut_ptr(), 1, &mut child, none, 0)));
    assert_refused(nccl!(ncclCommGrow(comm, 3, ptr::null(), -1, &mut child, none)));
    assert_refused(nccl!(ncclCommWindowRegister(comm, one.start.cast(), 4096, &mut ptr::null_mut(), 0)));
    assert_refused(nccl!(ncclCommSuspend(comm, NCCL_SUSPEND_MEM as i32)));
    assert_refused(nccl!(ncclCommFinalize(comm)));
    // Before ncclGroupEnd, where it is found that the group creates a communicator, too.
    let mut other = ptr::null_mut();
    assert_refused(in_group(|| {
        assert_eq!(nccl!(ncclCommInitRankConfig(&mut other, 1, unique_id(), 0, &mut nonblocking())), OK);
        assert_eq!(all_reduce(one.elements(), comms[0].0), OK);
    }));
    for _ in 0..2 {
        assert_eq!(all_reduce(ten.elements(), comms[1].0), PROGRESS);
    }
    comms.iter().for_each(|comm| assert_eq!(wait_async(comm.0), OK, "{}", last_error()));
    assert!([&one, &ten].iter().all(|memory| memory.elements().iter().all(|number| *number == 22)));

    // And nothing is queued behind a call that changes the communicator.
    assert_eq!(nccl!(ncclCommSuspend(comm, NCCL_SUSPEND_MEM as i32)), PROGRESS);
    assert_refused(all_reduce(one.elements(), comms[0].0));
    assert_eq!(nccl!(ncclCommSuspend(comms[1].0, NCCL_SUSPEND_MEM as i32)), PROGRESS);
    comms.iter().for_each(|comm| assert_eq!(wait_async(comm.0), OK, "{}", last_error()));
    comms.into_iter().for_each(Comm::destroy);
}
