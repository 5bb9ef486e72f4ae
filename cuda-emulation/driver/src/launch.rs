//! The launch of graphs: each node becomes an operation of a stream.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use cuda_common::finding::Finding;
use cudarc::driver::sys::CUresult;

use crate::driver::{Action, Driver, Exec, Request, State};
use crate::error::Result;
use crate::event::{LastRecord, Record};
use crate::handle::{EventId, ExecId, GraphId, StreamId};
use crate::operation::Work;
use crate::scheduler::{Ordering, Point};

impl State {
    /// Makes a graph that can be launched; it has a stream for each that was captured but the first.
    pub(crate) fn instantiate(&mut self, graph: GraphId, flags: u64) -> Result<ExecId> {
        let (graph, references) =
            self.graphs.get(&graph).cloned().ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        graph.lanes.iter().try_for_each(|&context| self.check(context))?;
        let others = graph.lanes.iter().skip(1);
        let streams = others.map(|&context| self.open_stream(context, Ordering::NonBlocking, 0, 0)).collect();
        let id = ExecId(self.next_handle());
        self.execs.insert(id, Exec { graph, flags, streams, references, last: Point::default() });
        Ok(id)
    }
}

impl Driver {
    /// Enqueues the operations of a graph: after what is on the stream, after its last launch, and before all that will
    /// be on the stream. Returns the point after them.
    pub(crate) fn launch(&'static self, state: &mut State, id: ExecId, stream: StreamId) -> Result<Point> {
        let exec = state.execs.get(&id).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if let Some(freed) = exec.memory().find(|one| !state.allocations.has(one)) {
            let text = format!("cuGraphLaunch of a graph that uses {}, which was freed", freed.description());
            self.say(Finding::FreeUnderReference, 1, &text, true);
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let (graph, streams, last) = (Arc::clone(&exec.graph), exec.streams.clone(), exec.last.clone());
        let references = exec.references.clone();
        // All that can fail, so that a launch is enqueued as a whole or not at all.
        for &lane in &streams {
            let context = state.streams.get(&lane).ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)?.context;
            state.check(context)?;
            self.start_worker(state, lane)?;
        }
        let nothing = || Request::new("cuGraphLaunch", Vec::new(), Work::Nothing);
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
                    self.enqueue(
                        state,
                        on,
                        &wait,
                        Request { label: Cow::Borrowed("event wait"), ..nothing() },
                    )?
                }
            });
        }
        let mut end = begin;
        graph.last_of_lanes().for_each(|node| end.join(&points[node]));
        if !streams.is_empty() || !references.is_empty() {
            let request = Request { work: Work::Release(references), ..nothing() };
            end = self.enqueue(state, stream, &end, request)?;
        }
        if let Some(exec) = state.execs.get_mut(&id) {
            exec.last = end.clone();
        }
        Ok(end)
    }

    /// Enqueues a record of an event, if that has not been destroyed.
    pub(crate) fn record(
        &'static self,
        state: &mut State,
        event: EventId,
        stream: StreamId,
        wait: &Point,
    ) -> Result<Point> {
        let time = Arc::new(OnceLock::new());
        let request = Request::new("cuEventRecord", Vec::new(), Work::Record(Arc::clone(&time)));
        let mut point = self.enqueue(state, stream, wait, request)?;
        if let Some(shared) = state.events.get(&event).and_then(|event| event.shared.clone()) {
            let record = shared.record();
            let work = Work::Complete { shared, record };
            point = self.enqueue(state, stream, wait, Request::new("cuEventRecord", Vec::new(), work))?;
        }
        if let Some(event) = state.events.get_mut(&event) {
            event.last = LastRecord::Enqueued(Record { point: point.clone(), time });
        }
        Ok(point)
    }
}
