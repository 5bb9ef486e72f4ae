//! Graphs: operations captured from streams, to be launched any number of times.

use std::collections::BTreeSet;

use crate::callback::References;
use crate::handle::{ContextId, GraphId, NodeId};

pub(crate) struct Node<A> {
    pub(crate) handle: NodeId,
    /// The index of the stream that the node was captured from.
    pub(crate) lane: usize,
    /// The nodes that it depends on: its predecessor on the lane, and nodes that this one waited for.
    pub(crate) after: Vec<usize>,
    pub(crate) action: A,
}

pub(crate) struct Graph<A> {
    /// The contexts of the captured streams, the origin's first.
    pub(crate) lanes: Vec<ContextId>,
    /// In the order of the calls, so that nodes only depend on earlier ones.
    pub(crate) nodes: Vec<Node<A>>,
    /// The user objects that were retained during the capture.
    pub(crate) references: References,
}

/// A point in a captured graph, which an event can record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CapturedPoint {
    pub(crate) graph: GraphId,
    pub(crate) nodes: Vec<usize>,
}

impl<A> Graph<A> {
    pub(crate) fn is_before(&self, ends: &[usize]) -> bool {
        let mut reached = BTreeSet::new();
        let mut open = ends.to_vec();
        while let Some(number) = open.pop() {
            if let (true, Some(node)) = (reached.insert(number), self.nodes.get(number)) {
                open.extend_from_slice(&node.after);
            }
        }
        reached.len() == self.nodes.len()
    }

    pub(crate) fn waits_for<'a>(&'a self, node: &'a Node<A>) -> impl Iterator<Item = usize> + 'a {
        node.after.iter().copied().filter(|&earlier| self.nodes[earlier].lane != node.lane)
    }

    pub(crate) fn last_of_lanes(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.lanes.len()).filter_map(|lane| self.nodes.iter().rposition(|node| node.lane == lane))
    }
}
