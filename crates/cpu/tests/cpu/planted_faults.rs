//! Faults planted by `LIBNCCL_CPU_PLANT`.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::processes::{self, RankProcess, finish};
use crate::common::watchdog::Watchdog;
use crate::common::{
    self, Comm, I32, Mode, OK, REMOTE, STREAM, SUM, init, last_error, on_threads, together, unique_id,
};
use libnccl::sys::{ncclComm_t, ncclDataType_t, ncclResult_t};

rank_tasks! {
    "slow" => slow,
    "endless" => endless,
    "wrong" => wrong,
    "wrong_process" => wrong_process,
    "healthy" => healthy,
}

const RANKS: usize = 4;
/// The rank with the fault.
const FAULTY: usize = 2;
const DELAY: Duration = Duration::from_millis(800);
/// Lengths that are sent with the call, and in other ways.
const LENGTHS: [usize; 4] = [1, 5, 3000, 100_000];

/// Runs `task` in a process with all ranks, and returns what it prints.
fn run(task: &str, faults: &str) -> String {
    let _watchdog = Watchdog::new();
    let own: Vec<usize> = (0..RANKS).collect();
    let mut command = processes::command(task, &unique_id(), RANKS, &own);
    finish(command.env("LIBNCCL_CPU_PLANT", faults).spawn().unwrap())
}

fn all_reduce(send: &[i32], recv: &mut [i32], comm: ncclComm_t) -> ncclResult_t {
    let (from, to) = (send.as_ptr().cast(), recv.as_mut_ptr().cast());
    nccl!(ncclAllReduce(from, to, send.len(), I32, SUM, comm, STREAM))
}

/// Returns the sum over all ranks of elements that are their ranks.
fn sum(length: usize, rank: usize, comm: ncclComm_t) -> Vec<i32> {
    let mut sum = vec![-1; length];
    assert_eq!(all_reduce(&vec![rank as i32; length], &mut sum, comm), OK, "{}", last_error());
    sum
}

/// Returns the indices of the elements that are not `expected`.
fn differing(elements: &[i32], expected: i32) -> Vec<usize> {
    let differs = elements.iter().enumerate().filter(|(_, element)| **element != expected);
    differs.map(|(index, _)| index).collect()
}

/// Makes a communicator of the same ranks in the reverse order.
fn reverse(rank: usize, comm: Comm) -> Comm {
    let mut child = ptr::null_mut();
    assert_eq!(nccl!(ncclCommSplit(comm.0, 0, -(rank as i32), &mut child, ptr::null_mut())), OK);
    Comm(child)
}

#[test]
fn slow_rank_sleeps_before_each_operation_also_in_a_split() {
    let printed = run("slow", &format!("slow:{FAULTY}:{}, wrong:9", DELAY.as_micros()));
    let report = "libnccl-cpu: LIBNCCL_CPU_PLANT: rank 2 sleeps 800000 us before each operation\n";
    assert_eq!(printed.matches(report).count(), 1, "{printed}");
}

fn slow(process: &RankProcess) {
    let times = on_threads(RANKS, |rank| {
        let comm = process.join_as(rank);
        let child = reverse(rank, comm);
        let times = [comm, child].map(|comm| {
            // The ranks wait for the root alone.
            let mut element = [rank];
            let (buffer, root) = (element.as_mut_ptr().cast(), 0);
            let begin = Instant::now();
            let data_type = ncclDataType_t::ncclUint64;
            assert_eq!(nccl!(ncclBroadcast(buffer, buffer, 1, data_type, root, comm.0, STREAM)), OK);
            begin.elapsed()
        });
        [child, comm].into_iter().for_each(Comm::destroy);
        times
    });
    for (rank, times) in times.into_iter().enumerate() {
        assert_eq!(times.map(|time| time >= DELAY), [rank == FAULTY; 2], "rank {rank}: {times:?}");
    }
}

#[test]
fn abort_ends_the_delay_of_a_slow_rank() {
    run("endless", &format!("slow:{FAULTY}:3600000000"));
}

fn endless(_: &RankProcess) {
    let comms = init(Mode::Threads, RANKS);
    let (sender, done) = mpsc::channel();
    thread::scope(|scope| {
        for (rank, comm) in comms.iter().copied().enumerate() {
            let sender = sender.clone();
            scope.spawn(move || {
                let mut sum = [0];
                sender.send((rank, all_reduce(&[1], &mut sum, { comm }.0))).unwrap();
            });
        }
        assert!(done.recv_timeout(DELAY).is_err(), "all wait for the rank that sleeps");
        assert_eq!(nccl!(ncclCommAbort(comms[FAULTY].0)), OK);
        // Also of the one that sleeps, although it has all that it needs by then.
        let codes: BTreeMap<_, _> = done.iter().take(RANKS).collect();
        assert_eq!(codes, (0..RANKS).map(|rank| (rank, REMOTE)).collect());
    });
}

#[test]
fn wrong_rank_sends_one_wrong_element_in_every_operation() {
    let printed = run("wrong", &format!("wrong:{FAULTY},slow:{FAULTY}:1"));
    let report = "libnccl-cpu: LIBNCCL_CPU_PLANT: rank 2 sleeps 1 us before each operation and sends a corrupted element\n";
    assert_eq!(printed.matches(report).count(), 1, "{printed}");
}

fn wrong(_: &RankProcess) {
    for mode in [Mode::Threads, Mode::Group] {
        let comms = init(mode, RANKS);
        for length in LENGTHS {
            check_all_reduce(mode, &comms, length);
            check_broadcast(mode, &comms, length);
            check_messages(&comms, length);
        }
        comms.into_iter().for_each(Comm::destroy);
    }
    let comms = init(Mode::Threads, RANKS);
    let children = on_threads(RANKS, |rank| reverse(rank, comms[rank]));
    check_all_reduce(Mode::Threads, &children, 5);
    children.into_iter().chain(comms).for_each(Comm::destroy);
}

fn check_all_reduce(mode: Mode, comms: &[Comm], length: usize) {
    let sends: Vec<Vec<i32>> = (0..RANKS).map(|rank| vec![rank as i32; length]).collect();
    let mut sums = vec![vec![-1; length]; RANKS];
    let targets = common::addresses(&mut sums);
    together(mode, comms, |rank, comm| {
        let from = sends[rank].as_ptr().cast();
        nccl!(ncclAllReduce(from, { targets[rank] }.0.cast(), length, I32, SUM, comm, STREAM))
    });
    for sum in &sums {
        assert_eq!(differing(sum, 6), [length / 2], "{mode:?}, {length} elements");
    }
    assert!(
        sends[FAULTY].iter().all(|element| *element == FAULTY as i32),
        "the caller's buffer is unchanged"
    );
}

/// Broadcasts from the rank with the fault, and from another, in place.
fn check_broadcast(mode: Mode, comms: &[Comm], length: usize) {
    for root in [FAULTY, 0] {
        let mut buffers: Vec<Vec<i32>> = (0..RANKS).map(|rank| vec![rank as i32; length]).collect();
        let targets = common::addresses(&mut buffers);
        together(mode, comms, |rank, comm| {
            let buffer = { targets[rank] }.0.cast();
            nccl!(ncclBroadcast(buffer, buffer, length, I32, root as i32, comm, STREAM))
        });
        let expected = if root == FAULTY { vec![length / 2] } else { vec![] };
        for rank in (0..RANKS).filter(|rank| *rank != root) {
            assert_eq!(differing(&buffers[rank], root as i32), expected, "rank {rank} of root {root}");
        }
    }
}

/// Sends from each rank to the next.
fn check_messages(comms: &[Comm], length: usize) {
    let received = on_threads(RANKS, |rank| {
        let (next, before) = ((rank + 1) % RANKS, (rank + RANKS - 1) % RANKS);
        let (send, mut recv) = (vec![rank as i32; length], vec![-1_i32; length]);
        let Comm(comm) = comms[rank];
        let (from, to) = (send.as_ptr().cast(), recv.as_mut_ptr().cast());
        assert_eq!(nccl!(ncclGroupStart()), OK);
        assert_eq!(nccl!(ncclSend(from, length, I32, next as i32, comm, STREAM)), OK);
        assert_eq!(nccl!(ncclRecv(to, length, I32, before as i32, comm, STREAM)), OK);
        assert_eq!(nccl!(ncclGroupEnd()), OK, "{}", last_error());
        (before, recv)
    });
    for (before, recv) in received {
        let expected = if before == FAULTY { vec![length / 2] } else { vec![] };
        assert_eq!(differing(&recv, before as i32), expected, "{length} elements from rank {before}");
    }
}

#[test]
fn wrong_rank_of_another_process_sends_a_wrong_element() {
    let _watchdog = Watchdog::new();
    let id = unique_id();
    let start = |rank| {
        let mut command = processes::command("wrong_process", &id, RANKS, &[rank]);
        command.env("LIBNCCL_CPU_PLANT", format!("wrong:{FAULTY}")).spawn().unwrap()
    };
    let children: Vec<_> = (0..RANKS).map(start).collect();
    for (rank, child) in children.into_iter().enumerate() {
        let printed = finish(child);
        assert_eq!(printed.matches("LIBNCCL_CPU_PLANT").count(), usize::from(rank == FAULTY), "{printed}");
    }
}

fn wrong_process(process: &RankProcess) {
    let comm = process.join();
    for length in LENGTHS {
        assert_eq!(differing(&sum(length, process.rank(), comm.0), 6), [length / 2], "{length} elements");
    }
    comm.destroy();
}

#[test]
fn malformed_faults_are_reported_and_ignored() {
    for faults in
        ["slow:2", "slow", "slow:1:0", "slow:-1:5", "slow:1:5:6", "wrong", "wrong:x", "wrong:1,", "odd:1"]
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
        assert_eq!(sum(5, rank, comm.0), [6; 5]);
        comm.destroy();
    });
}
