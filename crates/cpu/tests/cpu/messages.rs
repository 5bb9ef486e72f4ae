//! Calls that do not belong together and that the real NCCL answers with silence: messages that nobody received, calls of
//! count 0 on some ranks only, and sends that return only because there is room for the message.
//!
//! The environment is read once per process, and reports go to the standard error, so most of these ranks are threads of
//! a process of their own.

use std::process::Child;
use std::ptr;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use crate::common::processes::{self, RankProcess, finish};
use crate::common::watchdog::Watchdog;
use crate::common::{
    self, Comm, F32, Mode, OK, REMOTE, STREAM, SUM, USAGE, alone, assert_last_error, init, init_rank,
    last_error, on_threads, unique_id,
};
use libnccl::sys::{ncclResult_t, ncclUniqueId};

/// Elements of the longest message that does not wait, and the number of those that fit.
const MAX: usize = (64 << 10) / 4;
const MESSAGES: usize = 4;

rank_tasks! {
    "unreceived" => leave_messages_unreceived,
    "received" => receive_after_the_sender_left,
    "mixed" => send_and_sum_in_different_orders,
    "empty" => sum_nothing_on_one_rank,
    "empty_pair" => exchange_nothing,
    "broadcast" => broadcast_alone,
    "group" => exchange_and_sum_in_group,
    "receive_nothing" => receive_nothing_without_send,
    "strict_send" => send_and_tell_the_receiver,
    "two_comms" => use_two_communicators_in_different_orders,
    "directions" => send_in_both_directions,
    "host" => receive_after_a_message_of_the_host,
    "several" => send_several_to_both_before_receiving,
}

fn send(count: usize, peer: usize, Comm(comm): Comm) -> ncclResult_t {
    let buffer = vec![1.0_f32; count];
    nccl!(ncclSend(buffer.as_ptr().cast(), count, F32, peer as i32, comm, STREAM))
}

fn receive(count: usize, peer: usize, Comm(comm): Comm) -> ncclResult_t {
    let mut buffer = vec![0.0_f32; count];
    let code = nccl!(ncclRecv(buffer.as_mut_ptr().cast(), count, F32, peer as i32, comm, STREAM));
    assert!(code != OK || buffer.iter().all(|element| *element == 1.0));
    code
}

fn all_reduce(count: usize, Comm(comm): Comm) -> ncclResult_t {
    common::all_reduce(&mut vec![1.0_f32; count], comm)
}

fn in_group(calls: impl FnOnce()) -> ncclResult_t {
    assert_eq!(nccl!(ncclGroupStart()), OK);
    calls();
    nccl!(ncclGroupEnd())
}

/// Starts `task` in a process that has both ranks of a communicator.
fn start(task: &str, environment: &[(&str, &str)]) -> Child {
    let mut command = processes::command(task, &unique_id(), 2, &[0, 1]);
    command.envs(environment.iter().copied()).spawn().unwrap()
}

fn run(task: &str, environment: &[(&str, &str)]) -> String {
    finish(start(task, environment))
}

/// The limit of a program that has to end.
const LIMIT: (&str, &str) = ("LIBNCCL_CPU_TIMEOUT", "60");
const STRICT: (&str, &str) = ("LIBNCCL_CPU_STRICT", "1");

/// Runs `task`, in which a wait has to be given up, in strict mode.
fn run_strict(task: &str) -> String {
    let [warn_after, timeout] = processes::limits();
    run(task, &[warn_after, timeout, STRICT])
}

/// Runs `body` for both ranks of this process, each on a thread.
fn on_both<T: Send>(process: &RankProcess, body: impl Fn(usize, Comm) -> T + Sync) -> Vec<T> {
    on_threads(2, |rank| body(rank, process.join_as(rank)))
}

/// Asserts that a call failed because it, or another rank's, waited for too long.
#[track_caller]
fn assert_given_up(code: ncclResult_t) {
    assert_eq!(code, REMOTE, "{}", last_error());
    assert!(last_error().contains("waited longer than LIBNCCL_CPU_TIMEOUT"), "{}", last_error());
}

#[track_caller]
fn assert_prints(printed: &str, part: &str) {
    assert_eq!(printed.matches(part).count(), 1, "{part:?} once in {printed}");
}

// Collectives of count 0.

/// The program `zero`: its later calls were paired with others, and it got wrong sums.
#[test]
fn empty_collective_on_one_rank_is_invalid_usage_until_the_other_makes_it() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    for length in [1, 100_000] {
        let comms = init(Mode::Threads, 2);
        assert_eq!(all_reduce(0, comms[0]), OK);
        for _ in 0..2 {
            assert_eq!(on_threads(2, |rank| all_reduce(length, comms[rank])), [USAGE; 2]);
            assert_last_error(&format!(
                "before this call, rank 0 made 1 collective of count 0 that rank 1 did not make, the last of them \
                 ncclAllReduce(count 0, ncclFloat32, ncclSum): rank 1 called ncclAllReduce(count {length}, "
            ));
        }
        assert_eq!(all_reduce(0, comms[1]), OK);
        assert_eq!(on_threads(2, |rank| all_reduce(length, comms[rank])), [OK; 2]);
        comms.into_iter().for_each(Comm::destroy);
    }
}

#[test]
fn empty_collectives_are_counted_beyond_256_and_before_split() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Threads, 2);
    on_threads(2, |rank| (0..300 - 2 * rank).for_each(|_| assert_eq!(all_reduce(0, comms[rank]), OK)));
    let codes = on_threads(2, |rank| {
        let mut child = ptr::null_mut();
        nccl!(ncclCommSplit({ comms[rank] }.0, 0, 0, &mut child, ptr::null_mut()))
    });
    assert_eq!(codes, [USAGE; 2]);
    assert_last_error("rank 0 made 2 collectives of count 0 that rank 1 did not make, the last of them");
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn empty_collective_runs_in_its_place_in_group() {
    let _watchdog = Watchdog::new();
    let comms = init(Mode::Threads, 2);
    on_threads(2, |rank| {
        let both = || {
            assert_eq!(all_reduce(1000, comms[rank]), OK);
            assert_eq!(all_reduce(0, comms[rank]), OK);
        };
        if rank == 0 {
            // The buffer has to live until the group ends.
            let (mut buffer, Comm(comm)) = (vec![1.0_f32; 1000], comms[rank]);
            let place = buffer.as_mut_ptr().cast();
            let sum =
                |count| assert_eq!(nccl!(ncclAllReduce(place, place, count, F32, SUM, comm, STREAM)), OK);
            assert_eq!(in_group(|| [1000, 0].into_iter().for_each(sum)), OK);
        } else {
            both();
        }
        assert_eq!(all_reduce(3, comms[rank]), OK, "{}", last_error());
    });
    comms.into_iter().for_each(Comm::destroy);
}

fn sum_nothing_on_one_rank(process: &RankProcess) {
    on_both(
        process,
        |rank, comm| if rank == 0 { assert_given_up(all_reduce(0, comm)) } else { wait_for_abort(comm) },
    );
}

/// Waits until another rank has given up.
fn wait_for_abort(Comm(comm): Comm) {
    let mut state = OK;
    while state == OK {
        thread::sleep(Duration::from_millis(1));
        assert_eq!(nccl!(ncclCommGetAsyncError(comm, &mut state)), OK);
    }
    assert_eq!(state, REMOTE);
}

#[test]
fn empty_collective_on_one_rank_waits_in_strict_mode() {
    assert_prints(
        &run_strict("empty"),
        "rank 0 of 2 still waits in call 1, ncclAllReduce(count 0, ncclFloat32, ncclSum), for rank 1 (process ",
    );
}

fn broadcast_alone(process: &RankProcess) {
    on_both(process, |rank, comm| {
        if rank != 0 {
            return wait_for_abort(comm);
        }
        let mut number = 0_f32;
        let place = (&raw mut number).cast();
        assert_given_up(nccl!(ncclBroadcast(place, place, 1, F32, 0, comm.0, STREAM)));
    });
}

#[test]
fn root_of_short_broadcast_waits_in_strict_mode() {
    assert_prints(
        &run_strict("broadcast"),
        "rank 0 of 2 still waits in call 1, ncclBroadcast(count 1, ncclFloat32, root 0), for rank 1 (process ",
    );
}

fn exchange_nothing(process: &RankProcess) {
    on_both(process, |rank, comm| {
        for _ in 0..3 {
            assert_eq!(all_reduce(0, comm), OK, "{}", last_error());
            if rank == 0 {
                assert_eq!([send(0, 1, comm), send(1, 1, comm)], [OK; 2]);
            } else {
                assert_eq!([receive(0, 0, comm), receive(1, 0, comm)], [OK; 2]);
            }
            // To oneself, which can only be in a group.
            let group = in_group(|| assert_eq!([send(0, rank, comm), receive(0, rank, comm)], [OK; 2]));
            assert_eq!(group, OK, "{}", last_error());
            assert_eq!(all_reduce(1, comm), OK, "{}", last_error());
        }
        assert_eq!(if rank == 0 { send(0, 1, comm) } else { receive(1, 0, comm) }, USAGE);
        comm.destroy();
    });
}

#[test]
fn empty_calls_pair_in_strict_mode() {
    let printed = run("empty_pair", &[LIMIT, STRICT]);
    assert!(!printed.contains("libnccl-cpu"), "{printed}");
}

fn receive_nothing_without_send(process: &RankProcess) {
    on_both(
        process,
        |rank, comm| if rank == 0 { assert_given_up(receive(0, 1, comm)) } else { wait_for_abort(comm) },
    );
}

#[test]
fn empty_receive_without_send_waits_in_strict_mode() {
    let report = "still waits in call 1, ncclRecv(count 0, ncclFloat32, peer 1), for rank 1 (process ";
    assert_prints(&run_strict("receive_nothing"), report);
}

// Messages that nobody received.

/// Both ranks leave, the one of the first argument first, by the function of the second argument.
fn leave_messages_unreceived(process: &RankProcess) {
    let (first, how) = (usize::from(process.arguments[0] == "receiver"), process.arguments[1].as_str());
    let comms = on_both(process, |rank, comm| {
        if rank == 0 {
            (0..3).for_each(|_| assert_eq!(send(1000, 1, comm), OK));
            assert_eq!(send(7, 1, comm), OK);
        } else {
            assert_eq!(receive(1000, 0, comm), OK);
        }
        assert_eq!(all_reduce(10, comm), OK);
        comm
    });
    for rank in [first, 1 - first] {
        match how {
            "abort" => assert_eq!(nccl!(ncclCommAbort({ comms[rank] }.0)), OK),
            "finalize" => {
                assert_eq!(nccl!(ncclCommFinalize({ comms[rank] }.0)), OK);
                comms[rank].destroy();
            }
            _ => comms[rank].destroy(),
        }
    }
}

const UNRECEIVED: &str = "3 sends of rank 0 were never received by rank 1: 2 x ncclSend(count 1000, ncclFloat32, \
                          peer 1), 1 x ncclSend(count 7, ncclFloat32, peer 1) [unreceived-message]\n";

/// The program `unmatched`: it ended without a word. The receiver sees what is left for it; the sender only what can no
/// longer be received.
#[test]
fn unreceived_messages_are_reported_by_each_rank_that_knows() {
    for how in ["destroy", "finalize"] {
        let of_receiver = format!(", rank 1 of 2 leaves, and {UNRECEIVED}");
        let of_sender = format!(", rank 0 of 2 leaves, and {UNRECEIVED}");
        let printed = run(&format!("unreceived receiver {how}"), &[]);
        assert_prints(&printed, &of_receiver);
        assert_prints(&printed, &of_sender);
        let printed = run(&format!("unreceived sender {how}"), &[]);
        assert_prints(&printed, &of_receiver);
        assert!(!printed.contains(&of_sender), "{printed}");
    }
}

#[test]
fn unreceived_messages_of_an_aborted_communicator_are_not_reported() {
    let printed = run("unreceived receiver abort", &[]);
    assert!(!printed.contains("libnccl-cpu"), "{printed}");
}

fn receive_after_the_sender_left(process: &RankProcess) {
    let sent = Barrier::new(2);
    on_both(process, |rank, comm| {
        if rank == 0 {
            assert_eq!([send(1000, 1, comm), send(MAX, 1, comm)], [OK; 2]);
            comm.destroy();
        }
        sent.wait();
        if rank == 1 {
            assert_eq!([receive(1000, 0, comm), receive(MAX, 0, comm)], [OK; 2]);
            comm.destroy();
        }
    });
}

#[test]
fn messages_received_after_the_sender_left_are_not_reported() {
    let printed = run("received", &[]);
    assert!(!printed.contains("libnccl-cpu"), "{printed}");
}

// Strict mode.

/// NCCL runs the group's collective before its send, and hangs, as strict mode does (`mistakes.rs`).
fn send_and_sum_in_different_orders(process: &RankProcess) {
    const COUNT: usize = 1_000_000;
    on_both(process, |rank, comm| {
        let mut buffer = vec![1.0_f32; COUNT];
        let place = buffer.as_mut_ptr();
        let sum = || {
            let place = place.cast();
            nccl!(ncclAllReduce(place, place, COUNT, F32, SUM, comm.0, STREAM))
        };
        let message = vec![1.0_f32; COUNT];
        if rank == 0 {
            let send = || nccl!(ncclSend(message.as_ptr().cast(), COUNT, F32, 1, comm.0, STREAM));
            assert_eq!(in_group(|| assert_eq!([sum(), send()], [OK; 2])), OK, "{}", last_error());
        } else {
            assert_eq!([receive(COUNT, 0, comm), sum()], [OK; 2], "{}", last_error());
        }
    });
}

#[test]
fn send_grouped_after_collective_does_not_wait_for_it() {
    run("mixed", &[LIMIT]);
}

fn exchange_and_sum_in_group(process: &RankProcess) {
    on_both(process, |rank, Comm(comm)| {
        for count in [1, MAX, 300_000] {
            let (peer, sent, mut received, mut sum) =
                (1 - rank as i32, vec![1.0_f32; count], vec![0.0_f32; count], vec![2.0_f32; count]);
            let (from, to, place) =
                (sent.as_ptr().cast(), received.as_mut_ptr().cast(), sum.as_mut_ptr().cast());
            let code = in_group(|| {
                assert_eq!(nccl!(ncclSend(from, count, F32, peer, comm, STREAM)), OK);
                assert_eq!(nccl!(ncclRecv(to, count, F32, peer, comm, STREAM)), OK);
                for place in [place, place] {
                    assert_eq!(nccl!(ncclAllReduce(place, place, count, F32, SUM, comm, STREAM)), OK);
                }
            });
            assert_eq!(code, OK, "{}", last_error());
            assert!(received == sent, "{count} received");
            assert!(sum.iter().all(|element| *element == 8.0), "{count} summed");
        }
        Comm(comm).destroy();
    });
}

#[test]
fn group_of_messages_and_collectives_completes() {
    for environment in [&[LIMIT, STRICT][..], &[LIMIT]] {
        let printed = run("group", environment);
        assert!(!printed.contains("libnccl-cpu"), "{environment:?}: {printed}");
    }
}

fn send_and_tell_the_receiver(process: &RankProcess) {
    on_both(
        process,
        |rank, comm| if rank == 0 { assert_given_up(send(1, 1, comm)) } else { wait_for_abort(comm) },
    );
}

#[test]
fn short_send_waits_for_its_receiver_in_strict_mode() {
    let printed = run_strict("strict_send");
    assert_prints(
        &printed,
        "rank 0 of 2 still waits in call 1, ncclSend(count 1, ncclFloat32, peer 1), for rank 1 (",
    );
    assert_prints(&printed, "(LIBNCCL_CPU_STRICT is 1: every send waits for its receiver)");
}

#[test]
fn settings_of_other_values_are_reported_and_ignored() {
    let limit = "LIBNCCL_CPU_TIMEOUT";
    let mut settings = vec![("LIBNCCL_CPU_STRICT", "yes", "0 or 1")];
    settings.extend(["", "-1", "10s", "inf", "1e40"].map(|value| (limit, value, "a number of seconds")));
    for (name, value, expected) in settings {
        let printed = run("received", &[(name, value)]);
        let text = format!("libnccl-cpu: {name} is {value:?}, which is ignored; expected {expected}\n");
        assert_prints(&printed, &text);
    }
}

// Sends that do not wait.

/// Runs a program with messages of the greatest length that do not wait, and with longer ones, which wait.
#[track_caller]
fn assert_waits_from(task: &str, reports: &[&str]) {
    run(&format!("{task} {MAX} ends"), &[LIMIT]);
    let longer = MAX + 1;
    let printed = run(&format!("{task} {longer} waits"), &processes::limits());
    for report in reports {
        assert_prints(&printed, &report.replace("COUNT", &longer.to_string()));
    }
    assert!(printed.contains(
        "(NCCL would queue the send on its stream; here it returns immediately only if it has at most 65536 bytes"
    ));
}

/// Returns the count of a task's arguments, and a check of each of its calls.
fn expectation(process: &RankProcess) -> (usize, fn(ncclResult_t)) {
    let ends = process.arguments[1] == "ends";
    let check = if ends { |code| assert_eq!(code, OK, "{}", last_error()) } else { assert_given_up };
    (process.arguments[0].parse().unwrap(), check)
}

/// Makes a second communicator, with the other rank of this process.
fn second_comms() -> (ncclUniqueId, impl Fn(usize) -> Comm) {
    let id = unique_id();
    (id, move |rank| init_rank(id, 2, rank).unwrap())
}

fn use_two_communicators_in_different_orders(process: &RankProcess) {
    let ((count, check), (_, second)) = (expectation(process), second_comms());
    let codes = on_both(process, |rank, one| {
        let two = second(rank);
        if rank == 0 {
            let sent = send(count, 1, one);
            check(sent);
            if sent == OK { all_reduce(4, two) } else { nccl!(ncclCommAbort(two.0)) }
        } else {
            let summed = all_reduce(4, two);
            if summed == OK { receive(count, 0, one) } else { OK }
        }
    });
    assert_eq!(codes, [OK; 2]);
}

#[test]
fn two_communicators_in_different_orders_wait_only_for_long_sends() {
    assert_waits_from(
        "two_comms",
        &["still waits in call 1, ncclSend(count COUNT, ncclFloat32, peer 1), for rank 1"],
    );
}

fn send_in_both_directions(process: &RankProcess) {
    let ((count, check), (_, second)) = (expectation(process), second_comms());
    on_both(process, |rank, forward| {
        let backward = second(rank);
        let (mine, theirs) = if rank == 0 { (forward, backward) } else { (backward, forward) };
        let sent = send(count, 1 - rank, mine);
        check(sent);
        if sent == OK {
            check(receive(count, 1 - rank, theirs));
        }
    });
}

#[test]
fn sends_in_both_directions_wait_only_if_long() {
    let reports =
        [1, 0].map(|peer| format!("ncclSend(count COUNT, ncclFloat32, peer {peer}), for rank {peer}"));
    assert_waits_from("directions", &reports.each_ref().map(String::as_str));
}

/// Rank 0 enqueues a send, and then tells rank 1 to enqueue the receive.
fn receive_after_a_message_of_the_host(process: &RankProcess) {
    let ((count, check), told) = (expectation(process), Barrier::new(2));
    on_both(process, |rank, comm| {
        if rank == 0 {
            check(send(count, 1, comm));
        }
        told.wait();
        if rank == 1 {
            check(receive(count, 0, comm));
        }
    });
}

#[test]
fn send_before_a_message_of_the_host_waits_only_if_long() {
    assert_waits_from(
        "host",
        &["still waits in call 1, ncclSend(count COUNT, ncclFloat32, peer 1), for rank 1"],
    );
}

fn send_several_to_both_before_receiving(process: &RankProcess) {
    let done = Barrier::new(2);
    on_both(process, |rank, comm| {
        (0..MESSAGES).for_each(|_| assert_eq!(send(MAX, 1 - rank, comm), OK));
        done.wait();
        (0..MESSAGES).for_each(|_| assert_eq!(receive(MAX, 1 - rank, comm), OK));
    });
}

#[test]
fn several_sends_of_the_greatest_length_do_not_wait() {
    run("several", &[LIMIT]);
}
