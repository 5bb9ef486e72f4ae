//! The comparison of two sides, row by row.

use std::fmt::{self, Display, Formatter};

use anyhow::{Result, ensure};
use serde::Serialize;

use super::side::Side;
use crate::bench::report::{Iterations, Measured, Parameters, Rank, Report, Row};

/// The number of the schema of the JSON.
const SCHEMA: u32 = 1;

/// Two sides, compared. A ratio is that of speeds, of the second side to the first: the time of the first divided by that
/// of the second, which is also the ratio of the bus bandwidths.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    schema: u32,
    program: String,
    operation: String,
    ranks: usize,
    sides: [Description; 2],
    /// The parameters in which the sides differ.
    differences: Vec<String>,
    threshold: Option<f64>,
    pub(crate) rows: Vec<Ratio>,
    /// The rows that one side lacks.
    unmatched: Vec<String>,
    geometric_mean: f64,
}

/// A side, as the comparison names it.
#[derive(Debug, Serialize)]
struct Description {
    name: String,
    version: String,
    backend: String,
    path: Option<String>,
    rounds: usize,
}

/// The ratio of one row.
#[derive(Debug, Serialize)]
pub(crate) struct Ratio {
    #[serde(flatten)]
    key: Key,
    /// The times of the sides: the median of single iterations if both have them, otherwise the mean; of several rounds
    /// the median.
    times_us: [f64; 2],
    busbws: [f64; 2],
    ratio: f64,
    /// The spread of the ratio: that of the rounds, or of the iterations if there is one round.
    low: Option<f64>,
    high: Option<f64>,
    is_below: bool,
}

/// The row of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Key {
    bytes: u64,
    data_type: String,
    op: Option<String>,
    root: Option<usize>,
    in_place: bool,
}

impl Comparison {
    /// Compares two sides. Fails if they measured another operation or other numbers of ranks, or have no row in common.
    pub(crate) fn new(one: Side, two: Side, threshold: Option<f64>) -> Result<Self> {
        let (a, b) = (&one.first, &two.first);
        let [name, other] = [&one.name, &two.name];
        ensure!(
            a.operation == b.operation,
            "{name} is of {}, and {other} of {}: only results of one operation can be compared",
            a.operation,
            b.operation
        );
        ensure!(
            a.ranks.len() == b.ranks.len(),
            "{name} is of {} ranks, and {other} of {}: only results of as many ranks can be compared",
            a.ranks.len(),
            b.ranks.len()
        );
        let mut rows: Vec<Ratio> = vec![];
        let (keys, others) = (keys(a), keys(b));
        for key in keys.iter().filter(|key| others.contains(key)) {
            rows.extend(Ratio::new(key, &one, &two, threshold));
        }
        ensure!(!rows.is_empty(), "{name} and {other} have no row in common");
        let lacks = |keys: &[Key], others: &[Key], name: &str| -> Vec<String> {
            keys.iter()
                .filter(|key| !others.contains(key))
                .map(|key| format!("{key}, in {name} alone"))
                .collect()
        };
        let mut unmatched = lacks(&keys, &others, name);
        unmatched.extend(lacks(&others, &keys, other));
        let logarithms: f64 = rows.iter().map(|row| row.ratio.ln()).sum();
        Ok(Self {
            schema: SCHEMA,
            program: format!("nccl {}", env!("CARGO_PKG_VERSION")),
            operation: a.operation.clone(),
            ranks: a.ranks.len(),
            differences: differences(a, b),
            threshold,
            geometric_mean: (logarithms / rows.len() as f64).exp(),
            rows,
            unmatched,
            sides: [describe(&one), describe(&two)],
        })
    }

    /// Returns the number of ratios below the threshold.
    pub(crate) fn below(&self) -> usize {
        self.rows.iter().filter(|row| row.is_below).count()
    }

    pub(crate) fn to_json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

fn describe(side: &Side) -> Description {
    let library = &side.first.library;
    Description {
        name: side.name.clone(),
        version: library.version.clone(),
        backend: library.backend.clone(),
        path: library.path.as_ref().map(|path| path.display().to_string()),
        rounds: side.rounds().count(),
    }
}

fn keys(report: &Report) -> Vec<Key> {
    let key = |row: &Row, in_place| Key {
        bytes: row.bytes,
        data_type: row.data_type.clone(),
        op: row.op.clone(),
        root: row.root,
        in_place,
    };
    let both = |row| [false, true].map(|in_place| measured(row, in_place).map(|_| key(row, in_place)));
    report.rows.iter().flat_map(both).flatten().collect()
}

fn measured(row: &Row, in_place: bool) -> Option<&Measured> {
    if in_place { row.in_place.as_ref() } else { row.out_of_place.as_ref() }
}

/// Returns what the sides did differently apart from the library, and for how long.
fn differences(a: &Report, b: &Report) -> Vec<String> {
    let of_parameters = |parameters: &Parameters| match serde_json::to_value(parameters) {
        Ok(serde_json::Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (one, two) = (of_parameters(&a.parameters), of_parameters(&b.parameters));
    let mut differences: Vec<String> = one
        .iter()
        .filter_map(|(name, value)| {
            let other = two.get(name)?;
            (value != other).then(|| format!("{name}: {value}, {other}"))
        })
        .collect();
    let mut compare = |name: &str, one: String, two: String| {
        if one != two {
            differences.push(format!("{name}: {one}, {two}"));
        }
    };
    let devices = |report: &Report| {
        let device = |rank: &Rank| rank.device.clone().unwrap_or_else(|| "host memory".into());
        let mut devices: Vec<String> = report.ranks.iter().map(device).collect();
        devices.dedup();
        devices.join(" ")
    };
    compare("launch", a.launch.clone(), b.launch.clone());
    compare("host", a.host.clone(), b.host.clone());
    compare("devices", devices(a), devices(b));
    compare("interrupted", a.interrupted.to_string(), b.interrupted.to_string());
    differences
}

impl Ratio {
    /// Returns the ratio of a row; `None` if a side has no time for it.
    fn new(key: &Key, one: &Side, two: &Side, threshold: Option<f64>) -> Option<Self> {
        let (ones, twos) = (found(key, one), found(key, two));
        let has_iterations = ones.iter().chain(&twos).all(|measured| median_iteration(measured).is_some());
        let time = |measured: &Measured| {
            median_iteration(measured).filter(|_| has_iterations).unwrap_or(measured.time_us)
        };
        let bandwidth = |measured: &Measured| measured.busbw * measured.time_us / time(measured);
        let times_us = [&ones, &twos].map(|rounds| median(rounds.iter().map(|round| time(round)).collect()));
        let busbws =
            [&ones, &twos].map(|rounds| median(rounds.iter().map(|round| bandwidth(round)).collect()));
        let ([Some(a), Some(b)], [Some(bandwidth), Some(other)]) = (times_us, busbws) else { return None };
        let by_round = ones.iter().zip(&twos).map(|(one, two)| time(one) / time(two));
        let mut ratios: Vec<f64> = by_round.filter(|ratio| ratio.is_finite()).collect();
        ratios.sort_by(f64::total_cmp);
        let spread = match ratios[..] {
            [] => return None,
            [_] => spread_of_iterations(ones.first()?, twos.first()?),
            [low, .., high] => Some((low, high)),
        };
        let ratio = median(ratios)?;
        let is_below = threshold.is_some_and(|threshold| ratio < threshold);
        let (low, high) = spread.unzip();
        let (times_us, busbws) = ([a, b], [bandwidth, other]);
        Some(Self { key: key.clone(), times_us, busbws, ratio, low, high, is_below })
    }
}

/// Returns the measurement of a row in each round of a side.
fn found<'a>(key: &Key, side: &'a Side) -> Vec<&'a Measured> {
    let in_round = |report: &'a Report| {
        let mut rows = report.rows.iter().filter(|row| {
            (row.bytes, &row.data_type, &row.op, row.root) == (key.bytes, &key.data_type, &key.op, key.root)
        });
        rows.find_map(|row| measured(row, key.in_place))
    };
    side.rounds().filter_map(in_round).collect()
}

/// Returns the ratio of one side's fastest iteration to the other's median, both ways round: the noise of a machine makes
/// iterations longer and never shorter. `None` without times of iterations.
fn spread_of_iterations(one: &Measured, two: &Measured) -> Option<(f64, f64)> {
    let fastest = |measured| slowest_rank(measured, |rank| rank.min_us);
    Some((fastest(one)? / median_iteration(two)?, median_iteration(one)? / fastest(two)?))
}

/// Returns the median time of single iterations, which the noise of a machine changes less than the mean.
fn median_iteration(measured: &Measured) -> Option<f64> {
    slowest_rank(measured, |rank| rank.median_us)
}

/// Returns the longest time of the ranks: an operation has ended when the last one has its result.
fn slowest_rank(measured: &Measured, value: fn(&Iterations) -> f64) -> Option<f64> {
    measured.iterations.iter().map(value).reduce(f64::max).filter(|time| *time > 0.0)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let above = *values.get(middle)?;
    Some(if values.len().is_multiple_of(2) { (values.get(middle - 1)? + above) / 2.0 } else { above })
}

impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { operation, ranks, sides: [one, two], .. } = self;
        writeln!(f, "# {operation} with {ranks} ranks")?;
        for (letter, side) in [("A", one), ("B", two)] {
            let Description { name, version, backend, path, rounds } = side;
            let path = path.as_ref().map_or_else(String::new, |path| format!(", {path}"));
            let rounds = if *rounds == 1 { String::new() } else { format!(", {rounds} rounds") };
            writeln!(f, "# {letter}: {name}: NCCL {version} ({backend}{path}){rounds}")?;
        }
        for difference in &self.differences {
            writeln!(f, "# differs: {difference}")?;
        }
        for row in &self.unmatched {
            writeln!(f, "# not compared: {row}")?;
        }
        let spread = if one.rounds > 1 {
            "lowest and highest of the rounds"
        } else {
            "fastest iteration of A / median of B, and the other way round"
        };
        writeln!(
            f,
            "# times: medians of the iterations; ratio: A (us) / B (us), as that of the bus bandwidths B / A"
        )?;
        writeln!(f, "# spread of the ratio: {spread}")?;
        writeln!(
            f,
            "{:>12}  {:>8}  {:>6}  {:>4}  {:>5}  {:>10}  {:>10}  {:>8}  {:>8}  {:>6}  {:>13}",
            "size (B)",
            "type",
            "redop",
            "root",
            "place",
            "A (us)",
            "B (us)",
            "A (GB/s)",
            "B (GB/s)",
            "ratio",
            "spread"
        )?;
        for row in &self.rows {
            let Key { bytes, data_type, op, root, in_place } = &row.key;
            let op = op.as_deref().unwrap_or("none");
            let root = root.map_or_else(|| "-1".into(), |root| root.to_string());
            let place = if *in_place { "in" } else { "out" };
            let spread = match (row.low, row.high) {
                (Some(low), Some(high)) => format!("{low:.3}..{high:.3}"),
                _ => "-".into(),
            };
            let [a, b] = row.times_us;
            let [bandwidth, other] = row.busbws;
            let below = if row.is_below { "  below the threshold" } else { "" };
            writeln!(
                f,
                "{bytes:>12}  {data_type:>8}  {op:>6}  {root:>4}  {place:>5}  {a:>10.2}  {b:>10.2}  {bandwidth:>8.3}  \
                 {other:>8.3}  {:>6.3}  {spread:>13}{below}",
                row.ratio
            )?;
        }
        writeln!(f, "# geometric mean of the ratios: {:.3}", self.geometric_mean)
    }
}

impl Display for Key {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { bytes, data_type, op, root, in_place } = self;
        write!(f, "{bytes} bytes of {data_type}")?;
        if let Some(op) = op {
            write!(f, ", {op}")?;
        }
        if let Some(root) = root {
            write!(f, ", root {root}")?;
        }
        if *in_place { write!(f, ", in place") } else { Ok(()) }
    }
}
