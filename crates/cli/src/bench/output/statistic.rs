//! The statistic that stands for a measurement where results are compared and drawn.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use super::report::{Iterations, Measured, Report, Row};

/// A statistic of the times of a row, the same for all that is set side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Statistic {
    /// The median of single iterations, which the noise of a machine changes less than the mean.
    Median,
    /// The mean of the loop, as in the table of the measurement, where a result lacks times of single iterations.
    Mean,
}

impl Statistic {
    /// Returns the statistic that all rows of the results have.
    pub(crate) fn of<'a>(reports: impl IntoIterator<Item = &'a Report>) -> Self {
        // Without some of the ranks, the longest time is not known.
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

    /// Returns the ratio of one side's fastest iteration to the other's median, both ways round: the noise of a machine
    /// makes iterations longer and never shorter. `None` without times of iterations.
    pub(crate) fn spread(self, one: &Measured, two: &Measured) -> Option<(f64, f64)> {
        let fastest = |measured| slowest_rank(measured, |rank| rank.min_us).filter(|_| self == Self::Median);
        Some((fastest(one)? / median_iteration(two)?, median_iteration(one)? / fastest(two)?))
    }
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

/// Returns the longest time of the ranks: an operation has ended when the last one has its result.
fn slowest_rank(measured: &Measured, value: fn(&Iterations) -> f64) -> Option<f64> {
    measured.iterations.iter().map(value).reduce(f64::max).filter(|time| *time > 0.0)
}
