//! Many ranks: the time, memory, file descriptors, and CPU time while waiting that they need.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::processes::{self, RankProcess, command, finish};
use crate::common::{Comm, assert_sum, busy, on_threads, split, unique_id};
use crate::resource_limits::limit_descriptors;

rank_tasks!(sum_and_split_as_threads, sum_and_split_as_process, wait_for_late_rank);

const MEMORY: u64 = 2 << 30;

/// Returns the peak resident memory of this process, shared memory included.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Returns the CPU time that this process has taken, and how often its threads have slept.
fn usage() -> (Duration, i64) {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the kernel fills in the usage, or the result is not 0.
    let usage = unsafe {
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()), 0);
        usage.assume_init()
    };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    (time(usage.ru_utime) + time(usage.ru_stime), usage.ru_nvcsw)
}

/// Sums, splits the ranks into odd and even ones, and sums there.
fn sum_and_split(comm: Comm, ranks: usize, rank: usize) {
    assert_sum(comm.0, ranks);
    let child = split(comm.0, rank as i32 % 2, 0).unwrap();
    assert_sum(child.0, (ranks + 1 - rank % 2) / 2);
    [child, comm].into_iter().for_each(Comm::destroy);
}

fn sum_and_split_as_process(process: &RankProcess) {
    sum_and_split(process.join(), process.ranks, process.rank());
}

/// Runs all ranks as threads of a process that may open only a few file descriptors, so that a rank can keep none.
fn sum_and_split_as_threads(process: &RankProcess) {
    limit_descriptors(40);
    let (ranks, began) = (process.ranks, Instant::now());
    on_threads(ranks, |rank| sum_and_split(process.join_as(rank), ranks, rank));
    let memory = peak_memory();
    eprintln!("{ranks} threads: {:.1} s, {} MiB", began.elapsed().as_secs_f64(), memory >> 20);
    assert!(memory < MEMORY, "{memory} bytes");
}

/// The program `idlep13`: waits seconds for the last rank, and prints how often that wakes up and how much CPU time it
/// takes. The number of sleeps, about 10 per second, has the tighter limit: a sleep takes about 0.1 ms of CPU time here, and three
/// times as much on a busy machine.
fn wait_for_late_rank(process: &RankProcess) {
    let Comm(comm) = process.join();
    assert_sum(comm, process.ranks);
    if process.rank() == process.ranks - 1 {
        thread::sleep(Duration::from_secs(4));
        return assert_sum(comm, process.ranks);
    }
    let before = usage();
    assert_sum(comm, process.ranks);
    let after = usage();
    let (time, sleeps) = (after.0 - before.0, after.1 - before.1);
    eprintln!("a wait of 4 s: {:.1} ms of CPU time, {sleeps} sleeps", time.as_secs_f64() * 1e3);
    assert!(sleeps <= 60, "{sleeps}");
    assert!(time < Duration::from_millis(400), "{time:?}");
}

fn ranks_as_threads(ranks: usize) {
    let _busy = busy();
    print!("{}", finish(command("sum_and_split_as_threads", &unique_id(), ranks, &[0]).spawn().unwrap()));
}

#[test]
fn hundreds_of_ranks_as_threads_take_few_descriptors_and_little_memory() {
    ranks_as_threads(256);
}

#[test]
#[ignore = "takes seconds of two processors: .ci/run long"]
fn thousand_ranks_as_threads_take_few_descriptors_and_little_memory() {
    ranks_as_threads(1024);
}

#[test]
fn hundred_processes_join_and_split() {
    let (_busy, began) = (busy(), Instant::now());
    processes::run("sum_and_split_as_process", (0..128).map(|rank| [rank]), &[]);
    println!("128 processes: {:.1} s", began.elapsed().as_secs_f64());
}

#[test]
fn long_wait_takes_little_cpu_time() {
    print!("{}", processes::run("wait_for_late_rank", (0..8).map(|rank| [rank]), &[]).concat());
}
