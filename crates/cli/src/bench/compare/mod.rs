//! `nccl bench compare`: two results, size by size, or two backends that are measured in turn.

mod comparison;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Error, Result, bail, ensure};
use clap::{Args, ValueEnum};
use comparison::Comparison;
use serde_json::{Map, Value};

use super::arguments::refuse;
use super::benchmark::Benchmark;
use super::output::report::{Library, Measured, Rank, Report, Row};
use super::output::{conclude, exit_code};
use super::start::Backend;
use crate::run::{THIS_PROGRAM, program_that_ends_with_this};
use crate::value_parser::whole;
use crate::{file, output};

#[derive(Debug, Args)]
#[command(after_help = include_str!("../../help/compare.txt").trim_end())]
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
    let report = if is_json { Report::from_json(&text) } else { read_nccl_tests(&text) };
    let report = report.with_context(|| name.clone())?;
    Ok(Side { name, rounds: vec![report] })
}

/// Measures in turn, so that other load on the machine slows both backends. The first backend alternates between rounds. A failure
/// ends the measurement, but complete rounds are kept.
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

const VERDICT: &str = "# Out of bounds values : ";

/// Reads the output of a program of nccl-tests, or the table of `nccl bench`, which has the same format.
fn read_nccl_tests(text: &[u8]) -> Result<Report> {
    let text = String::from_utf8_lossy(text);
    let after = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
    let name = after("# Collective test starting: ")
        .context("no line \"# Collective test starting\": expected the output of nccl-tests or nccl bench")?;
    let name = name.trim().split("_perf").next().unwrap_or_default();
    let benchmark = Benchmark::from_str(name, false);
    let benchmark = benchmark.map_err(|_| anyhow::anyhow!("{name} is not an operation of nccl bench"))?;
    let ranks: Vec<Rank> = text.lines().filter_map(rank).collect();
    ensure!(!ranks.is_empty(), "no line \"#  Rank\"");
    let rows: Vec<Row> = text.lines().filter_map(|line| row(line, benchmark, ranks.len())).collect();
    ensure!(!rows.is_empty(), "no row of a measurement");
    let found = rows.iter().flat_map(Row::measured).any(|measured| measured.wrong > Some(0));
    let has_failed = after(VERDICT).is_some_and(|end| end.contains("FAILED"));
    ensure!(found || !has_failed, "its last lines say FAILED, but no row has mismatches");
    Ok(Report {
        program: after("# ").unwrap_or_default().into(),
        library: Library {
            version: version(&text).unwrap_or_else(|| "of an unknown version".into()),
            backend: "nccl-tests".into(),
            ..Library::default()
        },
        host: ranks[0].host.clone(),
        operation: benchmark.to_string(),
        ranks,
        parameters: after("# nThread ").map(parameters).unwrap_or_default(),
        rows,
        // A program that was killed prints no verdict.
        interrupted: after("# Interrupted").is_some() || after(VERDICT).is_none(),
        ..Report::default()
    })
}

/// Returns the version of NCCL: `nccl-library=22809` is 2.28.9.
fn version(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("nccl-library=")?;
    let code: u32 = rest.split(|character: char| !character.is_ascii_digit()).next()?.parse().ok()?;
    Some(format!("{}.{}.{}", code / 10_000, code / 100 % 100, code % 100))
}

/// Returns the rank of a line `#  Rank  0 Group  0 Pid  14309 on  host device  0 [0000:81:00] NVIDIA A100`.
fn rank(line: &str) -> Option<Rank> {
    let (numbers, place) = line.strip_prefix("#  Rank ")?.split_once(" on ")?;
    let (host, device) = place.trim_start().split_once(" device ")?;
    let mut numbers = numbers.split_whitespace();
    let (_, device) = device.trim_start().split_once(' ')?;
    Some(Rank {
        rank: numbers.next()?.parse().ok()?,
        pid: numbers.next_back()?.parse().ok()?,
        host: host.trim_end().into(),
        device: Some(device.into()).filter(|device| device != "[host memory]"),
    })
}

/// Returns the parameters that the line names, as `nccl bench` names them.
fn parameters(line: &str) -> Map<String, Value> {
    let names = [
        (" minBytes ", "min_bytes"),
        (" maxBytes ", "max_bytes"),
        (" warmup iters: ", "warmup_iters"),
        (" agg iters: ", "agg_iters"),
        (" validation: ", "check"),
        (" graph: ", "graph"),
        (" unalign: ", "unalign"),
    ];
    let number = |text: &str| text.split_whitespace().next()?.parse::<u64>().ok();
    let named =
        names.into_iter().filter_map(|(theirs, ours)| Some((ours, number(line.split_once(theirs)?.1)?)));
    // After the warm-up iterations, whose name ends with the same word.
    let iters = line.split(" iters: ").nth(2).and_then(number).map(|number| ("iters", number));
    named.chain(iters).map(|(name, number)| (name.into(), number.into())).collect()
}

/// Parses a line: size, count, data type, reduction, root, then twice time, bandwidths and mismatches, followed by four more
/// columns with `-I`. A hypercube has no reduction.
fn row(line: &str, benchmark: Benchmark, ranks: usize) -> Option<Row> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [bytes, count] = [fields.first()?.parse().ok()?, fields.get(1)?.parse().ok()?];
    let names = if benchmark == Benchmark::HyperCube { 4 } else { 5 };
    let in_place = if fields.len() >= names + 16 { names + 8 } else { names + 4 };
    let operation = benchmark.operation();
    let measured = |first: usize| {
        let time_us: f64 = fields.get(first)?.parse().ok()?;
        let algbw = bytes as f64 * benchmark.counted_share(ranks) / time_us / 1e3;
        // Counts of a million and more are in exponential notation.
        let wrong = fields.get(first + 3)?.parse().ok().map(|wrong: f64| wrong as u64);
        let busbw = algbw * benchmark.bus_factor(ranks);
        Some(Measured { time_us, algbw, busbw, wrong, iterations: vec![] })
    };
    Some(Row {
        bytes,
        count,
        data_type: (*fields.get(2)?).into(),
        op: operation.reduces.then(|| fields.get(3).map(|op| (*op).into())).flatten(),
        root: operation.has_root().then(|| fields.get(4)?.parse().ok()).flatten(),
        out_of_place: measured(names),
        in_place: measured(in_place),
    })
}
