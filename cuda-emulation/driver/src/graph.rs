//! Graphs: operations that were captured from streams, to be enqueued any number of times.

use std::collections::BTreeSet;

use crate::handle::{ContextId, NodeId};
use crate::user_object::References;

/// A node of a graph, which does an `A`.
#[derive(Debug)]
pub(crate) struct Node<A> {
    /// Its handle.
    pub(crate) handle: NodeId,
    /// The stream that it was captured from, by its place in the graph's list.
    pub(crate) lane: usize,
    /// The nodes that it comes after, by number: those before it on its lane, and those that this one waited for.
    pub(crate) after: Vec<usize>,
    /// Its action.
    pub(crate) action: A,
}

/// A graph of actions.
#[derive(Debug)]
pub(crate) struct Graph<A> {
    /// The contexts of the streams that it was captured from, the one of the capture's begin first.
    pub(crate) lanes: Vec<ContextId>,
    /// The nodes, in the order of the calls: each comes after earlier ones only.
    pub(crate) nodes: Vec<Node<A>>,
    /// The user objects that a capture has been told to keep.
    pub(crate) references: References,
}

impl<A> Graph<A> {
    /// Returns whether each node is one of `ends` or comes before one of them.
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

    /// The earlier nodes on other lanes that a node waits for.
    pub(crate) fn waits_for<'a>(&'a self, node: &'a Node<A>) -> impl Iterator<Item = usize> + 'a {
        node.after.iter().copied().filter(|&earlier| self.nodes[earlier].lane != node.lane)
    }

    /// The last node of each lane that has one.
    pub(crate) fn last_of_lanes(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.lanes.len()).filter_map(|lane| self.nodes.iter().rposition(|node| node.lane == lane))
    }
}
