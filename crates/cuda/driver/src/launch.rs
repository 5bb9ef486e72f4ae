//! The launch of graphs: each node becomes an operation of a stream.

use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::CUresult::*;

use crate::driver::Driver;
use crate::error::Result;
use crate::event::{LastRecord, Record};
use crate::finding::Finding;
use crate::handle::{EventId, ExecId, GraphId, StreamId};
use crate::operation::Work;
use crate::report::say;
use crate::scheduler::{Ordering, Point};
use crate::state::{Action, Exec, Request, State};

impl State {
    /// Instantiates a graph, with a new stream for each captured one but the first.
    pub(crate) fn instantiate(&mut self, graph: GraphId, flags: u64) -> Result<ExecId> {
        let (graph, references) = self.graphs.get(&graph).cloned().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        graph.lanes.iter().try_for_each(|&context| self.check(context))?;
        let others = graph.lanes.iter().skip(1);
        let streams = others.map(|&context| self.open_stream(context, Ordering::NonBlocking, 0)).collect();
        let id = ExecId(self.next_handle());
        self.execs.insert(id, Exec { graph, flags, streams, references, last: Point::default() });
        Ok(id)
    }
}

impl Driver {
    /// Enqueues the operations of a graph: after the stream's previous work and the graph's last launch, before the stream's later
    /// work. Returns the point after them.
    pub(crate) fn launch(&'static self, state: &mut State, id: ExecId, stream: StreamId) -> Result<Point> {
        let exec = state.execs.get(&id).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if let Some(freed) = exec.memory().find(|one| !state.allocations.has(one)) {
            let text = format!("cuGraphLaunch of a graph that uses {}, which was freed", freed.description());
            say(self.config, Finding::FreeUnderReference, 1, &text, true);
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (graph, streams, last) = (Arc::clone(&exec.graph), exec.streams.clone(), exec.last.clone());
        let references = exec.references.clone();
        // All that can fail, so that a launch is enqueued as a whole or not at all.
        for &lane in &streams {
            let context = state.streams.get(&lane).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)?.context;
            state.check(context)?;
            self.start_worker(state, lane)?;
        }
        let nothing = || Request::of("cuGraphLaunch", Work::Nothing);
        let begin = self.enqueue(state, stream, &last, nothing())?;
        let mut points: Vec<Point> = Vec::with_capacity(graph.nodes.len());
        for node in &graph.nodes {
            let on = node.lane.checked_sub(1).map_or(stream, |other| streams[other]);
            let mut wait = if node.after.is_empty() { begin.clone() } else { Point::default() };
            graph.waits_for(node).for_each(|earlier| wait.join(&points[earlier]));
            points.push(match &node.action {
                Action::Execute(request) => self.enqueue(state, on, &wait, request.clone())?,
                Action::Record(event) => self.record(state, *event, on, &wait)?,
                Action::Wait(event) => {
                    let event = state.events.get(event).map(|event| &event.last);
                    if let Some(LastRecord::Enqueued(record)) = event {
                        wait.join(&record.point);
                    }
                    self.enqueue(state, on, &wait, Request::of("event wait", Work::Nothing))?
                }
            });
        }
        let mut end = begin;
        graph.last_of_lanes().for_each(|node| end.join(&points[node]));
        if !streams.is_empty() || !references.is_empty() {
            let request = Request::of("cuGraphLaunch", Work::Release(references));
            end = self.enqueue(state, stream, &end, request)?;
        }
        if let Some(exec) = state.execs.get_mut(&id) {
            exec.last = end.clone();
        }
        Ok(end)
    }

    pub(crate) fn record(
        &'static self,
        state: &mut State,
        event: EventId,
        stream: StreamId,
        wait: &Point,
    ) -> Result<Point> {
        let time = Arc::new(OnceLock::new());
        let request = Request::of("cuEventRecord", Work::Record(Arc::clone(&time)));
        let mut point = self.enqueue(state, stream, wait, request)?;
        if let Some(shared) = state.events.get(&event).and_then(|event| event.shared.clone()) {
            let record = shared.record();
            let work = Work::Complete { shared, record };
            point = self.enqueue(state, stream, wait, Request::of("cuEventRecord", work))?;
        }
        if let Some(event) = state.events.get_mut(&event) {
            event.last = LastRecord::Enqueued(Record { point: point.clone(), time });
        }
        Ok(point)
    }
}
