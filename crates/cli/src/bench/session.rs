//! The work of a thread, which drives one rank or several.

use anyhow::{Context, Result, ensure};
use libnccl::{Config, Version};

use super::benchmark::Benchmark;
use super::measure::Work;
use super::measure::memory::Memory;
use super::measure::ranks::Ranks;
use super::measure::ranks::{Description, available_bytes};
use super::output::Output;
use super::parameters::{Case, Parameters};
use super::start::Job;

/// Runs all measurements as the ranks of a thread. The measurements of a data type follow each other. Returns whether all
/// results are right, on the thread of rank 0, which prints; `true` on the others.
pub(crate) fn run(job: &Job, thread: usize, all: &[Parameters], output: &Output) -> Result<bool> {
    let first = all.first().context("nothing to measure")?;
    let memory = |member| Memory::of(job.local_rank(thread) + member, job.gpus, first.procedure.stream_null);
    let memories = (0..job.ranks_per_thread).map(memory).collect::<Result<Vec<_>>>()?;
    let free = free_bytes(memories.iter())?;
    let mut ranks = Ranks::new(job, thread, memories, &config(job, first))?;
    let created = ranks_free_bytes(&ranks)?;
    let descriptions = ranks.describe()?;
    let has_one_clock =
        descriptions.iter().all(|description| description.rank.host == descriptions[0].rank.host);
    let prints = job.rank(thread) == 0;
    let Some(all) = fitting(&descriptions, all, prints)? else { return Ok(true) };
    if prints {
        output.begin(job, &all, &descriptions)?;
    }
    let mut buffers = 0;
    for parameters in all.chunk_by(|one, other| one.data_type == other.data_type) {
        buffers += rows(&mut ranks, parameters, prints.then_some(output), has_one_clock)?;
    }
    let usage = if first.columns.memory {
        let own = [free - created, buffers, created - buffers - ranks_free_bytes(&ranks)?];
        let all = ranks.gather(&vec![own; ranks.members.len()])?;
        // The most that any thread has used.
        Some(all.into_iter().fold(own, |most, used| [0, 1, 2].map(|part| most[part].max(used[part]))))
    } else {
        None
    };
    let is_right = if prints { output.finish(usage)? } else { true };
    ranks.destroy()?;
    Ok(is_right)
}

/// Returns the parameters with the size up to which buffers fit into memory. If none does, rank 0 fails; others get `None`.
fn fitting(ranks: &[Description], all: &[Parameters], is_first: bool) -> Result<Option<Vec<Parameters>>> {
    let available = available_bytes(ranks);
    let first = all.first().context("nothing to measure")?;
    // One to send from and one to receive into. GPU memory is not freed before the end.
    let types = all.chunk_by(|one, other| one.data_type == other.data_type).count() as u64;
    let buffers = if first.gpus > 0 { 2 * types } else { 2 };
    let misaligned = (first.unalign * size_of::<u64>()) as u64;
    let fitting_bytes =
        (available / buffers).saturating_sub(misaligned) / u64::from(first.procedure.agg_iters);
    if first.last_size() <= fitting_bytes {
        return Ok(Some(all.to_vec()));
    }
    if first.min_bytes > fitting_bytes {
        ensure!(
            !is_first,
            "cannot allocate buffers for --minbytes {}: each rank has {available} bytes of memory, enough for {buffers} \
             buffers of {fitting_bytes} bytes",
            first.min_bytes
        );
        return Ok(None);
    }
    Ok(Some(all.iter().map(|parameters| Parameters { fitting_bytes, ..parameters.clone() }).collect()))
}

/// Measures all sizes of one data type, a row each. Returns the bytes of the buffers of a GPU.
fn rows(ranks: &mut Ranks, all: &[Parameters], output: Option<&Output>, has_one_clock: bool) -> Result<i64> {
    let free = ranks_free_bytes(ranks)?;
    let mut work = Work::new(ranks, &all[0], has_one_clock)?;
    let bytes = free - ranks_free_bytes(work.ranks)?;
    let mut seed = 0;
    for parameters in all {
        work.warm_up(parameters)?;
        let mut cycle = 0;
        while parameters.procedure.run_cycles == 0 || cycle < parameters.procedure.run_cycles {
            for bytes in parameters.sizes() {
                let case = Case { parameters, shape: parameters.shape(bytes)?, in_place: false };
                let out_of_place = work.measure(case, seed)?;
                let in_place = if parameters.benchmark.has_in_place() {
                    Some(work.measure(Case { in_place: true, ..case }, seed + 1)?)
                } else {
                    None
                };
                seed += 2;
                if let Some(output) = output {
                    output.row(case, &out_of_place, in_place.as_ref())?;
                }
            }
            cycle = cycle.wrapping_add(1);
        }
    }
    work.finish()?;
    Ok(bytes)
}

fn config(job: &Job, parameters: &Parameters) -> Config {
    let mut config = Config::new();
    if let Some(policy) = parameters.procedure.cta_policy {
        config = config.cta_policy(policy);
    }
    // As nccl-tests does for sendrecv: a rank has two peers.
    let peers_since = Version::new(2, 30, 3);
    if parameters.benchmark == Benchmark::SendRecv && job.gpus > 0 && job.nccl.version() >= peers_since {
        config = config.max_p2p_peers(2);
    }
    config
}

fn ranks_free_bytes(ranks: &Ranks) -> Result<i64> {
    free_bytes(ranks.members.iter().map(|member| &member.memory))
}

/// Returns the fewest free bytes of these GPUs; 0 for host memory.
fn free_bytes<'m>(memories: impl Iterator<Item = &'m Memory>) -> Result<i64> {
    memories.map(Memory::free_bytes).try_fold(i64::MAX, |least, free| Ok(least.min(free?)))
}
