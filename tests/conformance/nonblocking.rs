//! Nonblocking communicators.

use std::ptr;
use std::thread;
use std::time::Duration;

use libnccl::sys::ncclComm_t;

use crate::implementation::Implementation;
use crate::rank::{MOMENT, OK, PROGRESS, Rank};
use crate::{Case, cases};

pub(crate) fn cases() -> Vec<Case> {
    cases! {
        1..=3 => creating_calls_succeed_in_progress;
        2..=2 => operations_called_while_one_is_in_progress_run_in_order, group_runs_after_an_operation_in_progress,
            operations_on_two_communicators_in_opposite_orders_complete, destroy_waits_for_operations,
            abort_ends_all_operations;
    }
}

/// More than any buffer between two ranks holds.
const MANY: usize = 1 << 20;

/// NCCL refuses calls while one is in progress. The CPU backend queues them.
fn settle(rank: &Rank, comm: ncclComm_t) {
    if !rank.implementation.is_cpu_backend() {
        rank.finish(comm);
    }
}

/// A rank continues while its first call waits for the other rank.
fn operations_called_while_one_is_in_progress_run_in_order(rank: &Rank) {
    let (comm, buffer) =
        (rank.join_nonblocking("communicator"), rank.upload(&[1, 10][rank.number..][..1].repeat(MANY)));
    if rank.number == 1 {
        rank.receive("rank 0 has called");
    }
    for _ in 0..4 {
        settle(rank, comm);
        rank.start_sum(comm, &buffer);
    }
    if rank.number == 0 {
        assert!(!rank.is_done_within(comm, MOMENT), "none has its result yet");
        // On the emulation, a call has ended when the operation is enqueued, though the peer has not called.
        assert!(rank.implementation != Implementation::Emulation || rank.async_error(comm) == OK);
        assert_eq!(rank.place(comm), (2, 0), "queries are allowed");
        rank.publish("rank 0 has called", "");
    }
    rank.finish(comm);
    assert!(buffer.read::<i32>().iter().all(|number| *number == 11 * 8));
    rank.destroy(comm);
}

fn group_runs_after_an_operation_in_progress(rank: &Rank) {
    let (comm, me) = (rank.join_nonblocking("communicator"), rank.number as i32 + 1);
    let [summed, received, again] = [me, 0, me].map(|value| rank.upload(&vec![value; MANY]));
    rank.start_sum(comm, &summed);
    settle(rank, comm);
    let code = rank.group(|| {
        rank.send(&summed, 1 - rank.number, comm);
        rank.receive_into(&received, 1 - rank.number, comm);
    });
    assert!(code == OK || code == PROGRESS, "{code:?}: {}", rank.last_error());
    settle(rank, comm);
    rank.start_sum(comm, &again);
    rank.finish(comm);
    for buffer in [summed, received, again] {
        assert!(buffer.read::<i32>().iter().all(|number| *number == 3));
    }
    rank.destroy(comm);
}

fn operations_on_two_communicators_in_opposite_orders_complete(rank: &Rank) {
    if rank.implementation.has_device_memory() {
        rank.skip("operations on one stream run in its order");
    }
    let (first, second) = (rank.join_nonblocking("first"), rank.join_nonblocking("second"));
    let me = rank.number as i32 + 1;
    let [sent, received, summed] = [me, 0, me].map(|value| rank.upload(&vec![value; MANY]));
    for turn in 0..3 {
        let is_message_first = (rank.number + turn).is_multiple_of(2);
        for is_message in [is_message_first, !is_message_first] {
            match (is_message, rank.number) {
                (false, _) => rank.start_sum(second, &summed),
                (true, 0) => rank.send(&sent, 1, first),
                (true, _) => rank.receive_into(&received, 0, first),
            }
        }
    }
    [first, second].into_iter().for_each(|comm| rank.finish(comm));
    assert!(summed.read::<i32>().iter().all(|number| *number == 12));
    assert!(received.read::<i32>().iter().all(|number| *number == rank.number as i32));
    [first, second].into_iter().for_each(|comm| rank.destroy(comm));
}

/// A call that creates something returns success, and the communicator has the state of the call.
fn creating_calls_succeed_in_progress(rank: &Rank) {
    let (comm, mut child) = (rank.join_nonblocking("communicator"), ptr::null_mut());
    if rank.size > 1 && rank.number == 1 {
        rank.receive("rank 0 waits");
    }
    let code = call!(rank, ncclCommSplit(comm, 0, 0, &mut child, ptr::null_mut()));
    assert!(code == OK || code == PROGRESS && !rank.implementation.is_cpu_backend(), "{code:?}");
    if rank.size > 1 && rank.number == 0 {
        assert_eq!(rank.async_error(comm), PROGRESS);
        rank.publish("rank 0 waits", "");
    }
    rank.finish(comm);
    rank.finish(child);
    rank.assert_works(child);
    rank.destroy(child);
    let (buffer, mut window) = (rank.upload_to_nccl(&[0_i32; 1024]), ptr::null_mut());
    let code = call!(rank, ncclCommWindowRegister(comm, buffer.at(0), 4096, &mut window, 0));
    rank.expect_success("ncclCommWindowRegister", code);
    rank.finish(comm);
    rank.barrier("registered");
    if !window.is_null() {
        check!(rank, ncclCommWindowDeregister(comm, window));
    }
    rank.destroy(comm);
}

fn destroy_waits_for_operations(rank: &Rank) {
    let (comm, buffer) = (rank.join_nonblocking("communicator"), rank.upload(&[rank.number as i32 + 1]));
    if rank.number == 1 {
        rank.receive("rank 0 ends");
        thread::sleep(MOMENT);
    }
    for _ in 0..3 {
        settle(rank, comm);
        rank.start_sum(comm, &buffer);
    }
    if rank.number == 0 {
        rank.publish("rank 0 ends", "");
    }
    assert_eq!(call!(rank, ncclCommDestroy(comm)), OK);
    assert!(!rank.implementation.is_cpu_backend() || rank.is_idle_within(Duration::ZERO));
    assert_eq!(buffer.read::<i32>(), [12]);
}

fn abort_ends_all_operations(rank: &Rank) {
    let comm = rank.join_nonblocking("communicator");
    rank.assert_works(comm);
    if rank.number == 1 {
        rank.receive("rank 0 has aborted");
        assert_eq!(rank.soon(|| call!(rank, ncclCommAbort(comm))), OK);
        return;
    }
    let buffer = rank.upload(&vec![1_i32; MANY]);
    rank.start_sum(comm, &buffer);
    if rank.implementation.is_cpu_backend() {
        for _ in 0..100 {
            rank.send(&buffer, 1 - rank.number, comm);
            rank.receive_into(&buffer, 1 - rank.number, comm);
        }
    }
    assert_eq!(rank.soon(|| call!(rank, ncclCommAbort(comm))), OK);
    // Nothing uses the buffer any more.
    assert!(
        rank.implementation.has_device_memory() || buffer.read::<i32>().iter().all(|number| *number == 1)
    );
    rank.publish("rank 0 has aborted", "");
}
