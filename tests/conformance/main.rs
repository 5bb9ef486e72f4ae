//! NCCL's C functions, called through the function table of every implementation that is present: the CPU backend in process, as
//! a shared object with a process per rank, on the CUDA emulation, and behind libnccl-trace; NVIDIA's NCCL without a GPU; and a GPU.
//!
//! Each case runs in processes that are this program, started again, so a hang ends and a crash has one name. An implementation
//! that is absent, and a case that it lacks something for, are listed as ignored, with the reason.
//!
//! - `LIBNCCL_TEST_LIBRARY` names the NCCL to use without a GPU; otherwise it is the one that `cargo xtask nvidia-package` downloaded.
//! - `Nccl::load()` finds the NCCL to use on a GPU: `LIBNCCL_PATH` names another.
#![allow(unsafe_code)]

#[macro_use]
mod rank;

mod arguments;
mod children;
mod collectives;
mod implementation;
mod init;
mod job;
mod memory;
mod nonblocking;
mod one_sided;
mod point_to_point;
mod reference;

use std::ops::RangeInclusive;

use libtest_mimic::{Arguments, Trial};

use implementation::Implementation;
use rank::Rank;

/// A case, which every rank runs.
#[derive(Clone)]
struct Case {
    name: String,
    /// The numbers of ranks. The CPU backend runs the largest, and a GPU one rank and two.
    ranks: RangeInclusive<usize>,
    run: fn(&Rank),
}

/// Names cases and their numbers of ranks.
macro_rules! cases {
    ($($ranks:expr => $($name:ident),+;)*) => {
        vec![$($($crate::Case { name: stringify!($name).to_owned(), ranks: $ranks, run: $name }),+),*]
    };
}
use cases;

/// Returns all cases, in the same order in each process.
fn all_cases() -> Vec<Case> {
    let families = [
        ("init", init::cases()),
        ("children", children::cases()),
        ("collectives", collectives::cases()),
        ("point_to_point", point_to_point::cases()),
        ("one_sided", one_sided::cases()),
        ("memory", memory::cases()),
        ("nonblocking", nonblocking::cases()),
        ("arguments", arguments::cases()),
    ];
    let named = |family: &str, case: Case| Case { name: format!("{family}::{}", case.name), ..case };
    families
        .into_iter()
        .flat_map(|(family, cases)| cases.into_iter().map(move |case| named(family, case)))
        .collect()
}

fn main() {
    if job::run_rank() {
        return;
    }
    let mut arguments = Arguments::from_args();
    let skipped = |name: String, reason: String| {
        Trial::test(format!("{name}: skipped, {reason}"), move || Err(reason.into())).with_ignored_flag(true)
    };
    let mut trials = Vec::new();
    for implementation in Implementation::ALL {
        if let Err(reason) = implementation.examine() {
            trials.push(skipped(implementation.to_string(), reason));
            continue;
        }
        // Each case has the GPU to itself.
        if implementation == Implementation::Gpu {
            arguments.test_threads = Some(1);
        }
        for (index, case) in all_cases().into_iter().enumerate() {
            for ranks in implementation.numbers_of_ranks(&case) {
                let name = format!("{implementation}, {ranks} ranks: {}", case.name);
                match implementation.lacks(ranks) {
                    Some(reason) => trials.push(skipped(name, reason.to_owned())),
                    None => trials
                        .push(Trial::ignorable_test(name, move || job::run(implementation, index, ranks))),
                }
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
