//! Captures: the operations of captured streams are not executed, but become the nodes of a graph, which can be launched any
//! number of times.
//!
//! Everything here is decided under the driver's lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cudarc::driver::sys::CUresult::*;

use crate::callback::{References, UserObject};
use crate::current::Mode;
use crate::error::{Result, ensure};
use crate::handle::{ContextId, GraphId, NodeId, StreamId, UserObjectId};

pub(crate) struct Node<A> {
    pub(crate) handle: NodeId,
    /// The index of the stream from which the node was captured.
    pub(crate) lane: usize,
    /// The nodes on which this node depends: its predecessor on the lane, and nodes for which the stream waited.
    pub(crate) after: Vec<usize>,
    pub(crate) action: A,
}

pub(crate) struct Graph<A> {
    /// The contexts of the captured streams, the origin's first.
    pub(crate) lanes: Vec<ContextId>,
    /// The nodes in the order of the calls, so that a node depends only on earlier nodes.
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

struct Lane {
    number: usize,
    /// The nodes that the next node depends on.
    ends: Vec<usize>,
    /// The handles of `ends` as last returned to the program.
    returned: Vec<NodeId>,
}

struct Capture<A> {
    origin: StreamId,
    thread: u64,
    mode: Mode,
    is_valid: bool,
    graph: Graph<A>,
    lanes: BTreeMap<StreamId, Lane>,
}

pub(crate) struct Captures<A> {
    captures: BTreeMap<GraphId, Capture<A>>,
}

impl<A> Captures<A> {
    pub(crate) fn new() -> Self {
        Self { captures: BTreeMap::new() }
    }

    pub(crate) fn begin(
        &mut self,
        graph: GraphId,
        stream: StreamId,
        context: ContextId,
        thread: u64,
        mode: Mode,
    ) -> Result<()> {
        ensure(self.of(stream).is_none(), CUDA_ERROR_ILLEGAL_STATE)?;
        let lane = Lane { number: 0, ends: Vec::new(), returned: Vec::new() };
        let capture = Capture {
            origin: stream,
            thread,
            mode,
            is_valid: true,
            graph: Graph { lanes: vec![context], nodes: Vec::new(), references: References::default() },
            lanes: BTreeMap::from([(stream, lane)]),
        };
        self.captures.insert(graph, capture);
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.captures.is_empty()
    }

    pub(crate) fn of(&self, stream: StreamId) -> Option<GraphId> {
        let has_stream = |capture: &Capture<A>| capture.lanes.contains_key(&stream);
        self.captures.iter().find(|(_, capture)| has_stream(capture)).map(|(&graph, _)| graph)
    }

    pub(crate) fn is_valid(&self, graph: GraphId) -> bool {
        self.captures.get(&graph).is_some_and(|capture| capture.is_valid)
    }

    pub(crate) fn streams(&self) -> impl Iterator<Item = (StreamId, GraphId)> + '_ {
        let captures = self.captures.iter();
        captures.flat_map(|(&graph, capture)| capture.lanes.keys().map(move |&stream| (stream, graph)))
    }

    pub(crate) fn references(&mut self, graph: GraphId) -> Option<&mut References> {
        self.captures.get_mut(&graph).map(|capture| &mut capture.graph.references)
    }

    pub(crate) fn user_object(&self, id: UserObjectId) -> Option<&Arc<UserObject>> {
        self.captures.values().find_map(|capture| capture.graph.references.get(id))
    }

    /// Returns the captures that prohibit potentially unsafe calls of a thread in this mode.
    pub(crate) fn prohibiting(&self, thread: u64, mode: Mode) -> Vec<GraphId> {
        let prohibits = |capture: &Capture<A>| match mode {
            Mode::Relaxed => false,
            _ if capture.thread == thread => capture.mode != Mode::Relaxed,
            Mode::ThreadLocal => false,
            Mode::Global => capture.mode == Mode::Global,
        };
        self.captures.iter().filter(|(_, capture)| prohibits(capture)).map(|(&graph, _)| graph).collect()
    }

    pub(crate) fn invalidate(&mut self, graph: GraphId) {
        if let Some(capture) = self.captures.get_mut(&graph) {
            capture.is_valid = false;
        }
    }

    fn valid(&mut self, graph: GraphId) -> Result<&mut Capture<A>> {
        let capture = self.captures.get_mut(&graph).filter(|capture| capture.is_valid);
        capture.ok_or(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
    }

    fn lane(&mut self, stream: StreamId) -> Result<(GraphId, &mut Graph<A>, &mut Lane)> {
        let graph = self.of(stream).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        let capture = self.valid(graph)?;
        let lane = capture.lanes.get_mut(&stream).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        Ok((graph, &mut capture.graph, lane))
    }

    pub(crate) fn add(&mut self, stream: StreamId, handle: NodeId, action: A) -> Result<()> {
        let (_, graph, lane) = self.lane(stream)?;
        let after = std::mem::replace(&mut lane.ends, vec![graph.nodes.len()]);
        graph.nodes.push(Node { handle, lane: lane.number, after, action });
        Ok(())
    }

    pub(crate) fn point(&mut self, stream: StreamId) -> Result<CapturedPoint> {
        let (graph, _, lane) = self.lane(stream)?;
        Ok(CapturedPoint { graph, nodes: lane.ends.clone() })
    }

    /// Returns the dependencies of a stream's next node. The pointer is valid until the next call.
    pub(crate) fn dependencies(&mut self, stream: StreamId) -> Result<&[NodeId]> {
        let (_, graph, lane) = self.lane(stream)?;
        lane.returned = lane.ends.iter().map(|&node| graph.nodes[node].handle).collect();
        Ok(&lane.returned)
    }

    /// Orders a stream after a point of a capture, which the stream joins.
    pub(crate) fn join(&mut self, stream: StreamId, context: ContextId, point: &CapturedPoint) -> Result<()> {
        match self.of(stream) {
            Some(own) if own != point.graph => {
                self.invalidate(own);
                ensure(self.captures.contains_key(&point.graph), CUDA_ERROR_STREAM_CAPTURE_ISOLATION)?;
                self.invalidate(point.graph);
                return Err(CUDA_ERROR_STREAM_CAPTURE_MERGE);
            }
            None if !self.captures.contains_key(&point.graph) => {
                return Err(CUDA_ERROR_CAPTURED_EVENT);
            }
            _ => {}
        }
        let Capture { graph, lanes, .. } = self.valid(point.graph)?;
        let lane = lanes.entry(stream).or_insert_with(|| {
            graph.lanes.push(context);
            Lane { number: graph.lanes.len() - 1, ends: Vec::new(), returned: Vec::new() }
        });
        lane.ends.extend_from_slice(&point.nodes);
        lane.ends.sort_unstable();
        lane.ends.dedup();
        Ok(())
    }

    /// Ends the capture that began on a stream. Returns the graph, and whether it is usable.
    ///
    /// # Errors
    /// Returns an error if the stream is not being captured, or if the capture began on another stream. Also returns an error if
    /// the capture began in another thread, unless its mode is relaxed. The capture continues. If it began on another stream, it
    /// is invalidated.
    pub(crate) fn end(&mut self, stream: StreamId, thread: u64) -> Result<(Result<GraphId>, Graph<A>)> {
        let id = self.of(stream).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        let capture = self.captures.get_mut(&id).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.origin != stream {
            capture.is_valid = false;
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let may_end = capture.mode == Mode::Relaxed || capture.thread == thread;
        ensure(may_end, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)?;
        let ended = self.captures.remove(&id).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        let ends = ended.lanes.get(&stream).map_or(&[][..], |lane| &lane.ends);
        let result = if !ended.is_valid {
            Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        } else if !ended.graph.is_before(ends) {
            Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
        } else {
            Ok(id)
        };
        Ok((result, ended.graph))
    }

    /// Drops the captures whose origin stream was destroyed. Returns their graphs.
    pub(crate) fn discard(&mut self, is_gone: impl Fn(StreamId) -> bool) -> Vec<Graph<A>> {
        let gone = self.captures.iter().filter(|(_, capture)| is_gone(capture.origin));
        let gone: Vec<GraphId> = gone.map(|(&graph, _)| graph).collect();
        gone.iter().filter_map(|graph| self.captures.remove(graph)).map(|capture| capture.graph).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: ContextId = ContextId(1);
    const OTHER_CONTEXT: ContextId = ContextId(2);
    const ONE: StreamId = StreamId(11);
    const TWO: StreamId = StreamId(12);
    const FIRST: GraphId = GraphId(21);
    const SECOND: GraphId = GraphId(22);
    const THREAD: u64 = 1;
    const OTHER_THREAD: u64 = 2;

    fn begin(captures: &mut Captures<&'static str>, graph: GraphId, stream: StreamId, mode: Mode) {
        captures.begin(graph, stream, CONTEXT, THREAD, mode).unwrap();
    }

    fn captured() -> Captures<&'static str> {
        let mut captures = Captures::new();
        begin(&mut captures, FIRST, ONE, Mode::Global);
        captures
    }

    fn add(captures: &mut Captures<&'static str>, stream: StreamId, action: &'static str) {
        captures.add(stream, NodeId(0), action).unwrap();
    }

    fn end(captures: &mut Captures<&'static str>) -> Result<Graph<&'static str>> {
        let (result, graph) = captures.end(ONE, THREAD)?;
        result.map(|_| graph)
    }

    #[test]
    fn nodes_of_a_stream_come_one_after_the_other() {
        let mut captures = captured();
        ["a", "b", "c"].into_iter().for_each(|action| add(&mut captures, ONE, action));
        let graph = end(&mut captures).unwrap();
        let after: Vec<_> = graph.nodes.iter().map(|node| (node.action, node.after.clone())).collect();
        assert_eq!(after, [("a", vec![]), ("b", vec![0]), ("c", vec![1])]);
        assert!(captures.is_empty());
    }

    #[test]
    fn stream_that_waits_is_captured_too_and_has_to_be_joined() {
        for is_joined in [true, false] {
            let mut captures = captured();
            add(&mut captures, ONE, "a");
            let fork = captures.point(ONE).unwrap();
            captures.join(TWO, OTHER_CONTEXT, &fork).unwrap();
            add(&mut captures, ONE, "b");
            add(&mut captures, TWO, "c");
            if is_joined {
                let join = captures.point(TWO).unwrap();
                captures.join(ONE, CONTEXT, &join).unwrap();
            }
            add(&mut captures, ONE, "d");
            let ended = end(&mut captures);
            assert_eq!(captures.of(TWO), None);
            if !is_joined {
                assert_eq!(ended.err(), Some(CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
                continue;
            }
            let graph = ended.unwrap();
            assert_eq!(graph.lanes, [CONTEXT, OTHER_CONTEXT]);
            let lanes: Vec<_> = graph.nodes.iter().map(|node| (node.lane, node.after.clone())).collect();
            assert_eq!(lanes, [(0, vec![]), (0, vec![0]), (1, vec![0]), (0, vec![1, 2])]);
            assert_eq!(graph.waits_for(&graph.nodes[3]).collect::<Vec<_>>(), [2]);
            assert_eq!(graph.last_of_lanes().collect::<Vec<_>>(), [3, 2]);
        }
    }

    #[test]
    fn stream_that_only_waits_need_not_be_joined() {
        let mut captures = captured();
        add(&mut captures, ONE, "a");
        let fork = captures.point(ONE).unwrap();
        captures.join(TWO, CONTEXT, &fork).unwrap();
        assert_eq!(end(&mut captures).unwrap().nodes.len(), 1);
    }

    #[test]
    fn wait_for_another_capture_invalidates_both() {
        let mut captures = captured();
        begin(&mut captures, SECOND, TWO, Mode::Global);
        let point = captures.point(TWO).unwrap();
        let merged = captures.join(ONE, CONTEXT, &point);
        assert_eq!(merged, Err(CUDA_ERROR_STREAM_CAPTURE_MERGE));
        for stream in [ONE, TWO] {
            let added = captures.add(stream, NodeId(0), "a");
            assert_eq!(added, Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
            let (ended, _) = captures.end(stream, THREAD).unwrap();
            assert_eq!(ended, Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
        }
    }

    #[test]
    fn point_of_a_capture_that_ended_is_an_error() {
        let mut captures = captured();
        add(&mut captures, ONE, "a");
        let point = captures.point(ONE).unwrap();
        end(&mut captures).unwrap();
        assert_eq!(captures.join(TWO, CONTEXT, &point), Err(CUDA_ERROR_CAPTURED_EVENT));
        begin(&mut captures, SECOND, TWO, Mode::Global);
        let joined = captures.join(TWO, CONTEXT, &point);
        assert_eq!(joined, Err(CUDA_ERROR_STREAM_CAPTURE_ISOLATION));
    }

    #[test]
    fn capture_ends_where_and_by_whom_it_was_begun() {
        let mut captures = captured();
        let point = captures.point(ONE).unwrap();
        captures.join(TWO, CONTEXT, &point).unwrap();
        let error = |ended: Result<(Result<GraphId>, Graph<&str>)>| ended.err().unwrap();
        assert_eq!(error(captures.end(TWO, THREAD)), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        let wrong = error(captures.end(ONE, OTHER_THREAD));
        assert_eq!(wrong, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        assert!(captures.end(ONE, THREAD).is_ok());
        assert_eq!(error(captures.end(ONE, THREAD)), CUDA_ERROR_ILLEGAL_STATE);
        begin(&mut captures, SECOND, ONE, Mode::Relaxed);
        assert!(captures.end(ONE, OTHER_THREAD).is_ok());
    }

    #[test]
    fn capture_forbids_by_its_mode_and_the_threads() {
        let forbidden = |own, thread, mode| {
            let mut captures = Captures::new();
            begin(&mut captures, FIRST, ONE, own);
            !captures.prohibiting(thread, mode).is_empty()
        };
        let modes = [Mode::Global, Mode::ThreadLocal, Mode::Relaxed];
        let forbidden = |own, thread| modes.map(|mode| forbidden(own, thread, mode));
        assert_eq!(forbidden(Mode::Global, THREAD), [true, true, false]);
        assert_eq!(forbidden(Mode::Global, OTHER_THREAD), [true, false, false]);
        assert_eq!(forbidden(Mode::ThreadLocal, THREAD), [true, true, false]);
        assert_eq!(forbidden(Mode::ThreadLocal, OTHER_THREAD), [false, false, false]);
        assert_eq!(forbidden(Mode::Relaxed, THREAD), [false, false, false]);
    }

    #[test]
    fn capture_whose_stream_is_gone_is_dropped() {
        let mut captures = captured();
        add(&mut captures, ONE, "a");
        begin(&mut captures, SECOND, TWO, Mode::Global);
        assert_eq!(captures.discard(|stream| stream == ONE).len(), 1);
        assert_eq!((captures.of(ONE), captures.of(TWO)), (None, Some(SECOND)));
    }
}
