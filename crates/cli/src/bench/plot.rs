//! `nccl bench plot`: bandwidth and time against size, of one or several results in one picture.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::output::report::{Report, Row};
use super::statistics::Statistic;
use super::svg::{FOREGROUND, GRID, SERIES, Svg};
use crate::{file, output};

#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/plot.txt").trim_end())]
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
struct Series {
    label: String,
    points: Vec<Point>,
}

/// The measurement of a size, out of place, or in place if there is no other.
#[derive(Clone, Copy)]
struct Point {
    bytes: f64,
    time_us: f64,
    /// The bus bandwidth in GB/s, or the algorithm's of a single rank, which has no bus.
    bandwidth: f64,
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
                    omitted.push(output::in_line(&row).into_owned());
                    continue;
                }
            };
            let label = label_of(name, report, row);
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
    file::write(file, draw(&all, statistic).as_bytes())
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

fn label_of(name: &str, report: &Report, row: &Row) -> String {
    let op = row.op.as_ref().map_or_else(String::new, |op| format!(" {op}"));
    let root = row.root.map_or_else(String::new, |root| format!(" root {root}"));
    let ranks = report.ranks.len();
    let place = if row.out_of_place.is_some() { "out of place" } else { "in place" };
    let is_wrong = report.rows.iter().flat_map(Row::measured).any(|measured| measured.wrong > Some(0));
    let wrong = if is_wrong { ", with wrong elements" } else { "" };
    let interrupted = if report.interrupted { ", interrupted" } else { "" };
    let (operation, data_type, backend) = (&report.operation, &row.data_type, &report.library.backend);
    let label = format!("{name}: {operation} {data_type}{op}{root}, {ranks} ranks, {backend}, {place}");
    output::in_line(&label).into_owned() + wrong + interrupted
}

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 400.0;
/// The height of a line of the legend.
const LINE: f64 = 24.0;

/// Draws series, at least one with a point.
fn draw(series: &[Series], statistic: Statistic) -> String {
    let mut svg = Svg::new(WIDTH, HEIGHT + LINE * series.len() as f64 + 14.0);
    chart(&mut svg, 0.0, &format!("Bus bandwidth, {statistic}"), "GB/s", series, |point| point.bandwidth);
    chart(&mut svg, WIDTH / 2.0, &format!("Time, {statistic}"), "microseconds", series, |point| {
        point.time_us
    });
    for (index, series) in series.iter().enumerate() {
        let (y, color) = (HEIGHT + LINE * (index as f64 + 0.5), SERIES[index % SERIES.len()]);
        svg.line(&[(70.0, y), (98.0, y)], color, 3);
        svg.circle((84.0, y), 4, color);
        svg.text((108.0, y), "start", 12, &series.label);
    }
    svg.finish()
}

fn chart(svg: &mut Svg, left: f64, title: &str, unit: &str, all: &[Series], value: fn(&Point) -> f64) {
    let points = || all.iter().flat_map(|series| &series.points);
    let across = powers(points().map(|point| point.bytes.log2()));
    let up = powers(points().map(|point| value(point).log10()));
    let (left, right, top, bottom) = (left + 78.0, left + WIDTH / 2.0 - 14.0, 40.0, HEIGHT - 60.0);
    let place = |power: f64, (least, most): (i32, i32)| (power - f64::from(least)) / f64::from(most - least);
    let x = |power: f64| left + place(power, across) * (right - left);
    let y = |power: f64| bottom - place(power, up) * (bottom - top);
    svg.text(((left + right) / 2.0, 22.0), "middle", 15, title);
    svg.text(((left + right) / 2.0, HEIGHT - 22.0), "middle", 12, "size in bytes");
    svg.text((left - 8.0, top - 18.0), "end", 12, unit);
    for power in labels(across, 9) {
        svg.line(&[(x(power), top), (x(power), bottom)], GRID, 1);
        svg.text((x(power), bottom + 14.0), "middle", 11, &show_bytes(power.exp2()));
    }
    for power in labels(up, 8) {
        svg.line(&[(left, y(power)), (right, y(power))], GRID, 1);
        svg.text((left - 8.0, y(power)), "end", 11, &show_power(power));
    }
    svg.line(&[(left, top), (left, bottom), (right, bottom)], FOREGROUND, 1);
    for (series, color) in all.iter().zip(SERIES.into_iter().cycle()) {
        let place = |point: &Point| (x(point.bytes.log2()), y(value(point).log10()));
        let points: Vec<_> = series.points.iter().map(place).collect();
        svg.line(&points, color, 2);
        points.into_iter().for_each(|point| svg.circle(point, 3, color));
    }
}

/// Returns the whole powers around those of values, so that the axes begin and end with a label.
fn powers(of_values: impl Iterator<Item = f64>) -> (i32, i32) {
    let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
    for power in of_values {
        (least, most) = (least.min(power), most.max(power));
    }
    let (least, most) = (least.floor() as i32, most.ceil() as i32);
    (least, most.max(least + 1))
}

/// Returns the powers of an axis that have a label, so many at most.
fn labels((least, most): (i32, i32), limit: i32) -> impl Iterator<Item = f64> {
    let step = (most - least) / (limit + 1) + 1;
    (least..=most).step_by(step as usize).map(f64::from)
}

fn show_power(power: f64) -> String {
    if (-6.0..=9.0).contains(&power) { show(10_f64.powf(power)) } else { format!("1e{power}") }
}

fn show_bytes(bytes: f64) -> String {
    let (unit, name) = match bytes {
        ..1024.0 => (1.0, ""),
        ..1_048_576.0 => (1024.0, "K"),
        ..1_073_741_824.0 => (1_048_576.0, "M"),
        _ => (1_073_741_824.0, "G"),
    };
    format!("{}{name}", show(bytes / unit))
}

fn show(value: f64) -> String {
    let decimals = if value >= 1.0 { 0 } else { (-value.log10()).ceil().max(0.0) as usize };
    format!("{value:.decimals$}")
}

#[cfg(test)]
#[path = "../../tests/unit/plot.rs"]
mod tests;
