//! `nccl bench compare`: two results, size by size, or two backends that are measured in turn.

mod comparison;
mod nccl_tests;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Error, Result, bail, ensure};
use clap::{Args, ValueEnum};

use super::arguments::refuse;
use super::output::report::Report;
use super::output::{conclude, exit_code};
use super::start::Backend;
use crate::run::{THIS_PROGRAM, program_that_ends_with_this};
use crate::value_parser::whole;
use crate::{file, output};
use comparison::Comparison;

const HELP: &str = "\
Examples:
  nccl bench compare before.json after.json --threshold 0.95
  nccl bench compare nccl-bench.json all_reduce_perf.txt
  nccl bench compare --backend link --backend dlopen -- all_reduce -b 8 -e 1M

The times are medians of single iterations if all results have them, otherwise the means of the loops. The ratio is their
quotient, A / B: above 1, B is faster. Of several rounds, the one with the median ratio is printed.

Exit status:
  0    No ratio is below the threshold
  1    A ratio is below the threshold or missing, a result is incomplete or wrong, or the results cannot be compared
  2    Invalid command line
  141  The reader of the output closed it";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct CompareArguments {
    /// Two results: JSON of `nccl bench --json`, or the output of a program of nccl-tests
    #[arg(value_name = "FILE", num_args = 2)]
    #[arg(conflicts_with = "backend", required_unless_present = "backend")]
    pub(crate) files: Vec<PathBuf>,
    /// Measure with this backend and compare it; to be given twice, with the arguments of `nccl bench` after `--`
    #[arg(long, value_enum)]
    pub(crate) backend: Vec<Backend>,
    /// Number of measurements with each backend, in turn
    #[arg(long, default_value_t = 5, requires = "backend", value_parser = whole::<u32>(1..=1000))]
    pub(crate) rounds: u32,
    /// Fail if a ratio, the time of A divided by that of B, is below this
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pub(crate) threshold: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Arguments of `nccl bench`: an operation and its options
    #[arg(value_name = "ARGUMENTS", last = true, requires = "backend")]
    pub(crate) measurement: Vec<OsString>,
}

pub(super) fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio: &f64| ratio.is_finite() && *ratio > 0.0);
    ratio.ok_or_else(|| "expected a number above 0, such as 0.95".into())
}

/// One side of a comparison: the results of a measurement, one for each round, all of the same command.
#[derive(Debug)]
struct Side {
    /// The name in the output: a file, or a backend.
    name: String,
    rounds: Vec<Report>,
}

pub(crate) fn run(arguments: &CompareArguments) -> Result<ExitCode> {
    let (sides, failure) = match (&arguments.files[..], &arguments.backend[..]) {
        ([one, two], _) => ([read(one)?, read(two)?], None),
        (_, [one, two]) if !arguments.measurement.is_empty() => measure([*one, *two], arguments)?,
        (_, backends) => {
            let problem = match backends.len() {
                2 => "no operation to measure: expected the arguments of nccl bench after --".into(),
                number => format!("--backend is given {number} times: expected two to compare"),
            };
            refuse::<CompareArguments>("nccl bench compare", problem)
        }
    };
    let comparison = Comparison::new(&sides, arguments.threshold)?;
    let printed = output::print(&comparison, arguments.json);
    let failure = failure.map(|failure| format!("{failure:#}"));
    let problems: Vec<String> = comparison.problem().into_iter().chain(failure).collect();
    for problem in &problems {
        output::write_to_stderr(&format!("error: {problem}\n"));
    }
    Ok(exit_code(conclude(problems.is_empty(), [printed])?))
}

fn read(path: &Path) -> Result<Side> {
    let name = path.display().to_string();
    let text = file::read(path).with_context(|| format!("cannot read {name}"))?;
    // Other lines, such as warnings of MPI, may come before the table.
    let is_json = text.trim_ascii_start().starts_with(b"{");
    let report = if is_json { Report::from_json(&text) } else { nccl_tests::read(&text) };
    let report = report.with_context(|| name.clone())?;
    Ok(Side { name, rounds: vec![report] })
}

/// Measures in turn, so that other work of the machine slows both backends. Each round begins with the other backend than the
/// round before. A failure ends the rounds, but the complete ones remain.
fn measure(backends: [Backend; 2], arguments: &CompareArguments) -> Result<([Side; 2], Option<Error>)> {
    let name = |backend: Backend| {
        backend.to_possible_value().map_or_else(String::new, |value| value.get_name().into())
    };
    let mut sides = backends.map(|backend| Side { name: name(backend), rounds: vec![] });
    for round in 0..arguments.rounds {
        for side in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            match once(&sides[side].name, &arguments.measurement) {
                Ok(report) => sides[side].rounds.push(report),
                Err(failure) if round > 0 => {
                    sides.iter_mut().for_each(|side| side.rounds.truncate(round as usize));
                    return Ok((sides, Some(failure)));
                }
                Err(failure) => return Err(failure),
            }
        }
    }
    Ok((sides, None))
}

/// Measures with a backend, in a process of this program.
fn once(backend: &str, arguments: &[OsString]) -> Result<Report> {
    let mut command = program_that_ends_with_this(THIS_PROGRAM);
    command.arg("bench").args(arguments).args(["--backend", backend, "--json"]);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.context("cannot start this program again")?;
    if !output.status.success() {
        bail!("the measurement with {backend} ended: {}", output.status);
    }
    let report =
        Report::from_json(&output.stdout).with_context(|| format!("the measurement with {backend}"))?;
    let measured = &report.library.backend;
    ensure!(measured == backend, "{measured} was measured instead of {backend}");
    Ok(report)
}
