use crate::bench::output::report::{Report, Row};
use crate::bench::output::statistic::Statistic;
use crate::escapes;

/// A line in each chart: the rows of a result with one data type, reduction and root.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) points: Vec<Point>,
}

/// The measurement of a size, out of place, or in place if there is no other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    pub(crate) bytes: f64,
    pub(crate) time_us: f64,
    /// The bus bandwidth in GB/s, or the algorithm's of a single rank, which has no bus.
    pub(crate) bandwidth: f64,
}

impl Series {
    pub(crate) fn all(name: &str, report: &Report, statistic: Statistic) -> Vec<Self> {
        let is_wrong = report.rows.iter().flat_map(Row::measured).any(|measured| measured.wrong > Some(0));
        let wrong = if is_wrong { ", with wrong elements" } else { "" };
        let interrupted = if report.interrupted { ", interrupted" } else { "" };
        let mut all: Vec<Self> = vec![];
        for row in &report.rows {
            let Some(point) = Point::of(report, row, statistic) else { continue };
            let label = label(name, report, row) + wrong + interrupted;
            match all.iter_mut().find(|series| series.label == label) {
                Some(series) => series.points.push(point),
                None => all.push(Self { label, points: vec![point] }),
            }
        }
        all
    }
}

/// Returns the rows that have no place on logarithmic axes.
pub(crate) fn omitted(name: &str, report: &Report, statistic: Statistic) -> impl Iterator<Item = String> {
    let rows = report.rows.iter().filter(move |row| Point::of(report, row, statistic).is_none());
    rows.map(move |row| {
        let Row { bytes, data_type, .. } = row;
        let figures = Point::new(report, row, statistic).map_or_else(
            || "not measured".into(),
            |Point { time_us, bandwidth, .. }| format!("{time_us} us, {bandwidth} GB/s"),
        );
        escapes::in_line(&format!("{name}: {bytes} bytes of {data_type}, {figures}")).into_owned()
    })
}

impl Point {
    fn new(report: &Report, row: &Row, statistic: Statistic) -> Option<Self> {
        let measured = row.measured().next()?;
        let time_us = statistic.time_us(measured);
        let bandwidth = report.bandwidth(row, measured, time_us);
        Some(Self { bytes: row.bytes as f64, time_us, bandwidth })
    }

    /// Returns the point of a row, if it can be drawn.
    fn of(report: &Report, row: &Row, statistic: Statistic) -> Option<Self> {
        let is_drawn = |value: f64| value.is_finite() && value > 0.0;
        Self::new(report, row, statistic)
            .filter(|point| [point.bytes, point.time_us, point.bandwidth].into_iter().all(is_drawn))
    }
}

fn label(name: &str, report: &Report, row: &Row) -> String {
    let op = row.op.as_ref().map_or_else(String::new, |op| format!(" {op}"));
    let root = row.root.map_or_else(String::new, |root| format!(" root {root}"));
    let ranks = report.ranks.len();
    let place = if row.out_of_place.is_some() { "out of place" } else { "in place" };
    let label = format!(
        "{name}: {} {}{op}{root}, {ranks} ranks, {}, {place}",
        report.operation, row.data_type, report.library.backend
    );
    escapes::in_line(&label).into_owned()
}
