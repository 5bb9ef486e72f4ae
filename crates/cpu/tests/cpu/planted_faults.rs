//! Faults planted by `LIBNCCL_CPU_PLANT`.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::processes::{self, RankProcess};
use crate::common::{
    Comm, Mode, OK, REMOTE, all_reduce, broadcast, in_group, init, last_error, on_threads, receive, send,
    split,
};

rank_tasks! { "slow" => slow, "endless" => endless, "wrong" => wrong, "wrong_process" => wrong_process, "healthy" => healthy }

const RANKS: usize = 4;
/// The rank with the fault.
const FAULTY: usize = 2;
const DELAY: Duration = Duration::from_millis(800);
/// Lengths that are sent with the call, and by other transports.
const LENGTHS: [usize; 3] = [1, 3000, 100_000];

/// Runs `task` in a process that has all ranks, and returns its output.
#[track_caller]
fn run(task: &str, faults: &str) -> String {
    processes::run(task, [(0..RANKS).collect::<Vec<_>>()], &[("LIBNCCL_CPU_PLANT", faults)]).concat()
}

/// Returns the sum over all ranks of elements that are their ranks.
fn sum(length: usize, rank: usize, comm: Comm) -> Vec<i32> {
    let mut sum = vec![rank as i32; length];
    assert_eq!(all_reduce(&mut sum, comm.0), OK, "{}", last_error());
    sum
}

/// Returns the indices of the elements that are not `expected`.
fn differing(elements: &[i32], expected: usize) -> Vec<usize> {
    let differs = elements.iter().enumerate().filter(|(_, element)| **element != expected as i32);
    differs.map(|(index, _)| index).collect()
}

/// Creates a communicator of the same ranks in the reverse order.
fn reverse(rank: usize, comm: Comm) -> Comm {
    split(comm.0, 0, -(rank as i32)).unwrap()
}

#[test]
fn slow_rank_sleeps_before_each_operation_also_in_a_split() {
    let printed = run("slow", &format!("slow:{FAULTY}:{}, wrong:9", DELAY.as_micros()));
    let report = "libnccl-cpu: LIBNCCL_CPU_PLANT: rank 2 sleeps 800000 us before each operation\n";
    assert_eq!(printed.matches(report).count(), 1, "{printed}");
}

fn slow(process: &RankProcess) {
    on_threads(RANKS, |rank| {
        let comm = process.join_as(rank);
        let child = reverse(rank, comm);
        for comm in [comm, child] {
            // The ranks wait for the root alone.
            let begin = Instant::now();
            assert_eq!(broadcast(&mut [0], 0, comm.0), OK);
            assert_eq!(begin.elapsed() >= DELAY, rank == FAULTY, "rank {rank}: {:?}", begin.elapsed());
        }
        [child, comm].into_iter().for_each(Comm::destroy);
    });
}

#[test]
fn abort_ends_the_delay_of_a_slow_rank() {
    run("endless", &format!("slow:{FAULTY}:3600000000"));
}

fn endless(_: &RankProcess) {
    let comms = init(Mode::Threads, RANKS);
    let (sender, done) = mpsc::channel();
    thread::scope(|scope| {
        for comm in comms.iter().copied() {
            let sender = sender.clone();
            scope.spawn(move || sender.send(all_reduce(&mut [1], { comm }.0)).unwrap());
        }
        assert!(done.recv_timeout(DELAY).is_err(), "all wait for the rank that sleeps");
        assert_eq!(nccl!(ncclCommAbort(comms[FAULTY].0)), OK);
        // Also on the sleeping rank, although its data is complete by then.
        assert!(done.iter().take(RANKS).all(|code| code == REMOTE));
    });
}

#[test]
fn wrong_rank_sends_one_wrong_element_in_every_operation() {
    let printed = run("wrong", &format!("wrong:{FAULTY},slow:{FAULTY}:1"));
    let report = "libnccl-cpu: LIBNCCL_CPU_PLANT: rank 2 sleeps 1 us before each operation and sends a corrupted element\n";
    assert_eq!(printed.matches(report).count(), 1, "{printed}");
}

fn wrong(_: &RankProcess) {
    let comms = init(Mode::Threads, RANKS);
    for length in LENGTHS {
        check_operations(&comms, length);
    }
    on_threads(RANKS, |rank| {
        let child = reverse(rank, comms[rank]);
        assert_eq!(differing(&sum(5, rank, child), 6), [2]);
        child.destroy();
    });
    comms.into_iter().for_each(Comm::destroy);
}

/// Sums, broadcasts from the faulty rank and from another one, and sends from each rank to the next.
fn check_operations(comms: &[Comm], length: usize) {
    let wrong = vec![length / 2];
    on_threads(RANKS, |rank| {
        let comm = comms[rank];
        assert_eq!(differing(&sum(length, rank, comm), 6), wrong, "sum at {rank}");
        for root in [FAULTY, 0] {
            let mut buffer = vec![if rank == root { 1 } else { -1 }; length];
            assert_eq!(broadcast(&mut buffer, root, comm.0), OK, "{}", last_error());
            let expected = if root == FAULTY { &wrong[..] } else { &[] };
            assert_eq!(differing(&buffer, 1), expected, "root {root}, rank {rank}");
        }
        let (next, before) = ((rank + 1) % RANKS, (rank + RANKS - 1) % RANKS);
        let (sent, mut received) = (vec![rank as i32; length], vec![-1; length]);
        let code = in_group(|| {
            assert_eq!([send(&sent, next, comm.0), receive(&mut received, before, comm.0)], [OK; 2]);
        });
        assert_eq!(code, OK, "{}", last_error());
        let expected = if before == FAULTY { &wrong[..] } else { &[] };
        assert_eq!(differing(&received, before), expected, "{length} elements from rank {before}");
        assert_eq!(differing(&sent, rank), [0; 0], "the caller's buffer is unchanged");
    });
}

#[test]
fn wrong_rank_of_another_process_sends_a_wrong_element() {
    let printed =
        processes::run("wrong_process", (0..RANKS).map(|rank| [rank]), &[("LIBNCCL_CPU_PLANT", "wrong:2")])
            .concat();
    assert_eq!(printed.matches("LIBNCCL_CPU_PLANT").count(), 1, "{printed}");
}

fn wrong_process(process: &RankProcess) {
    let comm = process.join();
    for length in LENGTHS {
        assert_eq!(differing(&sum(length, process.rank(), comm), 6), [length / 2], "{length} elements");
    }
    comm.destroy();
}

#[test]
fn malformed_faults_are_reported_and_ignored() {
    for faults in
        ["slow:2", "slow", "slow:1:0", "slow:-1:5", "slow:1:5:6", "wrong", "wrong:x", "wrong:1,", "late:1"]
    {
        let printed = run("healthy", faults);
        let report = format!(
            "libnccl-cpu: LIBNCCL_CPU_PLANT is {faults:?}, which is ignored; expected slow:RANK:MICROSECONDS and \
             wrong:RANK, separated by commas\n"
        );
        assert_eq!(printed.matches(&report).count(), 1, "{printed}");
    }
}

fn healthy(process: &RankProcess) {
    on_threads(RANKS, |rank| {
        let comm = process.join_as(rank);
        assert_eq!(sum(5, rank, comm), [6; 5]);
        comm.destroy();
    });
}
