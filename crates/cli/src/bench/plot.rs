//! `nccl bench plot`: plots bandwidth and time against size, as SVG for light and dark backgrounds.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use itertools::Itertools;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::output::report::{Report, Row};
use super::statistics::Statistic;
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
        let report = Report::from_json(file::read(path)?).with_context(|| path.display().to_string())?;
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

/// The measurement of a size: out of place, or in place if there is no out-of-place measurement.
#[derive(Clone, Copy)]
struct Point {
    bytes: f64,
    time_us: f64,
    /// The bus bandwidth in GB/s, or the algorithm bandwidth for a single rank, which has no bus.
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
    file::write(file, draw(&all, statistic)?.as_bytes())
}

/// Returns the point of a row. Fails with the row's values if logarithmic axes cannot show them.
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
    let wrong = if is_wrong { ", with mismatches" } else { "" };
    let interrupted = if report.interrupted { ", interrupted" } else { "" };
    let (operation, data_type, backend) = (&report.operation, &row.data_type, &report.library.backend);
    let label = format!("{name}: {operation} {data_type}{op}{root}, {ranks} ranks, {backend}, {place}");
    output::in_line(&label).into_owned() + wrong + interrupted
}

const WIDTH: u32 = 1000;
const HEIGHT: u32 = 400;
/// The height of a line of the legend.
const LINE: u32 = 24;
const MARGIN: u32 = 14;

/// Draws the series, of which at least one must have a point.
fn draw(series: &[Series], statistic: Statistic) -> Result<String> {
    picture((WIDTH, HEIGHT + LINE * series.len() as u32 + MARGIN), |area| {
        let (charts, legend) = area.split_vertically(HEIGHT);
        let (left, right) = charts.split_horizontally(WIDTH / 2);
        chart(&left, &format!("Bus bandwidth, {statistic}"), "GB/s", series, |point| point.bandwidth)?;
        chart(&right, &format!("Time, {statistic}"), "microseconds", series, |point| point.time_us)?;
        for (index, series) in series.iter().enumerate() {
            let (x, y) = (70, (LINE * index as u32 + LINE / 2) as i32);
            let color = SERIES[index % SERIES.len()];
            legend.draw(&PathElement::new([(x, y), (x + 28, y)], color.stroke_width(3)))?;
            legend.draw(&Circle::new((x + 14, y), 4, color.filled()))?;
            label(&legend, series.label.clone(), (x + 38, y), 15, (HPos::Left, VPos::Center))?;
        }
        Ok(())
    })
}

fn chart(
    area: &Area<'_>,
    title: &str,
    unit: &str,
    series: &[Series],
    value: impl Fn(&Point) -> f64,
) -> Result<()> {
    let points = || series.iter().flat_map(|series| &series.points);
    let across = powers(points().map(|point| point.bytes.log2()));
    let up = powers(points().map(|point| value(point).log10()));
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 19).into_font().color(&FOREGROUND))
        .margin(MARGIN)
        .x_label_area_size(46)
        .y_label_area_size(64)
        .build_cartesian_2d(Axis::new(across, 9), Axis::new(up, 8))?;
    chart
        .configure_mesh()
        .axis_style(FOREGROUND)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style((FONT, 13).into_font().color(&FOREGROUND))
        .axis_desc_style((FONT, 14).into_font().color(&FOREGROUND))
        .x_desc("size in bytes")
        .y_desc(unit)
        .x_label_formatter(&|power| show_bytes(power.exp2()))
        .y_label_formatter(&|power| show_power(*power))
        .draw()?;
    for (index, series) in series.iter().enumerate() {
        let color = SERIES[index % SERIES.len()];
        let points: Vec<(f64, f64)> =
            series.points.iter().map(|point| (point.bytes.log2(), value(point).log10())).collect();
        chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?;
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
    }
    Ok(())
}

/// Returns the closest integers that enclose these exponents, so that an axis begins and ends with a label.
fn powers(of_values: impl Iterator<Item = f64>) -> (i32, i32) {
    let (least, most) = of_values.minmax_by(f64::total_cmp).into_option().unwrap_or_default();
    let (least, most) = (least.floor() as i32, most.ceil() as i32);
    (least, most.max(least + 1))
}

/// A linear axis of exponents. The logarithmic scale of the crate `plotters` loops forever if values are far apart.
struct Axis {
    powers: RangedCoordf64,
    labels: Vec<f64>,
}

impl Axis {
    /// Creates an axis from one exponent to another, with at most about `labels` labels.
    fn new((least, most): (i32, i32), labels: i32) -> Self {
        let step = (most - least) / (labels + 1) + 1;
        let labels = (least..=most).step_by(step as usize).map(f64::from).collect();
        Self { powers: (f64::from(least)..f64::from(most)).into(), labels }
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, power: &f64, limit: (i32, i32)) -> i32 {
        self.powers.map(power, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { vec![] } else { self.labels.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.powers.range()
    }
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

pub(crate) const FONT: &str = "sans-serif";

const BACKGROUND: RGBColor = RGBColor(0xff, 0xff, 0xff);
const FOREGROUND: RGBColor = RGBColor(0x1f, 0x23, 0x28);
const GRID: RGBColor = RGBColor(0xd8, 0xdc, 0xe1);
const SERIES: [RGBColor; 8] = [
    RGBColor(0x0b, 0x63, 0xc5),
    RGBColor(0xc2, 0x41, 0x0c),
    RGBColor(0x15, 0x80, 0x3d),
    RGBColor(0x93, 0x33, 0xa8),
    RGBColor(0xa1, 0x62, 0x07),
    RGBColor(0x0e, 0x74, 0x90),
    RGBColor(0xbe, 0x18, 0x5d),
    RGBColor(0x57, 0x60, 0x6a),
];

/// The replacements of `BACKGROUND`, `FOREGROUND`, `GRID` and `SERIES` in dark mode, in this order.
const DARK: [&str; 11] = [
    "#15181d", "#e6e8eb", "#363c45", "#63a9f5", "#fb9157", "#5fd08a", "#d68be6", "#e3b341", "#4fc3dc",
    "#f583b1", "#a8b1bb",
];

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub(crate) fn picture(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&BACKGROUND)?;
        draw(&area)?;
        area.present()?;
    }
    let colors = [BACKGROUND, FOREGROUND, GRID].into_iter().chain(SERIES).zip(DARK);
    let dark: String = colors
        .map(|(RGBColor(red, green, blue), dark)| {
            let light = format!("#{red:02X}{green:02X}{blue:02X}");
            format!("[fill=\"{light}\"]{{fill:{dark}}}[stroke=\"{light}\"]{{stroke:{dark}}}")
        })
        .collect();
    let start = svg.find('>').map_or(0, |end| end + 1);
    svg.insert_str(start, &format!("<style>@media (prefers-color-scheme: dark){{{dark}}}</style>\n"));
    Ok(svg)
}

pub(crate) fn label(
    area: &Area<'_>,
    text: String,
    place: (i32, i32),
    size: i32,
    anchor: (HPos, VPos),
) -> Result<()> {
    Ok(area.draw(&Text::new(text, place, style(size, anchor)))?)
}

pub(crate) fn style(size: i32, (horizontal, vertical): (HPos, VPos)) -> TextStyle<'static> {
    (FONT, size).into_font().color(&FOREGROUND).pos(Pos::new(horizontal, vertical))
}

#[cfg(test)]
#[path = "../../tests/unit/plot.rs"]
mod tests;
