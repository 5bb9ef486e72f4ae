//! The work of a thread, which drives one rank or several.

use anyhow::{Context, Result, ensure};
use libnccl::{Nccl, UniqueId};

use super::measure::memory::Memory;
use super::measure::ranks::{Rank, Ranks};
use super::measure::shape::Shape;
use super::measure::usage::Usage;
use super::measure::watchdog::Watchdog;
use super::measure::work::Work;
use super::output::Output;
use super::output::description::Description;
use super::output::report;
use super::parameters::Parameters;
use super::start::Place;

/// The state that the threads of a process share.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) nccl: Nccl,
    pub(crate) id: UniqueId,
    /// All measurements; those of a data type follow each other.
    pub(crate) parameters: Vec<Parameters>,
    pub(crate) output: Output,
    pub(crate) watchdog: Watchdog,
}

/// Runs all measurements as the ranks of a thread. Fails if results are wrong.
pub(crate) fn run(session: &Session, place: Place) -> Result<()> {
    let wrong = all_rows(session, place).with_context(|| format!("rank {}", place.rank))?;
    ensure!(wrong == 0, "{wrong} elements are wrong");
    Ok(())
}

/// Returns the number of wrong elements on the thread of rank 0, 0 on the others.
fn all_rows(session: &Session, place: Place) -> Result<u64> {
    let first = session.parameters.first().context("nothing to measure")?;
    let memory = |member| Memory::of(place.local_rank + member, first.gpus, first.procedure.stream_null);
    let memories = (0..first.ranks_per_thread).map(memory).collect::<Result<Vec<_>>>()?;
    let free = free_bytes(&memories)?;
    let mut ranks = Ranks::new(&session.nccl, memories, &session.id, place.rank, first)?;
    let created = ranks.free_bytes()?;
    let descriptions = ranks.describe()?;
    let has_one_clock =
        descriptions.iter().all(|description| description.rank.host == descriptions[0].rank.host);
    let prints = place.rank == 0;
    if prints {
        session.output.begin(&session.nccl, &session.parameters, &descriptions)?;
    }
    let mut buffers = 0;
    for parameters in session.parameters.chunk_by(|one, other| one.data_type == other.data_type) {
        buffers += rows(&mut ranks, parameters, session, has_one_clock)?;
    }
    let usage = Usage {
        initialization: free - created,
        buffers,
        operations: created - buffers - ranks.free_bytes()?,
    };
    let usage = if first.procedure.memory { Some(ranks.most(usage)?) } else { None };
    let wrong = if prints { session.output.finish(usage)? } else { 0 };
    ranks.destroy()?;
    Ok(wrong)
}

/// Measures all sizes of one data type, a row each. Returns the bytes of the buffers of a GPU.
fn rows(ranks: &mut Ranks<'_>, all: &[Parameters], session: &Session, has_one_clock: bool) -> Result<i64> {
    let prints = ranks.first() == 0;
    let free = ranks.free_bytes()?;
    let mut work = Work::new(ranks, &all[0], &session.watchdog, has_one_clock)?;
    let bytes = free - work.ranks.free_bytes()?;
    let mut seed = 0;
    for parameters in all {
        work.warm_up(parameters)?;
        let mut cycle = 0;
        while parameters.procedure.run_cycles == 0 || cycle < parameters.procedure.run_cycles {
            for bytes in parameters.sizes() {
                let shape = Shape::of(parameters, bytes)?;
                let out_of_place = work.measure(parameters, &shape, false, seed)?;
                let in_place = if parameters.benchmark.has_in_place() {
                    Some(work.measure(parameters, &shape, true, seed + 1)?)
                } else {
                    None
                };
                seed += 2;
                if prints {
                    session.output.row(parameters, &shape, out_of_place, in_place)?;
                }
            }
            cycle = cycle.wrapping_add(1);
        }
    }
    work.finish()?;
    Ok(bytes)
}

impl Ranks<'_> {
    /// Gathers the description of each rank.
    fn describe(&mut self) -> Result<Vec<Description>> {
        let host =
            std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "localhost".into());
        let host: String = host.trim().chars().take(64).collect();
        let describe = |member: &Rank| {
            let rank = report::Rank {
                rank: member.communicator.rank(),
                host: host.clone(),
                pid: std::process::id(),
                device: member.memory.device()?.map(|name| name.chars().take(128).collect()),
            };
            Ok(Description { rank, device: member.communicator.device() })
        };
        let own = self.members.iter().map(describe).collect::<Result<Vec<_>>>()?;
        self.gather(&own)
    }

    /// Returns the fewest free bytes of this thread's GPUs; 0 for host memory.
    fn free_bytes(&self) -> Result<i64> {
        free_bytes(self.members.iter().map(|member| &member.memory))
    }

    /// Returns the most that any thread has used.
    fn most(&mut self, own: Usage) -> Result<Usage> {
        let all = self.gather(&vec![own; self.members.len()])?;
        Ok(all.into_iter().fold(own, Usage::max))
    }
}

fn free_bytes<'m>(memories: impl IntoIterator<Item = &'m Memory>) -> Result<i64> {
    memories.into_iter().map(Memory::free_bytes).try_fold(i64::MAX, |least, free| Ok(least.min(free?)))
}
