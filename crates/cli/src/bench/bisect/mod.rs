//! `nccl bench bisect`: halves the ranks until the slow, wrong or hanging rank, or pair of ranks, is named.
//!
//! All communicators are split off first, while nothing hangs yet: all ranks, halves, and so on down to pairs, then the same
//! ranks in other pairs. A rank is named if each of its pairs is bad, with
//! different partners; a pair, if neither of its ranks is bad in another.

pub(crate) mod arguments;
mod measured;
mod stages;
mod trial;
mod verdict;

use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use libnccl::Communicator;
use serde_json::json;

use super::measure::endpoint::Endpoint;
use super::output::progress::Progress;
use super::start::job::{self, Member};
use crate::output;
use arguments::BisectArguments;
use measured::Measured;
use stages::Stage;
use trial::Trial;
use verdict::Verdict;

/// The time that ranks need to begin a stage together, and to end a group that hangs.
const MARGIN: Duration = Duration::from_secs(1);

/// The passes through all stages until a group counts as slow: the fastest of them counts.
const PASSES: usize = 3;

/// Searches among the ranks that the arguments ask for.
pub(crate) fn run(arguments: &BisectArguments) -> Result<ExitCode> {
    if arguments.json {
        output::keep_libraries_out()?;
    }
    let so_far = SoFar::default();
    let (own, interrupted, as_json) = (arguments.clone(), so_far.clone(), arguments.json);
    // An output that cannot be written changes nothing about the signal.
    let interrupt = move || drop(take(&interrupted).map(|progress| progress.print(as_json)));
    job::run(&arguments.ranks, interrupt, move |member| search(member, &own, &so_far))
}

/// The knowledge of rank 0 during the search, until it is printed.
type SoFar = Arc<Mutex<Option<Known>>>;

enum Known {
    /// The groups that are measured.
    Groups(Measured),
    /// All ranks together have not finished.
    Hang,
}

impl Known {
    /// Prints what there is when a signal ends the search.
    fn print(self, as_json: bool) -> Result<()> {
        match self {
            Self::Groups(measured) => output::print(&measured.interrupted(), as_json),
            Self::Hang => {
                output::write_to_stderr("all ranks together hang; interrupted before one was named\n");
                Ok(())
            }
        }
    }
}

fn take(so_far: &SoFar) -> Option<Known> {
    so_far.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Returns what is wrong with the ranks, on rank 0, which prints, or on the one that can tell.
fn search(member: &Member, arguments: &BisectArguments, so_far: &SoFar) -> Result<Option<String>> {
    let bytes = arguments.size.unwrap_or(if member.gpus == 0 { 1 << 20 } else { 64 << 20 });
    let elements = (usize::try_from(bytes)? / size_of::<f32>()).max(trial::SHORT);
    let deadline = Duration::from_secs(arguments.deadline);
    let endpoint = Endpoint::new(member, elements, Some(deadline))?;
    let (rank, size) = (member.rank, member.size);
    let stages = Stage::all(size);
    let mut groups = vec![];
    for stage in &stages {
        let color = stage.color(rank).map(u32::try_from).transpose()?;
        groups.push(endpoint.communicator.split(color, rank as i32).init()?);
    }
    let mut search = Search { endpoint, stages, groups, arguments, passes: vec![], member, so_far };
    let begin = Instant::now();
    let trials = search.trials(begin)?;
    if hangs(&trials) {
        // The ranks that hang will not come to exchange what they know.
        return ManuallyDrop::new(search).hanging(&trials, begin).map(Some);
    }
    let mut verdict = Verdict::new(search.measured());
    while verdict.has_slow() && search.passes.len() < PASSES {
        search.trials(begin)?;
        verdict = Verdict::new(search.measured());
    }
    search.groups.into_iter().flatten().try_for_each(Communicator::destroy)?;
    search.endpoint.destroy()?;
    // A signal may have taken it, and ends this process.
    if rank > 0 || take(so_far).is_none() {
        return Ok(None);
    }
    output::print(&verdict, arguments.json)?;
    let sentences = verdict.sentences();
    Ok((!sentences.is_empty()).then(|| sentences.join("; ")))
}

/// A rank's part in the search.
struct Search<'a> {
    endpoint: Endpoint,
    stages: Vec<Stage>,
    /// The communicator of this rank in each stage.
    groups: Vec<Option<Communicator>>,
    arguments: &'a BisectArguments,
    /// The values of all ranks in each pass, of the stages that it has been through.
    passes: Vec<Vec<Vec<f64>>>,
    member: &'a Member,
    so_far: &'a SoFar,
}

impl Search<'_> {
    fn deadline(&self) -> Duration {
        Duration::from_secs(self.arguments.deadline)
    }

    /// Does this rank's part in every stage.
    fn trials(&mut self, begin: Instant) -> Result<Vec<Trial>> {
        let mut trials: Vec<Trial> = vec![];
        let (stages, parent) = (self.stages.len() as u64, self.member.parent.as_deref());
        let progress = (self.endpoint.rank() == 0).then(|| Progress::new(Some(stages), "stages", parent));
        self.passes.push(vec![vec![]; self.endpoint.size()]);
        for number in 0..self.stages.len() {
            let trial = if hangs(&trials) {
                // Each group that hangs makes its ranks late for their next one, so these begin at fixed times.
                let start = (self.deadline() + MARGIN) * number as u32;
                thread::sleep(start.saturating_sub(begin.elapsed()));
                self.trial(number, None)?
            } else {
                self.in_turn(number)?
            };
            let own = self.stages[number].group(self.endpoint.rank()).unwrap_or_default().to_vec();
            match &trial.failure {
                Some(failure) if self.passes.len() > 1 || number > 0 && !hangs(&trials) => {
                    bail!("the ranks {own:?} have not finished, after all ranks together have: {failure}")
                }
                _ => trials.push(trial),
            }
            if !hangs(&trials) {
                self.exchange(&trials[number])?;
            }
            if let Some(progress) = &progress {
                let known = if hangs(&trials) { Known::Hang } else { Known::Groups(self.measured()) };
                *self.so_far.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
                progress.row(|| format!("after ranks {own:?}"), || ());
            }
        }
        Ok(trials)
    }

    /// Runs the groups of a stage, on GPUs at the same time. On the CPU they would take time from each other.
    fn in_turn(&mut self, number: usize) -> Result<Trial> {
        let stage = &self.stages[number];
        let own = stage.color(self.endpoint.rank());
        let turns = if self.endpoint.is_on_host() { stage.groups.len() } else { 1 };
        let mut trial = Trial::default();
        for turn in 0..turns {
            if number > 0 {
                self.endpoint.barrier()?;
            }
            if turns == 1 || own == Some(turn) {
                trial = self.trial(number, Some(self.arguments.iters))?;
            }
        }
        Ok(trial)
    }

    fn trial(&mut self, number: usize, iters: Option<u32>) -> Result<Trial> {
        match &self.groups[number] {
            Some(group) => trial::run(&mut self.endpoint, group, iters),
            None => Ok(Trial::default()),
        }
    }

    /// Exchanges what the ranks have measured in a stage. All come to the same verdict.
    fn exchange(&mut self, trial: &Trial) -> Result<()> {
        let all = self.endpoint.gather(&trial.to_values());
        let all = all.context("a rank has not come to exchange the results")?;
        let pass = self.passes.last_mut().context("no pass has begun")?;
        pass.iter_mut().zip(all).for_each(|(known, new)| known.extend(new));
        Ok(())
    }

    /// Returns the groups that are measured, by all passes.
    fn measured(&self) -> Measured {
        let Member { nccl, launch, .. } = self.member;
        let head = [format!("{} ({})", nccl.version(), nccl.backend()), launch.clone()];
        // The CPU backend's ranks are all on this host.
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let compares_latency = !self.endpoint.is_on_host() || self.endpoint.size() <= processors;
        Measured::new(head, &self.stages, &self.passes, self.arguments.slower, compares_latency)
    }

    /// Names the rank that hangs, or the pair, as far as this rank alone can tell: it is the one if it has finished with none of
    /// its partners.
    fn hanging(&self, trials: &[Trial], begin: Instant) -> Result<String> {
        let (rank, stages, is_json) = (self.endpoint.rank(), &self.stages, self.arguments.json);
        let end = begin + (self.deadline() + MARGIN) * stages.len() as u32;
        let (mut failed, mut finished) = (BTreeSet::new(), BTreeSet::new());
        let mut failure = String::new();
        for (stage, trial) in stages.iter().zip(trials).filter(|(stage, _)| stage.is_of_pairs()) {
            let Some(partner) = stage.partner(rank) else { continue };
            match &trial.failure {
                Some(text) => {
                    failed.insert(partner);
                    failure.clone_from(text);
                }
                None => {
                    finished.insert(partner);
                }
            }
        }
        let Some(partner) = failed.first() else {
            // Others can tell more; but if no pair hangs, nobody can.
            thread::sleep((end + 2 * MARGIN).saturating_duration_since(Instant::now()));
            return Ok(format!("all ranks together hang, and rank {rank} with none of {finished:?} alone"));
        };
        let is_named = failed.len() > 1 && finished.is_empty();
        let sentence = if is_named {
            format!("rank {rank} hangs: it has finished with none of the ranks {failed:?} alone ({failure})")
        } else {
            // A partner that hangs with others too names itself, if it can.
            thread::sleep((end + MARGIN).saturating_duration_since(Instant::now()));
            format!(
                "ranks {rank} and {partner} hang with each other; rank {rank} has finished with {finished:?} ({failure})"
            )
        };
        if is_json {
            let (hanging, pairs) =
                if is_named { (vec![rank], vec![]) } else { (vec![], vec![[rank, *partner]]) };
            let text = json!({ "schema": measured::SCHEMA, "hanging": hanging, "hanging_pairs": pairs });
            output::print_json(&text)?;
        }
        Ok(sentence)
    }
}

/// Returns whether the ranks hang: the first group is that of all, so all know.
fn hangs(trials: &[Trial]) -> bool {
    trials.first().is_some_and(|trial| trial.failure.is_some())
}
