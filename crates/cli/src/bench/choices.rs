//! The choices that nccl-tests numbers.

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use libnccl::config::CtaPolicy;

/// The wait after each iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Blocking {
    /// No wait
    #[value(name = "0")]
    None = 0,
    /// Wait for all ranks
    #[value(name = "1")]
    Barrier = 1,
    /// Wait for the rank's own work
    #[value(name = "2")]
    Wait = 2,
    /// Wait for all ranks, which does not count
    #[value(name = "3")]
    UncountedBarrier = 3,
}

/// The way in which buffers are made known to NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Register {
    /// No registration
    #[value(name = "0")]
    None = 0,
    /// Register with each communicator, by `ncclCommRegister`
    #[value(name = "1")]
    Local = 1,
    /// Register as symmetric windows, with the same offsets on all ranks
    #[value(name = "2")]
    Symmetric = 2,
}

/// The policy for thread blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// Default: the number that is fastest
    #[value(name = "0")]
    Default = 0,
    /// Efficiency: few
    #[value(name = "1")]
    Efficiency = 1,
    /// Zero: none if copy engines or the switch can do the work
    #[value(name = "2")]
    Zero = 2,
}

impl From<Policy> for CtaPolicy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Default => Self::Default,
            Policy::Efficiency => Self::Efficiency,
            Policy::Zero => Self::Zero,
        }
    }
}

/// The choice among the ranks' times for a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Average {
    /// The time of rank 0
    #[value(name = "0")]
    RankZero = 0,
    /// The mean
    #[value(name = "1")]
    Mean = 1,
    /// The minimum
    #[value(name = "2")]
    Minimum = 2,
    /// The maximum
    #[value(name = "3")]
    Maximum = 3,
}

impl Average {
    /// Returns the time of a row from those of all ranks.
    pub(crate) fn of(self, times: &[f64]) -> f64 {
        match self {
            Self::RankZero => times.first().copied().unwrap_or_default(),
            Self::Mean => times.iter().sum::<f64>() / times.len().max(1) as f64,
            Self::Minimum => times.iter().copied().fold(f64::INFINITY, f64::min),
            Self::Maximum => times.iter().copied().fold(0.0, f64::max),
        }
    }
}

/// Returns a parser of 0 and 1.
pub(crate) fn switch() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["0", "1"]).map(|text| text == "1")
}

#[cfg(test)]
mod tests {
    use super::Average;

    #[test]
    fn average_is_that_of_nccl_tests() {
        let times = [3.0, 1.0, 8.0];
        let all = [Average::RankZero, Average::Mean, Average::Minimum, Average::Maximum];
        assert_eq!(all.map(|average| average.of(&times)), [3.0, 4.0, 1.0, 8.0]);
    }
}
