//! The verdict on the ranks, from the trials of all groups.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use super::measured::{Group, Measured};

/// The outcome of a search in which no rank hangs.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    #[serde(flatten)]
    measured: Measured,
    slow: Vec<usize>,
    wrong: Vec<usize>,
    /// Pairs that are slow with each other alone.
    slow_pairs: Vec<[usize; 2]>,
    wrong_pairs: Vec<[usize; 2]>,
    hanging: Vec<usize>,
}

impl Verdict {
    pub(crate) fn new(measured: Measured) -> Self {
        let (slow, slow_pairs) = name(&measured.stages, |group| group.is_slow);
        let (wrong, wrong_pairs) = name(&measured.stages, |group| group.wrong > 0);
        Self { measured, slow, wrong, slow_pairs, wrong_pairs, hanging: vec![] }
    }

    /// Returns a sentence for each rank and pair that is named, and for what no pair explains.
    pub(crate) fn sentences(&self) -> Vec<String> {
        let mut sentences = vec![];
        let slower = |is_of: &dyn Fn(&Group) -> bool| {
            let pairs = self.pairs().filter(|group| is_of(group) && group.is_slow);
            pairs.map(|group| group.slower).fold(f64::INFINITY, f64::min)
        };
        for rank in &self.slow {
            let times = slower(&|group| group.ranks.contains(rank));
            sentences
                .push(format!("rank {rank} is slow: {times:.1} times or more the time of the fastest pair"));
        }
        for [one, two] in &self.slow_pairs {
            let times = slower(&|group| group.ranks == [*one, *two]);
            sentences.push(format!(
                "ranks {one} and {two} are slow with each other: {times:.1} times the time of the fastest pair"
            ));
        }
        sentences.extend(self.wrong.iter().map(|rank| {
            format!("rank {rank} is wrong: the sums of all its pairs have elements that are wrong")
        }));
        sentences.extend(self.wrong_pairs.iter().map(|[one, two]| {
            format!("ranks {one} and {two} are wrong: their sums have elements that are wrong")
        }));
        let is_unexplained = |is_bad: fn(&Group) -> bool| {
            self.measured.stages.iter().flatten().any(is_bad) && !self.pairs().any(is_bad)
        };
        if is_unexplained(|group| group.wrong > 0) {
            sentences.push(
                "sums are wrong in large groups and in no pair that was tried; try nccl bench pairs".into(),
            );
        }
        if is_unexplained(|group| group.is_slow) {
            sentences.push("a large group is slow and no pair that was tried; try nccl bench pairs".into());
        }
        sentences
    }

    /// Returns whether a rank or a pair is slow.
    pub(crate) fn has_slow(&self) -> bool {
        self.measured.stages.iter().flatten().any(|group| group.is_slow)
    }

    fn pairs(&self) -> impl Iterator<Item = &Group> {
        self.measured.stages.iter().flatten().filter(|group| group.ranks.len() == 2)
    }
}

/// Returns the ranks that are bad in every pair, with different partners, and the bad pairs of other ranks.
fn name(stages: &[Vec<Group>], is_bad: impl Fn(&Group) -> bool) -> (Vec<usize>, Vec<[usize; 2]>) {
    let pairs: Vec<&Group> = stages.iter().flatten().filter(|group| group.ranks.len() == 2).collect();
    let last = pairs.iter().flat_map(|group| &group.ranks).max().copied().unwrap_or_default();
    let is_named = |rank: &usize| {
        let own = || pairs.iter().filter(|group| group.ranks.contains(rank));
        let mut partners: Vec<usize> =
            own().flat_map(|group| &group.ranks).copied().filter(|other| other != rank).collect();
        partners.sort_unstable();
        partners.dedup();
        partners.len() > 1 && own().all(|group| is_bad(group))
    };
    let named: Vec<usize> = (0..=last).filter(is_named).collect();
    let mut others: Vec<[usize; 2]> = pairs
        .iter()
        .filter(|group| is_bad(group) && !group.ranks.iter().any(|rank| named.contains(rank)))
        .filter_map(|group| group.ranks.as_slice().try_into().ok())
        .collect();
    others.dedup();
    (named, others)
}

impl Display for Verdict {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.measured.fmt(f)?;
        match self.sentences() {
            none if none.is_empty() => writeln!(f, "# no rank is slow or wrong"),
            sentences => sentences.iter().try_for_each(|sentence| writeln!(f, "# {sentence}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Verdict;
    use crate::bench::bisect::measured::Measured;
    use crate::bench::bisect::stages::Stage;

    /// Returns the verdict on eight ranks, where a group takes the time and has the wrong elements that `outcome` says.
    fn verdict(ranks: usize, outcome: impl Fn(&[usize]) -> (f64, f64)) -> Verdict {
        judge(ranks, true, |group| {
            let (time, wrong) = outcome(group);
            [time, time, wrong]
        })
    }

    /// Does the same with a latency besides the time, and compares latencies or not.
    fn judge(ranks: usize, compares_latency: bool, outcome: impl Fn(&[usize]) -> [f64; 3]) -> Verdict {
        let stages = Stage::all(ranks);
        let values = |rank: usize| {
            let of_stage = |stage: &Stage| match stage.color(rank) {
                Some(color) => {
                    let [latency, time, wrong] = outcome(&stage.groups[color]);
                    [latency, time, wrong, 0.0]
                }
                None => [0.0; 4],
            };
            stages.iter().flat_map(of_stage).collect()
        };
        let values: Vec<Vec<f64>> = (0..ranks).map(values).collect();
        let head = ["2.32.3".into(), "threads".into()];
        Verdict::new(Measured::new(head, &stages, &[values], 2.0, compares_latency))
    }

    #[test]
    fn slow_and_wrong_ranks_are_named() {
        for ranks in 3..20 {
            for rank in 0..ranks {
                let other = (rank + 1) % ranks;
                let verdict = verdict(ranks, |group| {
                    let time = if group.contains(&rank) { 100.0 } else { 10.0 };
                    (time, if group.contains(&other) { 1.0 } else { 0.0 })
                });
                // Each of three ranks has only one partner that is not slow, and with it a pair that is not.
                assert_eq!(
                    (&verdict.slow[..], &verdict.wrong[..]),
                    (&[rank][..], &[other][..]),
                    "{ranks} ranks"
                );
                assert!(verdict.slow_pairs.is_empty() && verdict.wrong_pairs.is_empty(), "{verdict}");
                assert_eq!(verdict.sentences().len(), 2, "{verdict}");
            }
        }
    }

    #[test]
    fn slow_pair_is_named_and_its_ranks_are_not() {
        let verdict = verdict(8, |group| (if group == [4, 5] { 50.0 } else { 10.0 }, 0.0));
        assert_eq!((&verdict.slow[..], &verdict.slow_pairs[..]), (&[][..], &[[4, 5]][..]));
        let expected = "ranks 4 and 5 are slow with each other: 5.0 times the time of the fastest pair";
        assert_eq!(verdict.sentences(), [expected]);
    }

    #[test]
    fn healthy_ranks_are_not_named() {
        let verdict = verdict(8, |group| (10.0 * group.len() as f64, 0.0));
        assert_eq!(verdict.sentences(), [""; 0]);
        assert!(verdict.to_string().ends_with("# no rank is slow or wrong\n"), "{verdict}");
    }

    #[test]
    fn latencies_of_ranks_that_share_processors_are_not_compared() {
        let outcome = |group: &[usize]| [if group == [2, 3] { 58.0 } else { 12.0 }, 75.0, 0.0];
        assert_eq!(judge(8, true, outcome).slow_pairs, [[2, 3]]);
        let verdict = judge(8, false, outcome);
        assert_eq!(verdict.sentences(), [""; 0]);
        assert!(verdict.to_string().contains("\n# latencies are not compared"), "{verdict}");
        let verdict = judge(8, false, |group| [12.0, if group.contains(&3) { 570.0 } else { 75.0 }, 0.0]);
        assert_eq!(verdict.slow, [3]);
    }

    #[test]
    fn fault_of_no_pair_is_reported() {
        let verdict = verdict(8, |group| (10.0, if group.len() > 4 { 1.0 } else { 0.0 }));
        assert!(verdict.wrong.is_empty() && verdict.wrong_pairs.is_empty());
        let expected = "sums are wrong in large groups and in no pair that was tried; try nccl bench pairs";
        assert_eq!(verdict.sentences(), [expected]);
    }
}
