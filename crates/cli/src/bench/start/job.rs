//! The ranks of a tool that all do the same work.

use std::process::ExitCode;

use anyhow::{Result, anyhow, ensure};
use libnccl::{Nccl, UniqueId};

use super::arguments::RankArguments;
use super::implementation::{Implementation, implementation, may_share_devices};
use super::{Place, Start, processes, threads};
use crate::output;

/// A rank of a job.
pub(crate) struct Member {
    pub(crate) nccl: Nccl,
    pub(crate) id: UniqueId,
    pub(crate) rank: usize,
    /// The number of the rank on its host.
    pub(crate) local_rank: usize,
    pub(crate) size: usize,
    /// The number of GPUs of this host that the ranks are spread over; 0 for host memory.
    pub(crate) gpus: usize,
    /// The name of the [start](Start).
    pub(crate) launch: String,
    /// The process that shows the progress of this one's rank.
    pub(crate) parent: Option<String>,
}

/// Starts the ranks that the arguments ask for, and does `work` on each, which returns what it found wrong with them. That
/// is an error, too, and the first of a rank ends all. So does a signal, after `interrupt` has printed what there is.
pub(crate) fn run(
    arguments: &RankArguments,
    interrupt: impl Fn() + Send + 'static,
    work: impl Fn(&Member) -> Result<Option<String>> + Clone + Send + 'static,
) -> Result<ExitCode> {
    let work = move |member: &Member| match work(member) {
        Ok(None) => Ok(()),
        Ok(Some(problem)) => Err(anyhow!(problem)),
        Err(error) => Err(error.context(format!("rank {}", member.rank))),
    };
    let start = Start::new(arguments.ranks, arguments.processes)?;
    let Implementation { nccl, gpus, fallback } =
        implementation(None, arguments.cpu, arguments.library.as_deref())
            .inspect_err(|error| start.fail(error))?;
    let (processes, threads) = start.processes_and_threads(arguments.ranks, gpus);
    let (size, launch, parent) = (processes * threads, start.to_string(), start.parent().map(str::to_owned));
    ensure!(size > 1, "there is one GPU, and --ranks is not given: expected two ranks at least");
    start
        .check_devices(processes, threads, gpus, may_share_devices(&nccl))
        .inspect_err(|problem| start.fail(problem))?;
    if let (Some(reason), Start::Threads | Start::Processes) = (fallback, &start) {
        output::write_to_stderr(&format!("{reason}\n"));
    }
    let id = start.id(&nccl)?;
    if let Start::Processes = start {
        return processes::run(&id, size);
    }
    start.end_with_output(interrupt)?;
    threads::run(start.place(threads), threads, 1, move |Place { rank, local_rank }| {
        let (nccl, launch, parent) = (nccl.clone(), launch.clone(), parent.clone());
        work(&Member { nccl, id, rank, local_rank, size, gpus, launch, parent })
    })?;
    Ok(ExitCode::SUCCESS)
}
