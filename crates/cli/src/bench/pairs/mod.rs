//! `nccl bench pairs`: bandwidth and latency between every two ranks.

pub(crate) mod arguments;
mod heat_map;
mod matrix;
mod messages;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;

use super::start::job::{self, Member};
use crate::{named_file, output};
use arguments::PairsArguments;
use matrix::Pairs;

/// The links that an error names at most.
const MAX_NAMED: usize = 8;

/// Measures one pair after the other, so that none disturbs another.
pub(crate) fn run(arguments: &PairsArguments) -> Result<ExitCode> {
    if arguments.json {
        output::keep_libraries_out()?;
    }
    let measured = Measured::default();
    let (own, interrupted, also) = (arguments.clone(), measured.clone(), arguments.clone());
    // An output that cannot be written changes nothing about the signal.
    let interrupt = move || drop(take(&interrupted).map(|pairs| write(&pairs, &also)));
    job::run(&arguments.ranks, interrupt, move |member| check(member, &own, &measured))
}

/// The pairs that rank 0 has measured, until they are printed.
type Measured = Arc<Mutex<Option<Pairs>>>;

fn take(measured: &Measured) -> Option<Pairs> {
    let mut pairs = lock(measured).take()?;
    pairs.judge();
    Some(pairs)
}

fn lock(measured: &Measured) -> MutexGuard<'_, Option<Pairs>> {
    measured.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns what misses the limits, on rank 0, which prints.
fn check(member: &Member, arguments: &PairsArguments, measured: &Measured) -> Result<Option<String>> {
    if let (0, Some(file)) = (member.rank, &arguments.svg) {
        named_file::check(file)?;
    }
    messages::pairs(member, arguments, measured)?;
    if member.rank > 0 {
        return Ok(None);
    }
    let Some(pairs) = take(measured) else { return Ok(None) };
    write(&pairs, arguments)?;
    let mut problems = pairs.problems(arguments.min_bandwidth, arguments.max_latency);
    let more = problems.len().saturating_sub(MAX_NAMED);
    problems.truncate(MAX_NAMED);
    problems.extend((more > 0).then(|| format!("and {more} more")));
    Ok((!problems.is_empty()).then(|| problems.join("; ")))
}

fn write(pairs: &Pairs, arguments: &PairsArguments) -> Result<()> {
    if let Some(file) = &arguments.svg {
        named_file::write(file, heat_map::draw(pairs)?.as_bytes())?;
    }
    output::print(pairs, arguments.json)
}
