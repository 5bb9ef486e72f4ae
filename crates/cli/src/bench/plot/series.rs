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
    /// Returns the lines of a result.
    pub(crate) fn all(name: &str, report: &Report, statistic: Statistic) -> Vec<Self> {
        let mut all: Vec<Self> = vec![];
        for row in &report.rows {
            let Some(point) = Point::of(report, row, statistic) else { continue };
            let label = label(name, report, row);
            match all.iter_mut().find(|series| series.label == label) {
                Some(series) => series.points.push(point),
                None => all.push(Self { label, points: vec![point] }),
            }
        }
        all
    }
}

impl Point {
    fn of(report: &Report, row: &Row, statistic: Statistic) -> Option<Self> {
        let measured = row.measured().next()?;
        let time_us = statistic.time_us(measured);
        let bandwidth = report.bandwidth(row, measured, time_us);
        let is_drawn = |value: f64| value.is_finite() && value > 0.0;
        let point = Self { bytes: row.bytes as f64, time_us, bandwidth };
        (row.bytes > 0 && is_drawn(point.time_us) && is_drawn(bandwidth)).then_some(point)
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
