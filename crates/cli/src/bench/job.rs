//! The ranks of a tool that all do the same work: threads, processes, or those that a launcher has started.

use std::io::{Write, stderr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use libnccl::{Nccl, UniqueId};

use super::implementation::{Implementation, implementation};
use super::launch;
use super::rank_arguments::RankArguments;

/// A rank of a job.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) nccl: Nccl,
    pub(crate) id: UniqueId,
    pub(crate) rank: usize,
    /// The number of the rank on its host.
    pub(crate) local_rank: usize,
    pub(crate) size: usize,
    /// The number of GPUs of this host that the ranks are spread over; 0 for host memory.
    pub(crate) gpus: usize,
    /// The way in which the ranks were started: `threads`, `processes`, or the name of the launcher.
    pub(crate) launch: String,
}

/// Starts the ranks that the arguments ask for, and does `work` on each, which returns what it found wrong with them. That
/// is an error, too, and the first of a rank ends all.
pub(crate) fn run(
    arguments: &RankArguments,
    work: impl Fn(&Member) -> Result<Option<String>> + Clone + Send + 'static,
) -> Result<ExitCode> {
    let work = move |member: &Member| match work(member) {
        Ok(None) => Ok(()),
        Ok(Some(problem)) => Err(anyhow!(problem)),
        Err(error) => Err(error.context(format!("rank {}", member.rank))),
    };
    let launched = launch::launched()?;
    let RankArguments { ranks, processes, .. } = *arguments;
    let launcher = if launched.is_none() { launch::by_launcher(ranks, processes)? } else { None };
    let Implementation { nccl, gpus, fallback } =
        implementation(None, arguments.cpu, arguments.library.as_deref())?;
    let size = ranks.unwrap_or(if gpus == 0 { 2 } else { gpus });
    if let Some(launch) = launcher {
        let id = launch.unique_id(&nccl)?;
        let (rank, local_rank, size) = (launch.rank(), launch.local_rank(), launch.size());
        let launch = launch.launcher().to_string();
        work(&Member { nccl, id, rank, local_rank, size, gpus, launch })?;
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(size > 1, "there is one GPU, and --ranks is not given: expected two ranks at least");
    let launch = if processes { "processes" } else { "threads" };
    let member =
        |nccl, id, rank| Member { nccl, id, rank, local_rank: rank, size, gpus, launch: launch.into() };
    if let Some((id, rank)) = launched {
        work(&member(nccl, id, rank))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(reason) = fallback {
        let _ = stderr().write_all(format!("{reason}\n").as_bytes());
    }
    let id = nccl.unique_id()?;
    if processes {
        return launch::processes(&id, size);
    }
    threads((0..size).map(|rank| member(nccl.clone(), id, rank)), work)?;
    Ok(ExitCode::SUCCESS)
}

/// Does the work of each member on a thread of its own.
fn threads(
    members: impl Iterator<Item = Member>,
    work: impl Fn(&Member) -> Result<()> + Clone + Send + 'static,
) -> Result<()> {
    let (sender, outcomes) = channel();
    for member in members {
        let (work, sender, rank) = (work.clone(), sender.clone(), member.rank);
        let run = move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| work(&member)));
            // The receiver is gone if another rank has failed.
            let _ = sender.send(outcome.unwrap_or_else(|_| Err(anyhow!("rank {rank} panicked"))));
        };
        // Not scoped: after an error, the other threads may block in NCCL forever.
        thread::Builder::new()
            .name(format!("rank {rank}"))
            .spawn(run)
            .context("cannot start a thread for a rank")?;
    }
    drop(sender);
    outcomes.iter().collect()
}
