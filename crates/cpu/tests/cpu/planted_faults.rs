//! Faults planted by `LIBNCCL_CPU_PLANT`.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::processes::{self, RankProcess, finish};
use crate::common::watchdog::Watchdog;
use crate::common::{
    self, Comm, I32, Mode, OK, REMOTE, STREAM, all_reduce, init, last_error, on_threads, together, unique_id,
};

rank_tasks! { "slow" => slow, "endless" => endless, "wrong" => wrong, "wrong_process" => wrong_process, "healthy" => healthy }

const RANKS: usize = 4;
/// The rank with the fault.
const FAULTY: usize = 2;
const DELAY: Duration = Duration::from_millis(800);
/// Lengths that are sent with the call, and by other transports.
const LENGTHS: [usize; 3] = [1, 3000, 100_000];

/// Runs `task` in a process for each of `processes`, and returns their output.
fn run(task: &str, faults: &str, processes: &[&[usize]]) -> String {
    let (_watchdog, id) = (Watchdog::new(), unique_id());
    let start = |own: &&[usize]| {
        let mut command = processes::command(task, &id, RANKS, own);
        command.env("LIBNCCL_CPU_PLANT", faults).spawn().unwrap()
    };
    let children: Vec<_> = processes.iter().map(start).collect();
    children.into_iter().map(finish).collect()
}

const THREADS: &[&[usize]] = &[&[0, 1, 2, 3]];

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
    let mut child = std::ptr::null_mut();
    assert_eq!(nccl!(ncclCommSplit(comm.0, 0, -(rank as i32), &mut child, std::ptr::null_mut())), OK);
    Comm(child)
}

#[test]
fn slow_rank_sleeps_before_each_operation_also_in_a_split() {
    let printed = run("slow", &format!("slow:{FAULTY}:{}, wrong:9", DELAY.as_micros()), THREADS);
    let report = "libnccl-cpu: LIBNCCL_CPU_PLANT: rank 2 sleeps 800000 us before each operation\n";
    assert_eq!(printed.matches(report).count(), 1, "{printed}");
}

fn slow(process: &RankProcess) {
    on_threads(RANKS, |rank| {
        let comm = process.join_as(rank);
        let child = reverse(rank, comm);
        for comm in [comm, child] {
            // The ranks wait for the root alone.
            let mut value = [0_i32];
            let (place, begin) = (value.as_mut_ptr().cast(), Instant::now());
            assert_eq!(nccl!(ncclBroadcast(place, place, 1, I32, 0, comm.0, STREAM)), OK);
            assert_eq!(begin.elapsed() >= DELAY, rank == FAULTY, "rank {rank}: {:?}", begin.elapsed());
        }
        [child, comm].into_iter().for_each(Comm::destroy);
    });
}

#[test]
fn abort_ends_the_delay_of_a_slow_rank() {
    run("endless", &format!("slow:{FAULTY}:3600000000"), THREADS);
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
    let printed = run("wrong", &format!("wrong:{FAULTY},slow:{FAULTY}:1"), THREADS);
    let report = "libnccl-cpu: LIBNCCL_CPU_PLANT: rank 2 sleeps 1 us before each operation and sends a corrupted element\n";
    assert_eq!(printed.matches(report).count(), 1, "{printed}");
}

fn wrong(_: &RankProcess) {
    for mode in [Mode::Threads, Mode::Group] {
        let comms = init(mode, RANKS);
        for length in LENGTHS {
            check_collectives(mode, &comms, length, &[None, Some(FAULTY), Some(0)]);
            check_messages(&comms, length);
        }
        comms.into_iter().for_each(Comm::destroy);
    }
    let comms = init(Mode::Threads, RANKS);
    let children = on_threads(RANKS, |rank| reverse(rank, comms[rank]));
    check_collectives(Mode::Threads, &children, 5, &[None]);
    children.into_iter().chain(comms).for_each(Comm::destroy);
}

/// Broadcasts from each root, and sums without one.
fn check_collectives(mode: Mode, comms: &[Comm], length: usize, roots: &[Option<usize>]) {
    for root in roots.iter().copied() {
        let sends: Vec<Vec<i32>> = (0..RANKS).map(|rank| vec![rank as i32; length]).collect();
        let mut receives = vec![vec![-1; length]; RANKS];
        let targets = common::addresses(&mut receives);
        together(mode, comms, |rank, comm| {
            let (from, to) = (sends[rank].as_ptr().cast(), { targets[rank] }.0.cast());
            match root {
                Some(root) => nccl!(ncclBroadcast(from, to, length, I32, root as i32, comm, STREAM)),
                None => nccl!(ncclAllReduce(from, to, length, I32, common::SUM, comm, STREAM)),
            }
        });
        let wrong = if root == Some(0) { vec![] } else { vec![length / 2] };
        for rank in (0..RANKS).filter(|rank| root != Some(*rank)) {
            assert_eq!(
                differing(&receives[rank], root.unwrap_or(6)),
                wrong,
                "{mode:?} {root:?}, rank {rank}"
            );
            assert_eq!(differing(&sends[rank], rank), [0; 0], "the caller's buffer is unchanged");
        }
    }
}

/// Sends from each rank to the next.
fn check_messages(comms: &[Comm], length: usize) {
    on_threads(RANKS, |rank| {
        let (next, before) = ((rank + 1) % RANKS, (rank + RANKS - 1) % RANKS);
        let (send, mut recv) = (vec![rank as i32; length], vec![-1_i32; length]);
        let Comm(comm) = comms[rank];
        let (from, to) = (send.as_ptr().cast(), recv.as_mut_ptr().cast());
        assert_eq!(nccl!(ncclGroupStart()), OK);
        assert_eq!(nccl!(ncclSend(from, length, I32, next as i32, comm, STREAM)), OK);
        assert_eq!(nccl!(ncclRecv(to, length, I32, before as i32, comm, STREAM)), OK);
        assert_eq!(nccl!(ncclGroupEnd()), OK, "{}", last_error());
        let expected = if before == FAULTY { vec![length / 2] } else { vec![] };
        assert_eq!(differing(&recv, before), expected, "{length} elements from rank {before}");
    });
}

#[test]
fn wrong_rank_of_another_process_sends_a_wrong_element() {
    let printed = run("wrong_process", &format!("wrong:{FAULTY}"), &[&[0], &[1], &[2], &[3]]);
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
        let printed = run("healthy", faults, THREADS);
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
