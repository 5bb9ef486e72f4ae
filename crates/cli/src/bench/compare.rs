//! `nccl bench compare`: compares two results, or two backends that it measures alternately.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Error, Result, bail, ensure};
use clap::{Args, ValueEnum};
use itertools::Itertools;
use serde::Serialize;
use serde_json::{Map, Value};

use super::arguments::refuse;
use super::benchmark::Benchmark;
use super::output::report::{Library, Measured, Rank, Report, Row};
use super::output::{conclude, exit_code};
use super::start::Backend;
use super::statistics::{Statistic, digits};
use crate::run::{THIS_PROGRAM, program_that_ends_with_this};
use crate::value_parser::whole;
use crate::{file, output};

#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/compare.txt").trim_end())]
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

/// One side of a comparison: the results of a repeated measurement, one for each round.
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
    let (name, text) = (path.display().to_string(), file::read(path)?);
    // Other lines, such as warnings of MPI, may come before the table.
    let is_json = text.trim_ascii_start().starts_with(b"{");
    let report = if is_json { Report::from_json(&text) } else { read_nccl_tests(&text) };
    let report = report.with_context(|| name.clone())?;
    Ok(Side { name, rounds: vec![report] })
}

/// Measures both backends in each round, so that other load on the machine slows both. The backends' order alternates. A failure
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

/// Measures one backend in a child process.
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

/// Returns the version of NCCL, such as 2.28.9 for `nccl-library=22809`.
fn version(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("nccl-library=")?;
    let code: u32 = rest.split(|character: char| !character.is_ascii_digit()).next()?.parse().ok()?;
    Some(format!("{}.{}.{}", code / 10_000, code / 100 % 100, code % 100))
}

/// Parses a line such as `#  Rank  0 Group  0 Pid  14309 on  host device  0 [0000:81:00] NVIDIA A100`.
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

/// Parses the parameters in a line of nccl-tests. The keys are the names that `nccl bench` uses in JSON.
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

/// Parses a row: size, count, data type, reduction (not for a hypercube), root, then two measurements. Each has a time, two
/// bandwidths, the number of mismatches and, with `-I`, four more columns.
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

const SCHEMA: u32 = 2;

/// The comparison of two sides. A ratio is the first side's time divided by the second side's, which equals the second bus
/// bandwidth divided by the first.
///
/// Of several rounds, each of which measures both sides, the one with the median ratio is printed. The quotient of the two median
/// times would ignore which times belong to the same round.
#[derive(Debug, Serialize)]
struct Comparison {
    schema: u32,
    program: String,
    operation: String,
    ranks: usize,
    sides: [Description; 2],
    differences: Vec<String>,
    statistic: Statistic,
    threshold: Option<f64>,
    rows: Vec<Ratio>,
    /// Rows that are missing, or have no time, on one side.
    unmatched: Vec<String>,
    /// The number of rows of the first side without a ratio.
    #[serde(skip)]
    without_ratio: usize,
    wrong: Vec<String>,
    geometric_mean: f64,
}

#[derive(Debug, Serialize)]
struct Description {
    name: String,
    version: String,
    backend: String,
    path: Option<String>,
    rounds: usize,
    interrupted: bool,
}

#[derive(Debug, Serialize)]
struct Ratio {
    #[serde(flatten)]
    key: Key,
    /// The sides' times in the round with the median ratio. If two ratios are in the middle, the lower one counts.
    times_us: [f64; 2],
    busbws: [f64; 2],
    ratio: f64,
    /// The bounds `low` and `high` of the ratio: over the rounds or, if there is only one, over its iterations.
    low: Option<f64>,
    high: Option<f64>,
    is_below: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
struct Key {
    bytes: u64,
    data_type: String,
    op: Option<String>,
    root: Option<usize>,
    in_place: bool,
    /// The number of earlier entries with the same values: each cycle of `--run_cycles` has one.
    #[serde(skip)]
    before: usize,
}

/// A measurement in a report: the out-of-place or the in-place half of a row.
struct Entry<'a> {
    key: Key,
    report: &'a Report,
    row: &'a Row,
    measured: &'a Measured,
}

impl Comparison {
    /// Compares two sides. Fails if they measured different operations or numbers of ranks, or have no timed row in common.
    fn new([one, two]: &[Side; 2], threshold: Option<f64>) -> Result<Self> {
        let (Some(a), Some(b)) = (one.rounds.first(), two.rounds.first()) else {
            bail!("no round was measured")
        };
        let [name, other] = [&one.name, &two.name];
        let [own, others] = [&a.operation, &b.operation];
        let problem = "only results of one operation can be compared";
        ensure!(own == others, "{name} measured {own}, {other} measured {others}: {problem}");
        let [ranks, others] = [a, b].map(|report| report.ranks.len());
        let problem = "only results of equally many ranks can be compared";
        ensure!(ranks == others, "{name} has {ranks} ranks, {other} has {others}: {problem}");
        let statistic = Statistic::of(one.rounds.iter().chain(&two.rounds));
        let rounds = [one, two].map(|side| side.rounds.iter().map(entries).collect::<Vec<_>>());
        let [own, others] = [&rounds[0][0], &rounds[1][0]];
        let ratio = |Entry { key, .. }: &Entry<'_>| {
            let ratio = Ratio::new(key, statistic, &rounds, threshold);
            ratio.ok_or_else(|| format!("{key}: no two times above 0"))
        };
        let common = own.iter().filter(|entry| find(others, &entry.key).is_some());
        let (rows, without_time): (Vec<_>, Vec<_>) = common.map(ratio).partition_result();
        if let Some(row) = without_time.first().filter(|_| rows.is_empty()) {
            bail!("{name} and {other} cannot be compared; {row}");
        }
        ensure!(!rows.is_empty(), "{name} and {other} have no row in common");
        let alone = |entries: &[Entry<'_>], others, name| -> Vec<String> {
            let lacking = entries.iter().filter(|entry| find(others, &entry.key).is_none());
            lacking.map(|entry| format!("{}, in {name} alone", entry.key)).collect()
        };
        let mut unmatched = alone(own, others, name);
        let without_ratio = unmatched.len() + without_time.len();
        unmatched.extend(alone(others, own, other));
        unmatched.extend(without_time);
        let mut wrong = vec![];
        for (rounds, side) in rounds.iter().zip([one, two]) {
            for Entry { key, .. } in &rounds[0] {
                let found = rounds.iter().filter_map(|entries| find(entries, key));
                let number: u64 = found.filter_map(|entry| entry.measured.wrong).sum();
                wrong.extend((number > 0).then(|| format!("{key}, in {}: {number} elements", side.name)));
            }
        }
        let logarithms: f64 = rows.iter().map(|row| row.ratio.ln()).sum();
        Ok(Self {
            schema: SCHEMA,
            program: format!("nccl {}", env!("CARGO_PKG_VERSION")),
            operation: a.operation.clone(),
            ranks,
            differences: differences(a, b),
            statistic,
            threshold,
            geometric_mean: (logarithms / rows.len() as f64).exp(),
            rows,
            unmatched,
            without_ratio,
            wrong,
            sides: [(one, a), (two, b)].map(|(side, report)| Description {
                name: side.name.clone(),
                version: report.library.version.clone(),
                backend: report.library.backend.clone(),
                path: report.library.path.as_ref().map(|path| path.display().to_string()),
                rounds: side.rounds.len(),
                interrupted: side.rounds.iter().any(|round| round.interrupted),
            }),
        })
    }

    fn problem(&self) -> Option<String> {
        if !self.wrong.is_empty() {
            let rows = self.wrong.len();
            return Some(format!("mismatches in {rows} of the rows: their times are meaningless"));
        }
        let threshold = self.threshold?;
        let below = self.rows.iter().filter(|row| row.is_below).count();
        if below > 0 {
            return Some(format!("{below} of {} ratios are below {threshold}", self.rows.len()));
        }
        if self.without_ratio > 0 {
            let rows = self.without_ratio;
            return Some(format!("{rows} of the rows have no ratio, which could be below {threshold}"));
        }
        let side = self.sides.iter().find(|side| side.interrupted)?;
        Some(format!("{} is incomplete: the measurement was interrupted", side.name))
    }
}

fn entries(report: &Report) -> Vec<Entry<'_>> {
    let mut entries: Vec<Entry<'_>> = vec![];
    let mut numbers = HashMap::new();
    for row in &report.rows {
        for (measured, in_place) in [(&row.out_of_place, false), (&row.in_place, true)] {
            let Some(measured) = measured else { continue };
            let (data_type, op) = (row.data_type.clone(), row.op.clone());
            let mut key = Key { bytes: row.bytes, data_type, op, root: row.root, in_place, before: 0 };
            let number = numbers.entry(key.clone()).or_insert(0);
            key.before = *number;
            *number += 1;
            entries.push(Entry { key, report, row, measured });
        }
    }
    entries
}

fn find<'e, 'a>(entries: &'e [Entry<'a>], key: &Key) -> Option<&'e Entry<'a>> {
    entries.iter().find(|entry| entry.key == *key)
}

/// Returns the differences between the conditions of two measurements, except the version and backend of the library.
fn differences(a: &Report, b: &Report) -> Vec<String> {
    let parameters = a.parameters.iter().filter_map(|(name, value)| {
        let other = b.parameters.get(name)?;
        (value != other).then(|| format!("{name}: {value}, {other}"))
    });
    let mut differences: Vec<String> = parameters.collect();
    let devices = |report: &Report| {
        report.ranks.iter().map(|rank| rank.device.as_deref().unwrap_or("host memory")).dedup().join(" ")
    };
    for (name, one, two) in [
        ("launch", a.launch.clone(), b.launch.clone()),
        ("host", a.host.clone(), b.host.clone()),
        ("devices", devices(a), devices(b)),
        ("interrupted", a.interrupted.to_string(), b.interrupted.to_string()),
    ] {
        // The output of nccl-tests lacks some parameters.
        if one != two && !one.is_empty() && !two.is_empty() {
            differences.push(format!("{name}: {one}, {two}"));
        }
    }
    if let (Some(one), Some(two)) = (&a.library.file, &b.library.file)
        && a.library.version == b.library.version
        && one != two
    {
        differences.push(format!("file of NCCL {}: {one}; {two}", a.library.version));
    }
    differences
}

impl Ratio {
    fn new(
        key: &Key,
        statistic: Statistic,
        [one, two]: &[Vec<Vec<Entry<'_>>>; 2],
        threshold: Option<f64>,
    ) -> Option<Self> {
        let of_rounds = one.iter().zip(two);
        let mut pairs: Vec<[&Entry<'_>; 2]> =
            of_rounds.filter_map(|(one, two)| Some([find(one, key)?, find(two, key)?])).collect();
        let times = |pair: &[&Entry<'_>; 2]| pair.map(|entry| statistic.time_us(entry.measured));
        let ratio = |pair: &[&Entry<'_>; 2]| {
            let [a, b] = times(pair);
            a / b
        };
        pairs.retain(|pair| ratio(pair).is_finite() && ratio(pair) > 0.0);
        pairs.sort_by(|one, two| ratio(one).total_cmp(&ratio(two)));
        let middle = pairs.get(pairs.len().checked_sub(1)? / 2)?;
        let [a, b] = middle;
        let spread = match &pairs[..] {
            [low, .., high] => Some((ratio(low), ratio(high))),
            _ => statistic.spread(a.measured, b.measured),
        };
        let (low, high) = spread.unzip();
        let times_us = times(middle);
        let bandwidth = |one: &Entry<'_>, time_us| one.report.bandwidth(one.row, one.measured, time_us);
        let busbws = [bandwidth(a, times_us[0]), bandwidth(b, times_us[1])];
        let ratio = ratio(middle);
        let is_below = threshold.is_some_and(|threshold| ratio < threshold);
        Some(Self { key: key.clone(), times_us, busbws, ratio, low, high, is_below })
    }
}

impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { operation, ranks, sides: [one, two], .. } = self;
        writeln!(f, "# {} with {ranks} ranks", output::in_line(operation))?;
        for (letter, side) in [("A", one), ("B", two)] {
            let Description { name, version, backend, path, rounds, interrupted } = side;
            let path = path.as_ref().map_or_else(String::new, |path| format!(", {path}"));
            let rounds = if *rounds == 1 { String::new() } else { format!(", {rounds} rounds") };
            let interrupted = if *interrupted { ", interrupted" } else { "" };
            let side = format!("{name}: NCCL {version} ({backend}{path}){rounds}{interrupted}");
            writeln!(f, "# {letter}: {}", output::in_line(&side))?;
        }
        let notes =
            [("differs", &self.differences), ("not compared", &self.unmatched), ("wrong", &self.wrong)];
        for (title, notes) in notes {
            for note in notes {
                writeln!(f, "# {title}: {}", output::in_line(note))?;
            }
        }
        let (round, spread) = if one.rounds > 1 {
            (", in the round with the median ratio", "lowest and highest of the rounds")
        } else {
            ("", "fastest iteration of A / median of B, and the other way round")
        };
        writeln!(f, "# A, B: {}{round}", self.statistic)?;
        writeln!(f, "# ratio: A (us) / B (us), which is B (GB/s) / A (GB/s); above 1, B is faster")?;
        writeln!(f, "# spread of the ratio: {spread}")?;
        let titles = [
            "size (B)", "type", "redop", "root", "place", "A (us)", "B (us)", "A (GB/s)", "B (GB/s)",
            "ratio", "spread",
        ];
        writeln!(f, "{}", line(titles.map(String::from)))?;
        for Ratio { key, times_us, busbws, ratio, low, high, is_below } in &self.rows {
            let [a, b] = times_us.map(|time| format!("{time:.3}"));
            let [bandwidth, other] = busbws.map(|bandwidth| digits(bandwidth, 4, 7));
            let fields = [
                key.bytes.to_string(),
                output::in_line(&key.data_type).into_owned(),
                output::in_line(key.op.as_deref().unwrap_or("none")).into_owned(),
                key.root.map_or_else(|| "-1".into(), |root| root.to_string()),
                if key.in_place { "in" } else { "out" }.into(),
                a,
                b,
                bandwidth,
                other,
                format!("{ratio:.3}"),
                low.zip(*high).map_or_else(|| "-".into(), |(low, high)| format!("{low:.3}..{high:.3}")),
            ];
            writeln!(f, "{}{}", line(fields), if *is_below { "  below the threshold" } else { "" })?;
        }
        writeln!(f, "# geometric mean of the ratios: {:.3}", self.geometric_mean)
    }
}

fn line(fields: [String; 11]) -> String {
    let widths = [12, 8, 6, 4, 5, 10, 10, 9, 9, 6, 13];
    fields.iter().zip(widths).map(|(field, width)| format!("{field:>width$}")).join("  ")
}

impl Display for Key {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { bytes, data_type, op, root, in_place, before } = self;
        write!(f, "{bytes} bytes of {data_type}")?;
        op.iter().try_for_each(|op| write!(f, ", {op}"))?;
        root.iter().try_for_each(|root| write!(f, ", root {root}"))?;
        if *in_place {
            write!(f, ", in place")?;
        }
        if *before > 0 { write!(f, ", cycle {}", before + 1) } else { Ok(()) }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/comparison.rs"]
mod tests;
