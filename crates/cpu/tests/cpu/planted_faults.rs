//! Faults planted by `LIBNCCL_CPU_PLANT`.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::processes::{self, RankProcess};
use crate::common::{
    Comm, OK, REMOTE, all_reduce, broadcast, in_group, init, last_error, on_threads, receive, send, split,
};

rank_tasks!(slow, endless, wrong, healthy);

const RANKS: usize = 4;
const FAULTY: usize = 2;
const DELAY: Duration = Duration::from_millis(800);

/// Runs `task` in a process that has all ranks, and expects it to print `report` once.
#[track_caller]
fn run(task: &str, faults: &str, report: &str) {
    let printed = processes::run(task, [[0, 1, 2, 3]], &[("LIBNCCL_CPU_PLANT", faults)]).concat();
    assert_eq!(printed.matches(&format!("libnccl-cpu: LIBNCCL_CPU_PLANT{report}\n")).count(), 1, "{printed}");
}

/// Runs `body` for each rank of this process on a thread, with its communicator and one of the same ranks in the reverse order.
fn on_own_ranks(process: &RankProcess, body: impl Fn(usize, [Comm; 2]) + Sync) {
    on_threads(process.own.len(), |index| {
        let rank = process.own[index];
        let comm = process.join_as(rank);
        let reversed = split(comm.0, 0, -(rank as i32)).unwrap();
        body(rank, [comm, reversed]);
        [reversed, comm].into_iter().for_each(Comm::destroy);
    });
}

/// Returns the indices of the elements that are not `expected`.
fn differing(elements: &[i32], expected: usize) -> Vec<usize> {
    let differs = elements.iter().enumerate().filter(|(_, element)| **element != expected as i32);
    differs.map(|(index, _)| index).collect()
}

#[test]
fn slow_rank_sleeps_before_each_operation_also_in_a_split() {
    let faults = format!("slow:{FAULTY}:{}, wrong:9", DELAY.as_micros());
    run("slow", &faults, ": rank 2 sleeps 800000 us before each operation");
}

fn slow(process: &RankProcess) {
    on_own_ranks(process, |rank, comms| {
        for comm in comms {
            // The ranks wait for the root alone.
            let begin = Instant::now();
            assert_eq!(broadcast(&mut [0], 0, comm.0), OK);
            assert_eq!(begin.elapsed() >= DELAY, rank == FAULTY, "rank {rank}: {:?}", begin.elapsed());
        }
    });
}

#[test]
fn abort_ends_the_delay_of_a_slow_rank() {
    run(
        "endless",
        &format!("slow:{FAULTY}:3600000000"),
        ": rank 2 sleeps 3600000000 us before each operation",
    );
}

fn endless(_: &RankProcess) {
    let comms = init(RANKS);
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
    let faults = format!("wrong:{FAULTY},slow:{FAULTY}:1");
    run("wrong", &faults, ": rank 2 sleeps 1 us before each operation and sends a corrupted element");
    processes::run("wrong", (0..RANKS).map(|rank| [rank]), &[("LIBNCCL_CPU_PLANT", "wrong:2")]);
}

/// Sums, broadcasts from the faulty rank and from another one, and sends from each rank to the next.
fn wrong(process: &RankProcess) {
    on_own_ranks(process, |rank, [Comm(comm), reversed]| {
        // Sent with the call, and by other transports.
        for length in [1, 3000, 100_000] {
            let wrong = vec![length / 2];
            for comm in [comm, reversed.0] {
                let mut sum = vec![rank as i32; length];
                assert_eq!(all_reduce(&mut sum, comm), OK, "{}", last_error());
                assert_eq!(differing(&sum, 6), wrong, "sum at {rank}");
            }
            for root in [FAULTY, 0] {
                let mut buffer = vec![if rank == root { 1 } else { -1 }; length];
                assert_eq!(broadcast(&mut buffer, root, comm), OK, "{}", last_error());
                let expected = if root == FAULTY { &wrong[..] } else { &[] };
                assert_eq!(differing(&buffer, 1), expected, "root {root}, rank {rank}");
            }
            let (next, before) = ((rank + 1) % RANKS, (rank + RANKS - 1) % RANKS);
            let (sent, mut received) = (vec![rank as i32; length], vec![-1; length]);
            let code = in_group(|| {
                assert_eq!([send(&sent, next, comm), receive(&mut received, before, comm)], [OK; 2]);
            });
            assert_eq!(code, OK, "{}", last_error());
            let expected = if before == FAULTY { &wrong[..] } else { &[] };
            assert_eq!(differing(&received, before), expected, "{length} elements from rank {before}");
            assert_eq!(differing(&sent, rank), [0; 0], "the caller's buffer is unchanged");
        }
    });
}

#[test]
fn malformed_faults_are_reported_and_ignored() {
    for faults in
        ["slow:2", "slow", "slow:1:0", "slow:-1:5", "slow:1:5:6", "wrong", "wrong:x", "wrong:1,", "late:1"]
    {
        let report = format!(
            " is {faults:?}, which is ignored; expected slow:RANK:MICROSECONDS and wrong:RANK, separated by commas"
        );
        run("healthy", faults, &report);
    }
}

fn healthy(process: &RankProcess) {
    on_own_ranks(process, |rank, [Comm(comm), _]| {
        let mut sum = [rank as i32; 5];
        assert_eq!((all_reduce(&mut sum, comm), sum), (OK, [6; 5]));
    });
}
