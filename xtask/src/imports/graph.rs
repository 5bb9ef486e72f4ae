//! Circles in a directed graph.

use std::collections::{BTreeMap, BTreeSet};

/// Returns the strongly connected components of more than one node.
pub(super) fn circles<N: Copy + Ord>(edges: impl Iterator<Item = (N, N)>) -> Vec<BTreeSet<N>> {
    let mut next: BTreeMap<N, BTreeSet<N>> = BTreeMap::new();
    for (from, to) in edges {
        next.entry(from).or_default().insert(to);
    }
    let reachable: BTreeMap<N, BTreeSet<N>> = next.keys().map(|node| (*node, reach(*node, &next))).collect();
    let mut circles: Vec<BTreeSet<N>> = Vec::new();
    for (node, reached) in &reachable {
        let circle: BTreeSet<N> = reached
            .iter()
            .copied()
            .filter(|other| reachable.get(other).is_some_and(|back| back.contains(node)))
            .collect();
        if circle.len() > 1 && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}

/// Returns the nodes that a path leads to from `start`.
fn reach<N: Copy + Ord>(start: N, next: &BTreeMap<N, BTreeSet<N>>) -> BTreeSet<N> {
    let mut reached = BTreeSet::new();
    let mut waiting = vec![start];
    while let Some(node) = waiting.pop() {
        for to in next.get(&node).into_iter().flatten() {
            if reached.insert(*to) {
                waiting.push(*to);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_circle_is_returned_once_with_its_nodes_alone() {
        let edges = [(1, 2), (2, 3), (3, 1), (3, 4), (4, 5), (5, 4), (5, 6), (7, 1), (8, 8)];
        assert_eq!(circles(edges.into_iter()), [BTreeSet::from([1, 2, 3]), BTreeSet::from([4, 5])]);
    }

    #[test]
    fn a_graph_without_circles_has_none() {
        assert!(circles([(1, 2), (1, 3), (2, 4), (3, 4)].into_iter()).is_empty());
    }
}
