//! NCCL on a real GPU, with one rank and with two ranks on one GPU: every operation and element type compared with the
//! CPU backend, and behaviour that only a GPU has.
//!
//! Each rank is a process, which runs this program again (see `job`), so that a hang can be ended. The library is the
//! one that `Nccl::load()` finds; `LIBNCCL_PATH` names another. What cannot run here is ignored, with the reason.
#![deny(unsafe_code)]

mod common;
mod communicators;
mod data;
mod device;
mod job;
mod machine;
mod memory;
mod more_operations;
mod operations;
mod rank;
mod scenarios;

use std::collections::BTreeMap;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};

use job::Job;

fn main() {
    operations::use_references();
    machine::load_driver();
    if job::run_rank() {
        return;
    }
    let mut arguments = Arguments::from_args();
    // Each job has the GPU to itself.
    arguments.test_threads = Some(1);
    let machine = machine::examine();
    if let (Ok(machine), false) = (&machine, arguments.list) {
        println!("{machine}");
    }
    let mut trials = Vec::new();
    let mut skipped = BTreeMap::new();
    for job in Job::all() {
        let job = Arc::new(job);
        let problem = match &machine {
            Ok(machine) => machine.lacks(&job),
            Err(problem) => Some(problem.clone()),
        };
        match problem {
            None => trials.extend(job.checks().into_iter().map(|check| {
                let (name, job) = (format!("{}: {check}", job.setting()), Arc::clone(&job));
                Trial::ignorable_test(name, move || job.outcome(&check))
            })),
            Some(problem) => {
                for group in job.groups() {
                    skipped
                        .insert(format!("{}: {group}: skipped, {problem}", job.setting()), problem.clone());
                }
            }
        }
    }
    trials.extend(
        skipped
            .into_iter()
            .map(|(name, problem)| Trial::test(name, move || Err(problem.into())).with_ignored_flag(true)),
    );
    libtest_mimic::run(&arguments, trials).exit();
}
