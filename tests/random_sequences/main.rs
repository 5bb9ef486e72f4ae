//! Random sequences of safe calls: operations, groups that fail, windows, registrations, children, borrowed communicators, abort
//! handles, watchdogs and recorders. Nothing may crash, hang, return wrong values, write to a buffer after its operation, or leak
//! communicators, threads, descriptors or memory. Code of other crates that panics or uses NCCL is in `tests/calls/guards.rs` and
//! `tests/observer.rs`.
//!
//! The ranks of a sequence are threads that follow one program, generated from the same seed. Sometimes one of them deviates from
//! it. `LIBNCCL_TEST_SEQUENCES=20000 cargo test --test random_sequences` sets the number of sequences, and `.ci/sanitize` runs
//! them under an address sanitizer. A failure names its seed: `LIBNCCL_TEST_SEED=<seed>` repeats it, with the same calls.
//! Failures that depend on timing, such as an abort during a call, may need `LIBNCCL_TEST_SEQUENCES_TRIES=100`.
#![cfg(target_os = "linux")]

mod checks;
mod rank;
mod sequence;

use std::env;
use std::process::{self, Command};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use libnccl_test_support::random_inputs::{fresh_seed, from_environment};

use checks::Usage;

/// Time after which a sequence counts as hung.
const LIMIT: Duration = Duration::from_secs(30);

/// The variables of a process that runs sequences: the first seed, and the number of sequences.
const FIRST: &str = "LIBNCCL_TEST_SEQUENCES_FIRST";
const COUNT: &str = "LIBNCCL_TEST_SEQUENCES_COUNT";

#[test]
fn random_sequences_crash_hang_and_leak_nothing() {
    if let (Some(first), Some(count)) = (from_environment(FIRST), from_environment(COUNT)) {
        return run(first, count);
    }
    let seed = from_environment("LIBNCCL_TEST_SEED");
    let count = from_environment("LIBNCCL_TEST_SEQUENCES").unwrap_or(if seed.is_some() { 1 } else { 40 });
    let first = seed.unwrap_or_else(fresh_seed);
    // Sequences wait more than they compute.
    let processes = count.div_ceil(10).clamp(1, 4);
    let seeds = |index: u64| first + count * index / processes;
    thread::scope(|scope| {
        for index in 0..processes {
            scope.spawn(move || run_in_process(seeds(index), seeds(index + 1) - seeds(index)));
        }
    });
}

/// Runs sequences in a process, which may crash.
fn run_in_process(first: u64, count: u64) {
    let mut command = Command::new(env::current_exe().expect("the path of this program"));
    command.args(["--exact", "random_sequences_crash_hang_and_leak_nothing", "--nocapture"]);
    let output = command.env(FIRST, first.to_string()).env(COUNT, count.to_string()).output();
    let output = output.expect("this program can be run");
    let errors = String::from_utf8_lossy(&output.stderr);
    // The seed of the failed sequence is the last one.
    let last: Vec<&str> = errors.lines().rev().take(200).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    assert!(output.status.success(), "{}\n{}", output.status, last.join("\n"));
}

fn run(first: u64, count: u64) {
    static DONE: AtomicU64 = AtomicU64::new(0);
    thread::spawn(|| {
        loop {
            let done = DONE.load(Relaxed);
            thread::sleep(LIMIT);
            if DONE.load(Relaxed) == done {
                eprintln!("the sequence hangs");
                process::abort();
            }
        }
    });
    let nccl = libnccl_cpu::nccl();
    let mut warm = None;
    for seed in first..first + count {
        eprintln!("seed {seed}");
        for _ in 0..from_environment("LIBNCCL_TEST_SEQUENCES_TRIES").unwrap_or(1) {
            sequence::run(&nccl, seed);
            DONE.fetch_add(1, Relaxed);
        }
        // The caches of the allocator and of the CPU backend are full by then.
        if seed == first + count / 2 {
            warm = Some(Usage::settled());
        }
    }
    if count > 1 {
        warm.expect("there are sequences").check_end(Usage::settled());
    }
}
