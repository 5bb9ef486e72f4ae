//! Buffers and streams of the crate cudarc in operations, on the stand-in for CUDA and the CPU implementation of NCCL. Each
//! missing order of two accesses is an error there.
//!
//! Two ranks are two threads, each with a device. Rank 1 is late, so that rank 0's operation is pending when its call
//! returns.

mod cases;
mod libraries;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    // In a new process, as the dynamic linker reads its variable at the start of one.
    if let Some(code) = libraries::run_with_libraries() {
        return code;
    }
    let trials = cases::CASES.iter().map(|(name, case)| {
        Trial::test(*name, move || {
            case();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
