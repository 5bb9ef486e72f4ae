//! `nccl bench plot`: bandwidth and time against size, of one or several results in one picture.

mod chart;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::output::report::{Report, Row};
use super::statistics::Statistic;
use crate::{escapes, file};

const HELP: &str = "\
Example:
  nccl bench plot before.json after.json -o both.svg

The picture shows the times out of place: medians of single iterations if all results have them, otherwise the means of
the loops. `nccl bench compare` compares the same.

Exit status:
  0    Success
  1    A result cannot be read, or the picture cannot be written
  2    Invalid command line";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct PlotArguments {
    /// Results of `nccl bench --json`
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// File to write, in SVG
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

pub(crate) fn run(arguments: &PlotArguments) -> Result<ExitCode> {
    let mut reports = vec![];
    for path in &arguments.files {
        let name = path.display().to_string();
        let text = file::read(path).with_context(|| format!("cannot read {name}"))?;
        let report = Report::from_json(&text).with_context(|| name)?;
        let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        reports.push((name, report));
    }
    write(&reports, &arguments.output)?;
    Ok(ExitCode::SUCCESS)
}

/// A line in each chart: the rows of a result with one data type, reduction and root.
pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) points: Vec<Point>,
}

/// The measurement of a size, out of place, or in place if there is no other.
#[derive(Clone, Copy)]
pub(crate) struct Point {
    pub(crate) bytes: f64,
    pub(crate) time_us: f64,
    /// The bus bandwidth in GB/s, or the algorithm's of a single rank, which has no bus.
    pub(crate) bandwidth: f64,
}

pub(crate) fn write(reports: &[(String, Report)], file: &Path) -> Result<()> {
    let statistic = Statistic::of(reports.iter().map(|(_, report)| report));
    let (mut all, mut omitted) = (vec![], vec![]);
    for (name, report) in reports {
        let mut series: Vec<Series> = vec![];
        for row in &report.rows {
            let point = match point(report, row, statistic) {
                Ok(point) => point,
                Err(figures) => {
                    let row = format!("{name}: {} bytes of {}, {figures}", row.bytes, row.data_type);
                    omitted.push(escapes::in_line(&row).into_owned());
                    continue;
                }
            };
            let label = label(name, report, row);
            match series.iter_mut().find(|series| series.label == label) {
                Some(series) => series.points.push(point),
                None => series.push(Series { label, points: vec![point] }),
            }
        }
        all.append(&mut series);
    }
    if let Some(first) = omitted.first() {
        let rows =
            format!("no place on logarithmic axes for {} of the rows, the first: {first}", omitted.len());
        ensure!(!all.is_empty(), "there is nothing to draw; {rows}");
        anstream::eprintln!("warning: {rows}");
    }
    ensure!(!all.is_empty(), "there is nothing to draw: the results have no rows");
    file::write(file, chart::draw(&all, statistic).as_bytes())
}

/// Returns the point of a row, or its figures if they have no place on logarithmic axes.
fn point(report: &Report, row: &Row, statistic: Statistic) -> Result<Point, String> {
    let measured = row.measured().next().ok_or("not measured")?;
    let time_us = statistic.time_us(measured);
    let bandwidth = report.bandwidth(row, measured, time_us);
    let bytes = row.bytes as f64;
    if [bytes, time_us, bandwidth].iter().all(|value| value.is_finite() && *value > 0.0) {
        Ok(Point { bytes, time_us, bandwidth })
    } else {
        Err(format!("{time_us} us, {bandwidth} GB/s"))
    }
}

fn label(name: &str, report: &Report, row: &Row) -> String {
    let op = row.op.as_ref().map_or_else(String::new, |op| format!(" {op}"));
    let root = row.root.map_or_else(String::new, |root| format!(" root {root}"));
    let ranks = report.ranks.len();
    let place = if row.out_of_place.is_some() { "out of place" } else { "in place" };
    let is_wrong = report.rows.iter().flat_map(Row::measured).any(|measured| measured.wrong > Some(0));
    let wrong = if is_wrong { ", with wrong elements" } else { "" };
    let interrupted = if report.interrupted { ", interrupted" } else { "" };
    let label = format!(
        "{name}: {} {}{op}{root}, {ranks} ranks, {}, {place}",
        report.operation, row.data_type, report.library.backend
    );
    escapes::in_line(&label).into_owned() + wrong + interrupted
}
