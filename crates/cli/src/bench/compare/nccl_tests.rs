//! The output of the programs of nccl-tests, as a result.

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::{Map, Value};

use crate::bench::benchmark::Benchmark;
use crate::bench::output::report::{Library, Measured, Rank, Report, Row};

const VERDICT: &str = "# Out of bounds values : ";

/// Reads the output of a program of nccl-tests, or the table of `nccl bench`, which has the same format.
pub(super) fn read(text: &[u8]) -> Result<Report> {
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
    ensure!(found || !has_failed, "its last lines say FAILED, but no row has wrong elements");
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
        // A program that was ended prints no verdict.
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
    let mut parameters = Map::new();
    for (theirs, ours) in names {
        if let Some(number) = line.split_once(theirs).and_then(|(_, rest)| number(rest)) {
            parameters.insert(ours.into(), number.into());
        }
    }
    // After the warm-up iterations, whose name ends with it.
    if let Some(number) = line.split(" iters: ").nth(2).and_then(number) {
        parameters.insert("iters".into(), number.into());
    }
    parameters
}

/// Returns the row of a line: size, count, data type, reduction, root, then twice time, bandwidths and wrong elements, with
/// four columns more after each with `-I`. A hypercube has no reduction.
fn row(line: &str, benchmark: Benchmark, ranks: usize) -> Option<Row> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [bytes, count] = [fields.first()?.parse().ok()?, fields.get(1)?.parse().ok()?];
    let names = if benchmark == Benchmark::HyperCube { 4 } else { 5 };
    let in_place = if fields.len() >= names + 16 { names + 8 } else { names + 4 };
    let operation = benchmark.operation();
    let measured = |first: usize| {
        let time_us: f64 = fields.get(first)?.parse().ok()?;
        let algbw = bytes as f64 * benchmark.counted_share(ranks) / time_us / 1e3;
        // Counts from a million on are in exponential notation.
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

#[cfg(test)]
#[path = "../../../tests/unit/nccl_tests.rs"]
mod tests;
