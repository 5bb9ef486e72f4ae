//! The measurements of all groups, from which the verdict is made.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use super::stages::Stage;
use super::trial::VALUES;

/// The number of the schema of the JSON.
pub(super) const SCHEMA: u32 = 1;

/// The groups that are measured, of a search in which no rank hangs.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    schema: u32,
    program: String,
    library: String,
    launch: String,
    /// The number of ranks.
    #[serde(skip)]
    size: usize,
    /// The number of stages, measured or not.
    #[serde(skip)]
    number: usize,
    pub(super) stages: Vec<Vec<Group>>,
    /// Not set where the ranks share processors: latencies depend on where the scheduler puts them.
    compares_latency: bool,
    /// Set if a signal has ended the search: there is no verdict.
    interrupted: bool,
}

/// A group of a stage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Group {
    pub(super) ranks: Vec<usize>,
    /// The time of an all-reduce of 8 bytes.
    pub(super) latency_us: f64,
    /// The time of an all-reduce of the size that was asked for.
    pub(super) time_us: f64,
    /// The elements that are wrong, on the rank with the most.
    pub(super) wrong: u64,
    /// The times of the group divided by those of the fastest group of its size; the greater of the two, if both are compared.
    pub(super) slower: f64,
    pub(super) is_slow: bool,
}

impl Measured {
    /// Judges the groups of the stages that the first pass has measured, by the values of all ranks in the passes that have
    /// measured as many. A group is slow if it takes `limit` times as long as the fastest of as many ranks, for all-reduces of
    /// the size that was asked for, or for short ones if these are compared.
    pub(super) fn new(
        [library, launch]: [String; 2],
        stages: &[Stage],
        passes: &[Vec<Vec<f64>>],
        limit: f64,
        compares_latency: bool,
    ) -> Self {
        let values = |pass: &Vec<Vec<f64>>| pass.first().map_or(0, Vec::len);
        let first = passes.first().map_or(0, values);
        let passes = &passes[..passes.partition_point(|pass| values(pass) == first)];
        let mut groups: Vec<Vec<Group>> = stages
            .iter()
            .take(first / VALUES)
            .enumerate()
            .map(|(at, stage)| stage.groups.iter().map(|ranks| Group::new(ranks, at, passes)).collect())
            .collect();
        let all = groups.concat();
        for group in groups.iter_mut().flatten() {
            let peers = all.iter().filter(|other| other.ranks.len() == group.ranks.len());
            let fastest = |value: fn(&Group) -> f64| peers.clone().map(value).fold(f64::INFINITY, f64::min);
            group.slower = group.time_us / fastest(|group| group.time_us);
            if compares_latency {
                group.slower = group.slower.max(group.latency_us / fastest(|group| group.latency_us));
            }
            group.is_slow = group.slower > limit;
        }
        Self {
            schema: SCHEMA,
            program: format!("nccl {}", env!("CARGO_PKG_VERSION")),
            library,
            launch,
            size: passes.first().map_or(0, Vec::len),
            number: stages.len(),
            stages: groups,
            compares_latency,
            interrupted: false,
        }
    }

    /// Returns what a signal prints, which has ended the search.
    pub(super) fn interrupted(self) -> Self {
        Self { interrupted: true, ..self }
    }
}

impl Group {
    fn new(ranks: &[usize], stage: usize, passes: &[Vec<Vec<f64>>]) -> Self {
        let of_passes = |value: usize| {
            passes.iter().map(move |ranks_values| {
                let values = ranks.iter().map(|rank| ranks_values[*rank][stage * VALUES + value]);
                values.fold(0.0, f64::max)
            })
        };
        let fastest = |value| of_passes(value).fold(f64::INFINITY, f64::min);
        let wrong = of_passes(2).fold(0.0, f64::max) as u64;
        let (latency_us, time_us) = (fastest(0), fastest(1));
        Self { ranks: ranks.to_vec(), latency_us, time_us, wrong, slower: 1.0, is_slow: false }
    }
}

impl Display for Measured {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { program, library, launch, size, number, stages, compares_latency, interrupted, .. } = self;
        writeln!(f, "# {program} with NCCL {library}, {size} ranks ({launch})")?;
        if !compares_latency {
            writeln!(f, "# latencies are not compared, as the ranks share processors")?;
        }
        writeln!(
            f,
            "# {:<20}  {:>12}  {:>10}  {:>9}  {:>6}",
            "ranks", "latency (us)", "time (us)", "slower", "wrong"
        )?;
        for (number, stage) in stages.iter().enumerate() {
            if number > 0 {
                writeln!(f, "#")?;
            }
            for Group { ranks, latency_us, time_us, wrong, slower, is_slow } in stage {
                let mark = match (is_slow, *wrong > 0) {
                    (true, true) => "  slow, wrong",
                    (true, false) => "  slow",
                    (false, true) => "  wrong",
                    (false, false) => "",
                };
                writeln!(
                    f,
                    "  {:<20}  {latency_us:>12.2}  {time_us:>10.2}  {:>9}  {wrong:>6}{mark}",
                    show(ranks),
                    format!("{slower:.1} x")
                )?;
            }
        }
        if *interrupted {
            let measured = stages.len();
            writeln!(
                f,
                "# Interrupted: {measured} of {number} stages are measured, and there is no verdict"
            )?;
        }
        Ok(())
    }
}

/// Shows ranks as a range if they are one.
fn show(ranks: &[usize]) -> String {
    match (ranks.first(), ranks.last()) {
        (Some(first), Some(last)) if ranks.len() > 2 && last - first + 1 == ranks.len() => {
            format!("{first}-{last}")
        }
        _ => ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
    }
}
