//! Random sequences of safe calls: operations, groups that fail or outlive their end in a guard, windows, registrations,
//! children, borrowed communicators, abort handles, watchdogs, recorders, and
//! buffers and observers whose code panics or reenters, in orders that nobody would write. Nothing may crash, hang, give wrong values,
//! write a buffer that was given back, or leak communicators, threads, descriptors or memory.
//!
//! The ranks of a sequence are threads that follow one program, generated from the same seed. Now and then one of them
//! leaves it. `LIBNCCL_TEST_SEQUENCES=20000 cargo test --test random_sequences` runs so many, and `.ci/sanitize` runs them under
//! an address sanitizer. A failure names its seed: `LIBNCCL_TEST_SEED=<seed>` repeats it, with the same calls; what depends on
//! the time, such as an abort within a call, may need `LIBNCCL_TEST_SEQUENCES_TRIES=100`.
//! `LIBNCCL_TEST_SEQUENCES_WITHOUT=abort,split` leaves out those [kinds](kind::Kind) of steps.
#![cfg(target_os = "linux")]

mod buffer;
mod child;
mod errand;
mod handles;
mod kind;
mod lent;
mod process;
mod rank;
mod sequence;
mod unruly;
mod usage;

use libnccl_test_support::random_inputs::{fresh_seed, from_environment};

use process::Process;

#[test]
fn random_sequences_crash_hang_and_leak_nothing() {
    if process::run_as_told() {
        return;
    }
    let seed = from_environment("LIBNCCL_TEST_SEED");
    let count = from_environment("LIBNCCL_TEST_SEQUENCES").unwrap_or(if seed.is_some() { 1 } else { 40 });
    let first = seed.unwrap_or_else(fresh_seed);
    // Sequences wait more than they compute.
    let processes = count.div_ceil(10).clamp(1, 4);
    let folder = tempfile::tempdir().expect("a folder");
    let starts = (0..processes).map(|index| first + count * index / processes);
    let ends = (1..=processes).map(|index| first + count * index / processes);
    let started = starts.zip(ends).map(|(start, end)| {
        Process::start("random_sequences_crash_hang_and_leak_nothing", folder.path(), start, end - start)
    });
    process::wait_for_all(started.collect());
}
