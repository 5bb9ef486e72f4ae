//! The comparison of two sides, row by row.

use std::fmt::{self, Display, Formatter};

use anyhow::{Result, bail, ensure};
use serde::Serialize;

use super::side::Side;
use crate::bench::output::report::{Measured, Parameters, Rank, Report, Row};
use crate::bench::output::statistic::Statistic;
use crate::escapes;

/// The number of the schema of the JSON.
const SCHEMA: u32 = 2;

/// Two sides, compared. A ratio is that of speeds, of the second side to the first: the time of the first divided by that
/// of the second, which is also the ratio of the bus bandwidths.
///
/// A round pairs the sides, so that what slows the machine for longer slows both. Of several rounds, the one with the median
/// ratio stands for all, with its times: a quotient of the sides' own medians would lose the pairs, and the median of the
/// ratios beside the medians of the times would be the quotient of nothing that is printed.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    schema: u32,
    program: String,
    operation: String,
    ranks: usize,
    sides: [Description; 2],
    /// The parameters in which the sides differ.
    differences: Vec<String>,
    statistic: Statistic,
    threshold: Option<f64>,
    pub(crate) rows: Vec<Ratio>,
    /// The rows that one side lacks, or has no time of.
    unmatched: Vec<String>,
    /// The number of those that both sides have.
    #[serde(skip)]
    pub(crate) without_ratio: usize,
    /// The rows with wrong elements: their times are of something else.
    pub(crate) wrong: Vec<String>,
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
    /// The times of the sides: the statistic, in the round with the median ratio; of two in the middle, the lower.
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
    /// The number of such rows before it: each cycle has one.
    #[serde(skip)]
    before: usize,
}

impl Comparison {
    /// Compares two sides. Fails if they measured another operation or other numbers of ranks, or have no times of one row.
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
        let statistic = Statistic::of(one.rounds().chain(two.rounds()));
        let (mut rows, mut without_time) = (vec![], vec![]);
        let (keys, others) = (keys(a), keys(b));
        for key in keys.iter().filter(|key| others.contains(key)) {
            match Ratio::new(key, statistic, [&one, &two], threshold) {
                Some(ratio) => rows.push(ratio),
                None => without_time.push(format!("{key}: no two times above 0")),
            }
        }
        if let Some(row) = without_time.first().filter(|_| rows.is_empty()) {
            bail!("{name} and {other} cannot be compared; {row}");
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
        let without_ratio = without_time.len();
        unmatched.extend(without_time);
        let wrong = wrong(&one, &keys).chain(wrong(&two, &others)).collect();
        let logarithms: f64 = rows.iter().map(|row| row.ratio.ln()).sum();
        Ok(Self {
            schema: SCHEMA,
            program: format!("nccl {}", env!("CARGO_PKG_VERSION")),
            operation: a.operation.clone(),
            ranks: a.ranks.len(),
            differences: differences(a, b),
            statistic,
            threshold,
            geometric_mean: (logarithms / rows.len() as f64).exp(),
            rows,
            unmatched,
            without_ratio,
            wrong,
            sides: [describe(&one), describe(&two)],
        })
    }

    /// Returns the number of ratios below the threshold.
    pub(crate) fn below(&self) -> usize {
        self.rows.iter().filter(|row| row.is_below).count()
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
    let mut keys: Vec<Key> = vec![];
    for row in &report.rows {
        for in_place in [false, true].into_iter().filter(|in_place| measured(row, *in_place).is_some()) {
            let before = keys.iter().filter(|key| key.is_of(row) && key.in_place == in_place).count();
            let (data_type, op) = (row.data_type.clone(), row.op.clone());
            keys.push(Key { bytes: row.bytes, data_type, op, root: row.root, in_place, before });
        }
    }
    keys
}

/// Returns the rows of a side that have wrong elements.
fn wrong<'a>(side: &'a Side, keys: &'a [Key]) -> impl Iterator<Item = String> + use<'a> {
    keys.iter().filter_map(|key| {
        let wrong: u64 = found(key, side).iter().filter_map(|found| found.measured.wrong).sum();
        (wrong > 0).then(|| format!("{key}, in {}: {wrong} elements", side.name))
    })
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
    fn new(key: &Key, statistic: Statistic, [one, two]: [&Side; 2], threshold: Option<f64>) -> Option<Self> {
        let mut pairs: Vec<_> = found(key, one).into_iter().zip(found(key, two)).collect();
        let times = |(one, two): &(Found, Found)| [one, two].map(|found| statistic.time_us(found.measured));
        let ratio = |pair: &(Found, Found)| {
            let [a, b] = times(pair);
            a / b
        };
        pairs.retain(|pair| ratio(pair).is_finite() && ratio(pair) > 0.0);
        pairs.sort_by(|one, two| ratio(one).total_cmp(&ratio(two)));
        let middle = pairs.get(pairs.len().checked_sub(1)? / 2)?;
        let spread = match &pairs[..] {
            [low, .., high] => Some((ratio(low), ratio(high))),
            _ => statistic.spread(middle.0.measured, middle.1.measured),
        };
        let (low, high) = spread.unzip();
        let times_us = times(middle);
        let busbws = [middle.0.bandwidth(times_us[0]), middle.1.bandwidth(times_us[1])];
        let ratio = ratio(middle);
        let is_below = threshold.is_some_and(|threshold| ratio < threshold);
        Some(Self { key: key.clone(), times_us, busbws, ratio, low, high, is_below })
    }
}

/// The measurement of a row in a round.
struct Found<'a> {
    report: &'a Report,
    row: &'a Row,
    measured: &'a Measured,
}

impl Found<'_> {
    fn bandwidth(&self, time_us: f64) -> f64 {
        self.report.bandwidth(self.row, self.measured, time_us)
    }
}

/// Returns the measurement of a row in each round of a side.
fn found<'a>(key: &Key, side: &'a Side) -> Vec<Found<'a>> {
    let in_round = |report: &'a Report| {
        let rows = report.rows.iter().filter(|row| key.is_of(row));
        rows.filter_map(|row| Some(Found { report, row, measured: measured(row, key.in_place)? }))
            .nth(key.before)
    };
    side.rounds().filter_map(in_round).collect()
}

impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { operation, ranks, sides: [one, two], .. } = self;
        writeln!(f, "# {} with {ranks} ranks", escapes::in_line(operation))?;
        for (letter, side) in [("A", one), ("B", two)] {
            let Description { name, version, backend, path, rounds } = side;
            let path = path.as_ref().map_or_else(String::new, |path| format!(", {path}"));
            let rounds = if *rounds == 1 { String::new() } else { format!(", {rounds} rounds") };
            let side = format!("{name}: NCCL {version} ({backend}{path}){rounds}");
            writeln!(f, "# {letter}: {}", escapes::in_line(&side))?;
        }
        for difference in &self.differences {
            writeln!(f, "# differs: {}", escapes::in_line(difference))?;
        }
        for row in &self.unmatched {
            writeln!(f, "# not compared: {}", escapes::in_line(row))?;
        }
        for row in &self.wrong {
            writeln!(f, "# wrong: {}", escapes::in_line(row))?;
        }
        let (round, spread) = if one.rounds > 1 {
            (", in the round with the median ratio", "lowest and highest of the rounds")
        } else {
            ("", "fastest iteration of A / median of B, and the other way round")
        };
        writeln!(f, "# A, B: {}{round}", self.statistic)?;
        writeln!(f, "# ratio: A (us) / B (us), which is B (GB/s) / A (GB/s); above 1, B is faster")?;
        writeln!(f, "# spread of the ratio: {spread}")?;
        writeln!(
            f,
            "{:>12}  {:>8}  {:>6}  {:>4}  {:>5}  {:>10}  {:>10}  {:>9}  {:>9}  {:>6}  {:>13}",
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
            let Key { bytes, data_type, op, root, in_place, .. } = &row.key;
            let (data_type, op) =
                (escapes::in_line(data_type), escapes::in_line(op.as_deref().unwrap_or("none")));
            let root = root.map_or_else(|| "-1".into(), |root| root.to_string());
            let place = if *in_place { "in" } else { "out" };
            let spread = match (row.low, row.high) {
                (Some(low), Some(high)) => format!("{low:.3}..{high:.3}"),
                _ => "-".into(),
            };
            let [a, b] = row.times_us;
            let [bandwidth, other] = row.busbws.map(four_digits);
            let below = if row.is_below { "  below the threshold" } else { "" };
            writeln!(
                f,
                "{bytes:>12}  {data_type:>8}  {op:>6}  {root:>4}  {place:>5}  {a:>10.3}  {b:>10.3}  {bandwidth:>9}  \
                 {other:>9}  {:>6.3}  {spread:>13}{below}",
                row.ratio
            )?;
        }
        writeln!(f, "# geometric mean of the ratios: {:.3}", self.geometric_mean)
    }
}

/// Shows a bandwidth with the digits that its quotient needs, seven decimals at most.
fn four_digits(bandwidth: f64) -> String {
    let decimals = (3.0 - bandwidth.log10().floor()).clamp(0.0, 7.0);
    format!("{bandwidth:.*}", decimals as usize)
}

impl Key {
    /// Returns `true` for the rows of all cycles.
    fn is_of(&self, row: &Row) -> bool {
        let Self { bytes, data_type, op, root, .. } = self;
        (*bytes, data_type, op, *root) == (row.bytes, &row.data_type, &row.op, row.root)
    }
}

impl Display for Key {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { bytes, data_type, op, root, in_place, before } = self;
        write!(f, "{bytes} bytes of {data_type}")?;
        if let Some(op) = op {
            write!(f, ", {op}")?;
        }
        if let Some(root) = root {
            write!(f, ", root {root}")?;
        }
        if *in_place {
            write!(f, ", in place")?;
        }
        if *before > 0 { write!(f, ", cycle {}", before + 1) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use libnccl_test_support::random_inputs::Random;

    use super::{Comparison, Side};
    use crate::bench::output::report::tests::report;

    /// A side with a row of 1,000 bytes, whose iterations have these medians in the rounds.
    fn side(name: &str, medians: &[f64]) -> Side {
        let round = |median: &f64| {
            let mut report = report();
            let row = &mut report.rows[0];
            row.bytes = 1000;
            let measured = row.out_of_place.as_mut().expect("a measurement");
            measured.busbw = measured.algbw;
            measured.iterations[0].median_us = *median;
            report
        };
        let mut rounds = medians.iter().map(round);
        Side { name: name.into(), first: rounds.next().expect("a round"), others: rounds.collect() }
    }

    fn compare(one: &[f64], two: &[f64]) -> Comparison {
        Comparison::new(side("link", one), side("dlopen", two), None).expect("a comparison")
    }

    #[test]
    fn figures_of_rounds_are_those_of_the_round_with_the_median_ratio() {
        // The medians of the sides are 3.8 and 0.3, of rounds that have nothing to do with each other.
        let comparison = compare(&[3.8, 0.3, 0.4, 3.9, 3.8], &[3.8, 0.3, 0.3, 0.3, 0.2]);
        let row = &comparison.rows[0];
        assert_eq!((row.times_us, row.ratio), ([0.4, 0.3], 0.4 / 0.3));
        assert_eq!((row.low, row.high), (Some(1.0), Some(3.8 / 0.2)));
        let text = comparison.to_string();
        assert!(
            text.contains("     0.400       0.300      2.500      3.333   1.333  1.000..19.000\n"),
            "{text}"
        );
        assert_eq!(compare(&[3.0, 8.0], &[1.0, 2.0]).rows[0].times_us, [3.0, 1.0]);
    }

    #[test]
    fn slowdown_of_each_round_is_the_ratio_whatever_the_noise() {
        let mut random = Random(1);
        for rounds in 1..=9 {
            let noise = [(); 9].map(|()| 1.0 + (random.next() >> 40) as f64);
            let noise = &noise[..rounds];
            let slower: Vec<f64> = noise.iter().map(|time| time * 4.0).collect();
            assert_eq!(compare(noise, &slower).rows[0].ratio, 0.25, "{noise:?}");
        }
    }
}
