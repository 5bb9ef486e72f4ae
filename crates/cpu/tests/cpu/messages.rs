//! Sends and receives that do not match or whose peer exits, and mismatches that the real NCCL ignores: sends that were never
//! received, calls of count 0 on some ranks only, and sends that return only because there is buffer space for their data.
//!
//! The environment is read once per process, and reports go to the standard error, so most of these ranks are threads of a
//! separate process.

use std::sync::Barrier;

use crate::common::processes::{self, RankProcess};
use crate::common::{
    self, Comm, Memory, OK, REMOTE, USAGE, all_reduce, alone, assert_last_error, broadcast, in_group, init,
    last_error, on_threads, receive, send, split, wait_until,
};
use libnccl::sys::ncclResult_t;

/// Elements of the longest send that does not wait, and the number of such sends that fit.
const MAX: usize = (64 << 10) / 4;
const MESSAGES: usize = 4;

rank_tasks!(
    send_after_mismatch,
    leave_messages_unreceived,
    receive_after_the_sender_left,
    send_and_sum_in_different_orders,
    exchange_nothing,
    exchange_and_sum_in_group,
    call_on_rank_0_only,
    receive_after_the_send
);

fn send_ones(count: usize, peer: usize, Comm(comm): Comm) -> ncclResult_t {
    send(&vec![1.0_f32; count], peer, comm)
}

fn receive_ones(count: usize, peer: usize, Comm(comm): Comm) -> ncclResult_t {
    let mut buffer = vec![0.0_f32; count];
    let code = receive(&mut buffer, peer, comm);
    assert!(code != OK || buffer.iter().all(|element| *element == 1.0));
    code
}

fn sum(count: usize, Comm(comm): Comm) -> ncclResult_t {
    all_reduce(&mut vec![1.0_f32; count], comm)
}

/// Runs `task` in a process that has both ranks of a communicator, and returns its output.
#[track_caller]
fn run(task: &str, variables: &[(&str, &str)]) -> String {
    processes::run(task, [[0, 1]], variables).concat()
}

const LIMIT: (&str, &str) = ("LIBNCCL_CPU_TIMEOUT", "60");
const STRICT: (&str, &str) = ("LIBNCCL_CPU_STRICT", "1");

fn on_both(process: &RankProcess, body: impl Fn(usize, Comm) + Sync) {
    on_threads(2, |rank| body(rank, process.join_as(rank)));
}

/// Asserts that a call failed because it, or another rank's, waited for too long.
#[track_caller]
fn assert_given_up(code: ncclResult_t) {
    assert_eq!(code, REMOTE, "{}", last_error());
    assert_last_error("waited longer than LIBNCCL_CPU_TIMEOUT");
}

#[track_caller]
fn assert_prints(printed: &str, part: &str) {
    assert_eq!(printed.matches(part).count(), 1, "{part:?} once in {printed}");
}

fn send_after_mismatch(process: &RankProcess) {
    let (rank, Comm(comm), memory) = (process.rank(), process.join(), Memory::new(100_000));
    memory.elements().fill(if rank == 0 { 7 } else { 0 });
    for length in [10, 100_000] {
        let own = &mut memory.elements()[..length];
        let code = if rank == 0 { send(own, 1, comm) } else { receive(&mut own[1..], 0, comm) };
        // A sender that does not wait gets no error.
        assert_eq!(code, if rank == 0 && length == 10 { OK } else { USAGE });
        if code == USAGE {
            assert_last_error(&format!(
                "rank 0 called ncclSend(count {length}, ncclInt32) to rank 1, which called ncclRecv(count {}, ncclInt32)",
                length - 1
            ));
        }
        let code = if rank == 0 { send(own, 1, comm) } else { receive(own, 0, comm) };
        assert_eq!((code, own.iter().all(|element| *element == 7)), (OK, true), "{}", last_error());
        own.fill(if rank == 0 { 7 } else { 0 });
    }
    Comm(comm).destroy();
}

#[test]
fn count_mismatch_is_invalid_usage_and_drops_the_message() {
    processes::run("send_after_mismatch", [[0], [1]], &[]);
}

/// The later calls were paired with others, and got wrong sums.
#[test]
fn empty_collective_on_one_rank_is_invalid_usage_until_the_other_calls_it() {
    let _alone = alone();
    for length in [1, 100_000] {
        let comms = init(2);
        assert_eq!(sum(0, comms[0]), OK);
        assert_eq!(on_threads(2, |rank| sum(length, comms[rank])), [USAGE; 2]);
        assert_last_error(&format!(
            "before this call, rank 0 made 1 collective of count 0 that rank 1 did not make, the last of them \
             ncclAllReduce(count 0, ncclFloat32, ncclSum): rank 1 called ncclAllReduce(count {length}, "
        ));
        assert_eq!(sum(0, comms[1]), OK);
        // In a group on one rank only, they keep their order.
        on_threads(2, |rank| {
            let mut buffer = vec![1.0_f32; length];
            let mut both = || {
                [length, 0]
                    .iter()
                    .for_each(|count| assert_eq!(all_reduce(&mut buffer[..*count], { comms[rank] }.0), OK));
            };
            if rank == 0 { assert_eq!(in_group(both), OK) } else { both() }
        });
        assert_eq!(on_threads(2, |rank| sum(length, comms[rank])), [OK; 2]);
        // They are counted beyond 256, and before a split.
        on_threads(2, |rank| (0..300 - 2 * rank).for_each(|_| assert_eq!(sum(0, comms[rank]), OK)));
        assert_eq!(on_threads(2, |rank| split({ comms[rank] }.0, 0, 0).map(drop)), [Err(USAGE); 2]);
        assert_last_error("rank 0 made 2 collectives of count 0 that rank 1 did not make, the last of them");
        comms.into_iter().for_each(Comm::destroy);
    }
}

/// Makes a call that waits for rank 1, which makes none, until the limit of waits.
fn call_on_rank_0_only(process: &RankProcess) {
    on_both(process, |rank, comm| {
        if rank == 1 {
            return wait_until("rank 0 gives up", || common::async_error(comm.0) == REMOTE);
        }
        assert_given_up(match process.arguments[0].as_str() {
            "sum" => sum(0, comm),
            "broadcast" => broadcast(&mut [0_f32], 0, comm.0),
            "receive" => receive_ones(0, 1, comm),
            _ => send_ones(1, 1, comm),
        });
    });
}

#[test]
fn calls_that_need_no_peer_wait_in_strict_mode() {
    let [warn_after, timeout] = processes::limits();
    for (kind, call) in [
        ("sum", "ncclAllReduce(count 0, ncclFloat32, ncclSum)"),
        ("broadcast", "ncclBroadcast(count 1, ncclFloat32, root 0)"),
        ("receive", "ncclRecv(count 0, ncclFloat32, peer 1)"),
        ("send", "ncclSend(count 1, ncclFloat32, peer 1)"),
    ] {
        let printed = run(&format!("call_on_rank_0_only {kind}"), &[warn_after, timeout, STRICT]);
        assert_prints(&printed, &format!("rank 0 of 2 still waits in call 1, {call}, for rank 1 (process "));
        let why = "(LIBNCCL_CPU_STRICT is 1: every send waits for its receiver)";
        assert_eq!(printed.contains(why), kind == "send", "{printed}");
    }
}

fn exchange_nothing(process: &RankProcess) {
    on_both(process, |rank, comm| {
        for _ in 0..3 {
            assert_eq!(sum(0, comm), OK, "{}", last_error());
            if rank == 0 {
                assert_eq!([send_ones(0, 1, comm), send_ones(1, 1, comm)], [OK; 2]);
            } else {
                assert_eq!([receive_ones(0, 0, comm), receive_ones(1, 0, comm)], [OK; 2]);
            }
            // To itself, which can only be in a group.
            let group = in_group(|| {
                assert_eq!([send_ones(0, rank, comm), receive_ones(0, rank, comm)], [OK; 2]);
            });
            assert_eq!(group, OK, "{}", last_error());
            assert_eq!(sum(1, comm), OK, "{}", last_error());
        }
        assert_eq!(if rank == 0 { send_ones(0, 1, comm) } else { receive_ones(1, 0, comm) }, USAGE);
        comm.destroy();
    });
}

/// Both ranks tear down their communicator with the function in the second argument; the rank in the first argument goes first.
fn leave_messages_unreceived(process: &RankProcess) {
    let (first, how) = (usize::from(process.arguments[0] == "receiver"), process.arguments[1].as_str());
    let comms = on_threads(2, |rank| {
        let comm = process.join_as(rank);
        if rank == 0 {
            (0..3).for_each(|_| assert_eq!(send_ones(1000, 1, comm), OK));
            assert_eq!(send_ones(7, 1, comm), OK);
        } else {
            assert_eq!(receive_ones(1000, 0, comm), OK);
        }
        assert_eq!(sum(10, comm), OK);
        comm
    });
    for comm in [comms[first], comms[1 - first]] {
        match how {
            "abort" => assert_eq!(nccl!(ncclCommAbort(comm.0)), OK),
            "finalize" => {
                assert_eq!([nccl!(ncclCommFinalize(comm.0)), nccl!(ncclCommDestroy(comm.0))], [OK; 2]);
            }
            _ => comm.destroy(),
        }
    }
}

/// The receiver reports its unreceived sends; the sender only those that can no longer be received; an aborted communicator none.
#[test]
fn unreceived_messages_are_reported_by_each_rank_that_detects_them() {
    for (first, how, of_receiver, of_sender) in [
        ("receiver", "destroy", 1, 1),
        ("receiver", "finalize", 1, 1),
        ("sender", "destroy", 1, 0),
        ("receiver", "abort", 0, 0),
    ] {
        let printed = run(&format!("leave_messages_unreceived {first} {how}"), &[]);
        for (rank, times) in [(1, of_receiver), (0, of_sender)] {
            let report = format!(
                ", rank {rank} of 2 leaves, and 3 sends of rank 0 were never received by rank 1: 2 x \
                 ncclSend(count 1000, ncclFloat32, peer 1), 1 x ncclSend(count 7, ncclFloat32, peer 1) [unreceived-message]\n"
            );
            assert_eq!(printed.matches(&report).count(), times, "{first} {how}: {printed}");
        }
    }
}

/// Sends made before the sender destroys its communicator arrive; later calls, and sends that wait, are errors.
fn receive_after_the_sender_left(process: &RankProcess) {
    let sent = Barrier::new(2);
    on_both(process, |rank, comm| {
        if rank == 0 {
            assert_eq!([send_ones(1000, 1, comm), send_ones(MAX, 1, comm)], [OK; 2]);
            comm.destroy();
        }
        sent.wait();
        if rank == 1 {
            assert_eq!([receive_ones(1000, 0, comm), receive_ones(MAX, 0, comm)], [OK; 2]);
            assert_eq!([receive_ones(1, 0, comm), send_ones(100_000, 0, comm)], [REMOTE; 2]);
            assert_last_error("rank 0 has finalized or destroyed");
            comm.destroy();
        }
    });
}

/// NCCL runs the group's collective before its send, and hangs, as strict mode does (`mistakes.rs`).
fn send_and_sum_in_different_orders(process: &RankProcess) {
    const COUNT: usize = 1_000_000;
    on_both(process, |rank, comm| {
        let (mut summed, sent) = (vec![1.0_f32; COUNT], vec![1.0_f32; COUNT]);
        if rank == 0 {
            let both = || assert_eq!([all_reduce(&mut summed, comm.0), send(&sent, 1, comm.0)], [OK; 2]);
            assert_eq!(in_group(both), OK, "{}", last_error());
        } else {
            assert_eq!([receive_ones(COUNT, 0, comm), sum(COUNT, comm)], [OK, OK], "{}", last_error());
        }
    });
}

#[test]
fn send_grouped_after_collective_does_not_wait_for_it() {
    run("send_and_sum_in_different_orders", &[LIMIT]);
}

fn exchange_and_sum_in_group(process: &RankProcess) {
    on_both(process, |rank, Comm(comm)| {
        for count in [1, MAX, 300_000] {
            let (peer, sent) = (1 - rank, vec![1.0_f32; count]);
            let (mut received, mut summed) = (vec![0.0_f32; count], vec![2.0_f32; count]);
            let code = in_group(|| {
                assert_eq!([send(&sent, peer, comm), receive(&mut received, peer, comm)], [OK; 2]);
                assert_eq!([all_reduce(&mut summed, comm), all_reduce(&mut summed, comm)], [OK; 2]);
            });
            assert_eq!(code, OK, "{}", last_error());
            assert!(received == sent, "{count} received");
            assert!(summed.iter().all(|element| *element == 8.0), "{count} summed");
        }
        Comm(comm).destroy();
    });
}

#[test]
fn calls_that_match_complete_and_are_not_reported() {
    for (task, variables) in [
        ("exchange_nothing", &[LIMIT, STRICT][..]),
        ("exchange_and_sum_in_group", &[LIMIT, STRICT]),
        ("receive_after_the_sender_left", &[]),
    ] {
        let printed = run(task, variables);
        assert!(!printed.contains("libnccl-cpu"), "{task}: {printed}");
    }
}

#[test]
fn invalid_settings_are_reported_and_ignored() {
    let limit = "LIBNCCL_CPU_TIMEOUT";
    let mut settings = vec![("LIBNCCL_CPU_STRICT", "yes", "0 or 1")];
    settings.extend(["", "-1", "10s", "inf", "1e40"].map(|value| (limit, value, "a number of seconds")));
    for (name, value, expected) in settings {
        let printed = run("receive_after_the_sender_left", &[(name, value)]);
        let text = format!("libnccl-cpu: {name} is {value:?}, which is ignored; expected {expected}\n");
        assert_prints(&printed, &text);
    }
}

/// Each rank makes its sends, and the other then its receives.
fn receive_after_the_send(process: &RankProcess) {
    let (count, sent) = (process.arguments[0].parse().unwrap(), Barrier::new(2));
    let check = if count <= MAX { |code| assert_eq!(code, OK, "{}", last_error()) } else { assert_given_up };
    on_both(process, |rank, comm| {
        let times = if count <= MAX { MESSAGES } else { 1 };
        (0..times).for_each(|_| check(send_ones(count, 1 - rank, comm)));
        sent.wait();
        (0..times).for_each(|_| check(receive_ones(count, 1 - rank, comm)));
    });
}

#[test]
fn only_long_sends_wait_for_their_receivers() {
    run(&format!("receive_after_the_send {MAX}"), &[LIMIT]);
    let printed = run(&format!("receive_after_the_send {}", MAX + 1), &processes::limits());
    for peer in [0, 1] {
        let call = format!("still waits in call 1, ncclSend(count {}, ncclFloat32, peer {peer})", MAX + 1);
        assert_prints(&printed, &format!("{call}, for rank {peer}"));
    }
    assert!(printed.contains(
        "(NCCL would queue the send on its stream; here it returns immediately only if it has at most 65536 bytes"
    ));
}

/// Relies on buffers: with `LIBNCCL_CPU_STRICT=1`, the send waits.
#[test]
fn message_sent_before_suspend_arrives_after_resume() {
    let comms = init(2);
    let (sent, mut received) = ([1, 2, 3], [0; 3]);
    assert_eq!(send(&sent, 1, comms[0].0), OK);
    let suspend = || comms.iter().for_each(|comm| assert_eq!(nccl!(ncclCommSuspend(comm.0, 1)), OK));
    let resume = || comms.iter().for_each(|comm| assert_eq!(nccl!(ncclCommResume(comm.0)), OK));
    assert_eq!([in_group(suspend), in_group(resume)], [OK; 2]);
    assert_eq!((receive(&mut received, 0, comms[1].0), received), (OK, sent));
    comms.into_iter().for_each(Comm::destroy);
}
