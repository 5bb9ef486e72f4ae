//! The groups into which the ranks are divided, one after the other.

use serde::Serialize;

/// A division of the ranks into groups.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Stage {
    pub(crate) groups: Vec<Vec<usize>>,
}

impl Stage {
    /// Returns all ranks, halves of them, and so on down to groups of two or three; then pairs, so that each rank is in two
    /// with different partners, where there are more than two ranks.
    pub(crate) fn all(ranks: usize) -> Vec<Self> {
        let mut stages = vec![];
        let mut groups = vec![(0..ranks).collect::<Vec<_>>()];
        while groups.iter().any(|group| group.len() > 2) {
            let next: Vec<Vec<usize>> = groups.iter().flat_map(|group| halves(group)).collect();
            stages.push(Self { groups });
            if next.iter().any(|group| group.len() < 2) || next.iter().all(|group| group.len() == 2) {
                break;
            }
            groups = next;
        }
        let pairings = match ranks {
            ..=2 => 1,
            _ => 2 + ranks % 2,
        };
        stages.extend((0..pairings).map(|first| Self::pairs(ranks, first)));
        stages
    }

    /// Returns pairs of neighbours from `first` on; of an odd number of ranks, one is in none.
    fn pairs(ranks: usize, first: usize) -> Self {
        let pair = |index: usize| [0, 1].map(|side| (first + 2 * index + side) % ranks).to_vec();
        Self { groups: (0..ranks / 2).map(pair).collect() }
    }

    pub(crate) fn is_of_pairs(&self) -> bool {
        self.groups.iter().all(|group| group.len() == 2)
    }

    /// Returns the number of the group of a rank, if it is in one.
    pub(crate) fn color(&self, rank: usize) -> Option<usize> {
        self.groups.iter().position(|group| group.contains(&rank))
    }

    /// Returns the group of a rank, if it is in one.
    pub(crate) fn group(&self, rank: usize) -> Option<&[usize]> {
        self.groups.iter().map(Vec::as_slice).find(|group| group.contains(&rank))
    }

    /// Returns the other rank of a pair.
    pub(crate) fn partner(&self, rank: usize) -> Option<usize> {
        self.group(rank)?.iter().copied().find(|other| *other != rank)
    }
}

fn halves(group: &[usize]) -> Vec<Vec<usize>> {
    let (one, two) = group.split_at(group.len() / 2);
    vec![one.to_vec(), two.to_vec()]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Stage;

    #[test]
    fn eight_ranks_are_halved_down_to_pairs() {
        let groups: Vec<_> = Stage::all(8).into_iter().map(|stage| stage.groups).collect();
        assert_eq!(groups[0], [[0, 1, 2, 3, 4, 5, 6, 7]]);
        assert_eq!(groups[1], [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert_eq!(groups[2], [[0, 1], [2, 3], [4, 5], [6, 7]]);
        assert_eq!(groups[3], [[1, 2], [3, 4], [5, 6], [7, 0]]);
        assert_eq!(groups.len(), 4);
    }

    #[test]
    fn two_ranks_are_one_pair() {
        let stages = Stage::all(2);
        assert_eq!(stages, [Stage { groups: vec![vec![0, 1]] }]);
        assert_eq!((stages[0].partner(0), stages[0].partner(1)), (Some(1), Some(0)));
    }

    #[test]
    fn each_rank_has_two_partners_and_no_group_has_fewer_than_two_ranks() {
        for ranks in 3..40 {
            let stages = Stage::all(ranks);
            assert_eq!(stages[0].groups, [(0..ranks).collect::<Vec<_>>()], "{ranks}");
            assert!(stages.iter().flat_map(|stage| &stage.groups).all(|group| group.len() > 1), "{ranks}");
            let of_pairs = || stages.iter().filter(|stage| stage.is_of_pairs());
            for rank in 0..ranks {
                let partners: BTreeSet<_> = of_pairs().filter_map(|stage| stage.partner(rank)).collect();
                assert!(partners.len() >= 2, "rank {rank} of {ranks}: {partners:?}");
            }
        }
    }
}
