//! The work of one group: all-reduces that are timed and checked.

use std::time::Instant;

use anyhow::Result;
use libnccl::Communicator;

use crate::bench::measure::endpoint::{Endpoint, Wrong};

/// The elements of a short all-reduce, whose time is the latency.
pub(crate) const SHORT: usize = 2;

/// The number of values that describe a trial.
pub(crate) const VALUES: usize = 4;

/// The outcome of a rank's part in a group.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Trial {
    /// The time of a short all-reduce, in microseconds.
    pub(crate) short_us: f64,
    /// The time of a long all-reduce, in microseconds.
    pub(crate) long_us: f64,
    pub(crate) wrong: Wrong,
    /// The error, if the group has not finished.
    pub(crate) failure: Option<String>,
}

impl Trial {
    /// Returns what the other ranks need to know.
    pub(crate) fn to_values(&self) -> [f64; VALUES] {
        [self.short_us, self.long_us, self.wrong.count as f64, self.wrong.first as f64]
    }
}

/// Does a rank's part: a sum that is checked and, timed ones if `iters` says how many. An error of
/// the group, such as a deadline that is over, is an outcome.
pub(crate) fn run(endpoint: &mut Endpoint, group: &Communicator, iters: Option<u32>) -> Result<Trial> {
    endpoint.fill(endpoint.elements(), |index| element(group.rank(), index))?;
    let trial = sums(endpoint, group, iters);
    Ok(trial.unwrap_or_else(|error| Trial { failure: Some(format!("{error:#}")), ..Trial::default() }))
}

fn sums(endpoint: &mut Endpoint, group: &Communicator, iters: Option<u32>) -> Result<Trial> {
    let elements = endpoint.elements();
    endpoint.all_reduce(group, elements)?;
    endpoint.synchronize(group)?;
    let sum = |index| (0..group.size()).map(|rank| element(rank, index)).sum();
    let mut trial = Trial { wrong: endpoint.compare(elements, sum)?, ..Trial::default() };
    if let Some(iters) = iters {
        trial.short_us = time(endpoint, group, SHORT, iters)?;
        trial.long_us = time(endpoint, group, elements, iters)?;
    }
    Ok(trial)
}

/// Returns an element that a rank sends: a small whole number, so that the sum is exact.
fn element(rank: usize, index: usize) -> f32 {
    ((index * 31 + rank * 7) % 251 + 1) as f32
}

/// Returns the time of an all-reduce in microseconds, the tenth part of the times being shorter: other work of the machine
/// makes some longer and none shorter.
fn time(endpoint: &mut Endpoint, group: &Communicator, count: usize, iters: u32) -> Result<f64> {
    let mut times = vec![];
    for _ in 0..iters {
        let begin = Instant::now();
        endpoint.all_reduce(group, count)?;
        endpoint.synchronize(group)?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 10])
}
