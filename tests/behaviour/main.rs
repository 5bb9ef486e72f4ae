//! The behavior that every implementation of NCCL must have, tested with each one that is present: the CPU
//! backend in process and as a loaded shared object, the linked library, and a real NCCL.
//!
//! `LIBNCCL_TEST_LIBRARY` names a real libnccl to load. An absent library and the cases that do not work on a GPU's memory are ignored.

mod cases;
mod implementations;

use std::sync::{Mutex, PoisonError};

use libnccl::Nccl;
use libnccl::buffer::MemorySpace;
use libtest_mimic::{Arguments, Trial};

/// Serializes the cases of real NCCL, which has one last-error text for the whole process.
static REAL: Mutex<()> = Mutex::new(());

fn main() {
    let mut arguments = Arguments::from_args();
    // As many as the test programs of the standard library have.
    let threads = std::env::var("RUST_TEST_THREADS").ok().and_then(|threads| threads.parse().ok());
    arguments.test_threads = arguments.test_threads.or(threads);
    let mut trials = Vec::new();
    for (name, found) in implementations::all() {
        let nccl = match found {
            Ok(nccl) => nccl,
            Err(reason) => {
                let skipped = Trial::test(format!("{name}: skipped, {reason}"), move || Err(reason.into()));
                trials.push(skipped.with_ignored_flag(true));
                continue;
            }
        };
        let is_host = nccl.memory_space() == MemorySpace::Host;
        let mut add = |(case, run): (_, fn(&Nccl)), is_ignored| {
            let nccl = nccl.clone();
            let trial = Trial::test(format!("{name}: {case}"), move || {
                let _alone = (!is_host).then(|| REAL.lock().unwrap_or_else(PoisonError::into_inner));
                run(&nccl);
                Ok(())
            });
            trials.push(trial.with_ignored_flag(is_ignored));
        };
        cases::without_communicator().into_iter().for_each(|case| add(case, false));
        cases::on_host_memory().into_iter().for_each(|case| add(case, !is_host));
    }
    libtest_mimic::run(&arguments, trials).exit();
}
