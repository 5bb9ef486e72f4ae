//! The measurements of all pairs.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use crate::bench::start::Job;
use crate::escapes::in_line;

const SCHEMA: u32 = 1;

/// A rank counts as slow if the median of its links is worse than that of all links by this factor.
const SLOW: f64 = 4.0;

#[derive(Debug, Default, Serialize)]
pub(crate) struct Pairs {
    schema: u32,
    program: String,
    /// The version of NCCL and where it comes from.
    library: String,
    device: String,
    launch: String,
    pub(crate) bytes: u64,
    iters: usize,
    /// `links[a][b]` is what rank a sends to rank b; `None` where they are the same, or not measured yet.
    pub(crate) links: Vec<Vec<Option<Link>>>,
    ranks: Vec<Rank>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Link {
    /// Half the time of a round trip of 8 bytes, the least of ten measurements.
    pub(crate) latency_us: f64,
    pub(crate) median_latency_us: f64,
    /// In GB/s, the greatest of ten measurements.
    pub(crate) bandwidth: f64,
    pub(crate) median_bandwidth: f64,
    /// The elements of one send that arrived changed.
    pub(crate) wrong: u64,
    pub(crate) first_wrong: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Rank {
    rank: usize,
    /// The median of its latencies; `None` if none of its links has been measured.
    latency_us: Option<f64>,
    /// The median of its bandwidths, both ways.
    bandwidth: Option<f64>,
    /// The elements that it sent and that arrived changed.
    wrong: u64,
    /// Set if its median latency or bandwidth is worse than that of all links by [`SLOW`].
    is_slow: bool,
}

impl Pairs {
    pub(crate) fn new(job: &Job, device: String, bytes: u64, iters: usize) -> Self {
        Self {
            schema: SCHEMA,
            program: format!("nccl {}", env!("CARGO_PKG_VERSION")),
            library: format!("{} ({})", job.nccl.version(), job.nccl.backend()),
            device,
            launch: job.launch.clone(),
            bytes,
            iters,
            links: vec![vec![None; job.size]; job.size],
            ranks: vec![],
        }
    }

    pub(crate) fn number(&self) -> usize {
        self.links.len() * (self.links.len() - 1) / 2
    }

    pub(crate) fn judge(&mut self) {
        let all = medians(self.each());
        let rank = |rank: usize| {
            let own = medians(self.each().filter(|(from, to, _)| [*from, *to].contains(&rank)));
            let is_slow =
                all.zip(own).is_some_and(|((latency_us, bandwidth), (own_latency_us, own_bandwidth))| {
                    own_latency_us > SLOW * latency_us || bandwidth > SLOW * own_bandwidth
                });
            let (latency_us, bandwidth) = own.unzip();
            let wrong = self.links[rank].iter().flatten().map(|link| link.wrong).sum();
            Rank { rank, latency_us, bandwidth, wrong, is_slow: is_slow && self.links.len() > 2 }
        };
        self.ranks = (0..self.links.len()).map(rank).collect();
    }

    pub(crate) fn problems(&self, min_bandwidth: Option<f64>, max_latency: Option<f64>) -> Vec<String> {
        let mut problems = vec![];
        for (from, to, link) in self.each() {
            if link.wrong > 0 {
                let (wrong, first) = (elements(link.wrong), link.first_wrong.unwrap_or_default());
                problems.push(format!("rank {from} to {to}: {wrong} wrong, the first at index {first}"));
            }
            if let Some(limit) = min_bandwidth.filter(|limit| link.bandwidth < *limit) {
                problems.push(format!("rank {from} to {to}: {:.3} GB/s, expected {limit}", link.bandwidth));
            }
            if let Some(limit) = max_latency.filter(|limit| from < to && link.latency_us > *limit) {
                let latency_us = link.latency_us;
                problems.push(format!("ranks {from} and {to}: {latency_us:.2} us, expected {limit} at most"));
            }
        }
        problems
    }

    pub(crate) fn title(&self) -> String {
        format!("{} ranks ({}), NCCL {}", self.links.len(), in_line(&self.launch), in_line(&self.library))
    }

    fn each(&self) -> impl Iterator<Item = (usize, usize, &Link)> + Clone {
        self.links.iter().enumerate().flat_map(|(from, row)| {
            row.iter().enumerate().filter_map(move |(to, link)| Some((from, to, link.as_ref()?)))
        })
    }

    fn matrix(&self, f: &mut Formatter<'_>, value: impl Fn(&Link) -> String) -> fmt::Result {
        write!(f, "{:>10}", "from \\ to")?;
        (0..self.links.len()).try_for_each(|to| write!(f, "  {to:>8}"))?;
        writeln!(f)?;
        for (from, row) in self.links.iter().enumerate() {
            write!(f, "{from:>10}")?;
            for link in row {
                write!(f, "  {:>8}", link.as_ref().map_or_else(|| "-".into(), &value))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl Display for Pairs {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "# {} with NCCL {}", self.program, in_line(&self.library))?;
        writeln!(f, "# {} ranks ({}), {}", self.links.len(), in_line(&self.launch), in_line(&self.device))?;
        writeln!(f, "# Bandwidth (GB/s) of {} messages of {} bytes", self.iters, self.bytes)?;
        self.matrix(f, |link| format!("{:.3}", link.bandwidth))?;
        writeln!(f, "# Latency (us) of 8 bytes, half of a round trip")?;
        self.matrix(f, |link| format!("{:.2}", link.latency_us))?;
        let (measured, number) = (self.each().count() / 2, self.number());
        if measured < number {
            writeln!(f, "# Interrupted after {measured} of {number} pairs")?;
        }
        for (from, to, link) in self.each().filter(|(_, _, link)| link.wrong > 0) {
            writeln!(f, "# rank {from} to {to}: {} wrong", elements(link.wrong))?;
        }
        let figures = |(latency_us, bandwidth)| format!("{bandwidth:.3} GB/s and {latency_us:.2} us");
        let all = medians(self.each()).map(figures).unwrap_or_default();
        for Rank { rank, latency_us, bandwidth, .. } in self.ranks.iter().filter(|rank| rank.is_slow) {
            let own = latency_us.zip(*bandwidth).map(figures).unwrap_or_default();
            writeln!(f, "# rank {rank} is slow: the median of its links is {own}, that of all {all}")?;
        }
        Ok(())
    }
}

fn elements(number: u64) -> String {
    if number == 1 { "1 element".into() } else { format!("{number} elements") }
}

/// Returns the medians of latency and bandwidth, the upper ones of two; `None` without links.
fn medians<'a>(links: impl Iterator<Item = (usize, usize, &'a Link)> + Clone) -> Option<(f64, f64)> {
    let median = |value: fn(&Link) -> f64| {
        let mut values: Vec<f64> = links.clone().map(|(_, _, link)| value(link)).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    Some((median(|link| link.latency_us)?, median(|link| link.bandwidth)?))
}

#[cfg(test)]
#[path = "../../../tests/unit/matrix.rs"]
mod tests;
