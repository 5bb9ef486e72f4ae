//! `nccl bench pairs`: bandwidth and latency between every two ranks.

pub(crate) mod arguments;
mod heat_map;
mod matrix;
mod messages;

use std::fs;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::start::job::{self, Member};
use crate::output;
use arguments::PairsArguments;

/// The links that an error names at most.
const MAX_NAMED: usize = 8;

/// Measures one pair after the other, so that none disturbs another.
pub(crate) fn run(arguments: &PairsArguments) -> Result<ExitCode> {
    if arguments.json {
        output::keep_libraries_out()?;
    }
    let own = arguments.clone();
    job::run(&arguments.ranks, move |member| check(member, &own))
}

/// Returns what misses the limits, on rank 0, which prints.
fn check(member: &Member, arguments: &PairsArguments) -> Result<Option<String>> {
    let Some(pairs) = messages::pairs(member, arguments)? else { return Ok(None) };
    if let Some(file) = &arguments.svg {
        fs::write(file, heat_map::draw(&pairs)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let text = if arguments.json { pairs.to_json()? } else { pairs.to_string() };
    output::stdout().write_all(text.as_bytes())?;
    let mut problems = pairs.problems(arguments.min_bandwidth, arguments.max_latency);
    let more = problems.len().saturating_sub(MAX_NAMED);
    problems.truncate(MAX_NAMED);
    problems.extend((more > 0).then(|| format!("and {more} more")));
    Ok((!problems.is_empty()).then(|| problems.join("; ")))
}
