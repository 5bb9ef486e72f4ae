//! The behavior that every implementation of NCCL must have, tested with each one that is present: the CPU
//! backend in process and as a loaded shared object, the linked library, and a real NCCL.
//!
//! `LIBNCCL_TEST_LIBRARY` names a real libnccl to load. What is absent is listed as ignored, by name.

mod cases;
mod implementations;

use std::sync::{Mutex, PoisonError};

use libnccl::buffer::MemorySpace;
use libtest_mimic::{Arguments, Trial};

use cases::Selection;

/// Serializes the cases of real NCCL, which has one last-error text for the whole process.
static REAL: Mutex<()> = Mutex::new(());

fn main() {
    let mut arguments = Arguments::from_args();
    // As many as the test programs of the standard library have.
    let threads = std::env::var("RUST_TEST_THREADS").ok().and_then(|threads| threads.parse().ok());
    arguments.test_threads = arguments.test_threads.or(threads);
    let mut trials = Vec::new();
    for (name, found) in implementations::all() {
        match found {
            Ok(nccl) => {
                let Selection { run, skipped } = Selection::of(&nccl);
                for (case, run) in run {
                    let nccl = nccl.clone();
                    trials.push(Trial::test(format!("{name}: {case}"), move || {
                        let _alone = (nccl.memory_space() != MemorySpace::Host)
                            .then(|| REAL.lock().unwrap_or_else(PoisonError::into_inner));
                        run(&nccl);
                        Ok(())
                    }));
                }
                trials.extend(skipped.into_iter().map(|(case, _)| {
                    let reason = "works on a GPU's memory";
                    let name = format!("{name}: {case}: skipped, {reason}");
                    Trial::test(name, move || Err(reason.into())).with_ignored_flag(true)
                }));
            }
            Err(reason) => {
                let skipped = Trial::test(format!("{name}: skipped, {reason}"), move || Err(reason.into()));
                trials.push(skipped.with_ignored_flag(true));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
