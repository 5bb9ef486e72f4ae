//! Statistics of single iterations' times, and of compared or drawn results.

use std::fmt::{self, Display, Formatter};

use itertools::Itertools;
use serde::Serialize;

use super::output::report::{Iterations, Measured, Report, Row};

/// The times of a rank's iterations, in nanoseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Times {
    /// The time from each call until its result was available.
    pub(crate) durations: Vec<u64>,
    /// The delay between the first rank's and this rank's start of each iteration; empty if clocks cannot be compared.
    pub(crate) delays: Vec<u64>,
    /// The times of iterations that this rank began after all others; empty if they were not measured.
    pub(crate) last: Vec<u64>,
}

impl Times {
    pub(crate) fn summary(&self, rank: usize, operations: u32) -> Iterations {
        let durations = sorted(&self.durations);
        let us = |nanoseconds: f64| nanoseconds / 1e3 / f64::from(operations);
        let median_us = us(median(&durations).unwrap_or_default());
        Iterations {
            rank,
            min_us: us(percentile(&durations, 0)),
            median_us,
            p99_us: us(percentile(&durations, 99)),
            max_us: us(percentile(&durations, 100)),
            wait_us: median_us,
            late_us: median(&self.delays).map(|time| time / 1e3),
            own_us: median(&self.last).map(us),
        }
    }
}

/// Returns the columns of nccl-tests for single iterations: minimum, maximum and 99th percentile in microseconds, and the
/// coefficient of variation in percent.
pub(crate) fn iteration_columns(times: &[u64], operations: u32) -> [f64; 4] {
    let sorted = sorted(times);
    let us = |percent| percentile(&sorted, percent) / 1e3 / f64::from(operations);
    let count = times.len().max(1) as f64;
    let mean = times.iter().map(|time| *time as f64).sum::<f64>() / count;
    let variance = times.iter().map(|time| (*time as f64 - mean).powi(2)).sum::<f64>() / count;
    let variation = if mean > 0.0 { variance.sqrt() / mean * 100.0 } else { 0.0 };
    [us(0), us(100), us(99), variation]
}

fn sorted(times: &[u64]) -> Vec<u64> {
    times.iter().copied().sorted_unstable().collect()
}

/// Returns a percentile of the times by the nearest-rank method; 0 without times.
fn percentile(sorted: &[u64], percent: usize) -> f64 {
    let position = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(position).map_or(0.0, |time| *time as f64)
}

pub(crate) fn median(times: &[u64]) -> Option<f64> {
    let sorted = sorted(times);
    let upper = *sorted.get(sorted.len() / 2)? as f64;
    let lower = *sorted.get((sorted.len() - 1) / 2)? as f64;
    Some((lower + upper) / 2.0)
}

/// The statistic that represents a row's time, the same for all compared results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Statistic {
    /// The median of single iterations, which is less sensitive to noise than the mean.
    Median,
    /// The mean over all iterations, as in the table. It is used if a result lacks times of single iterations.
    Mean,
}

impl Statistic {
    /// Returns the median if all rows of the results have one, or else the mean.
    pub(crate) fn of<'a>(reports: impl IntoIterator<Item = &'a Report>) -> Self {
        // If ranks are missing, the longest time is unknown.
        let has_median = |report: &Report| {
            let mut measured = report.rows.iter().flat_map(Row::measured);
            measured.all(|measured| {
                measured.iterations.len() == report.ranks.len() && median_iteration(measured).is_some()
            })
        };
        if reports.into_iter().all(has_median) { Self::Median } else { Self::Mean }
    }

    pub(crate) fn time_us(self, measured: &Measured) -> f64 {
        median_iteration(measured).filter(|_| self == Self::Median).unwrap_or(measured.time_us)
    }

    /// Returns the ratio of `one`'s fastest iteration to `two`'s median, and of `one`'s median to `two`'s fastest iteration:
    /// noise only makes iterations longer. `None` without times of iterations.
    pub(crate) fn spread(self, one: &Measured, two: &Measured) -> Option<(f64, f64)> {
        let fastest = |measured| slowest_rank(measured, |rank| rank.min_us).filter(|_| self == Self::Median);
        Some((fastest(one)? / median_iteration(two)?, median_iteration(one)? / fastest(two)?))
    }
}

/// Formats a number with `digits` significant digits, at most `decimals` of them after the decimal point.
pub(crate) fn digits(value: f64, digits: i32, decimals: i32) -> String {
    let needed = f64::from(digits - 1) - value.abs().log10().floor();
    format!("{value:.*}", needed.clamp(0.0, decimals.into()) as usize)
}

impl Display for Statistic {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Median => "median of single iterations",
            Self::Mean => "mean of the loop",
        })
    }
}

fn median_iteration(measured: &Measured) -> Option<f64> {
    slowest_rank(measured, |rank| rank.median_us)
}

/// Returns the longest time of the ranks: an operation has ended when the last rank has its result.
fn slowest_rank(measured: &Measured, value: fn(&Iterations) -> f64) -> Option<f64> {
    measured.iterations.iter().map(value).reduce(f64::max).filter(|time| *time > 0.0)
}

#[cfg(test)]
#[path = "../../tests/unit/statistics.rs"]
mod tests;
