//! What calls do if streams are captured. Calls that may wait are errors then, because captured work is not executed.
//!
//! Such a call invalidates the capture, which `cuStreamEndCapture` reports.

use std::sync::Arc;

use cudarc::driver::sys::CUresult;
use cudarc::driver::sys::CUresult::*;

use crate::callback::{References, UserObject};
use crate::current::Current;
use crate::error::Result;
use crate::event::{LastRecord, Record};
use crate::handle::{ContextId, EventId, GraphId, NodeId, StreamId, UserObjectId};
use crate::state::{Action, NON_BLOCKING, State};

impl State {
    pub(crate) fn capture(&mut self, stream: StreamId, action: Action) -> Result<()> {
        let node = NodeId(self.next_handle());
        self.captures.add(stream, node, action)
    }

    pub(crate) fn user_object(&self, id: UserObjectId) -> Result<Arc<UserObject>> {
        let of_graphs = self.graphs.values().map(|(_, references)| references);
        let of_execs = self.execs.values().map(|exec| &exec.references);
        let mut all = [&self.user_objects].into_iter().chain(of_graphs).chain(of_execs);
        let object = all.find_map(|references| references.get(id)).or_else(|| self.captures.user_object(id));
        object.cloned().ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    pub(crate) fn references(&mut self, graph: GraphId) -> Result<&mut References> {
        let references = self.graphs.get_mut(&graph).map(|(_, references)| references);
        references.or_else(|| self.captures.references(graph)).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Returns whether a stream is captured.
    ///
    /// # Errors
    ///
    /// A default stream is implicitly ordered with a captured stream. The capture is invalidated.
    pub(crate) fn is_captured(&mut self, stream: StreamId) -> Result<bool> {
        if self.captures.of(stream).is_some() {
            return Ok(true);
        }
        self.fail_captures(self.captured_with(stream), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)?;
        Ok(false)
    }

    /// The captures that a default stream is implicitly ordered with.
    pub(crate) fn captured_with(&self, stream: StreamId) -> Vec<GraphId> {
        let Ok(context) = self.context_of(stream) else { return Vec::new() };
        if self.contexts.get(&context).is_none_or(|context| context.default_stream != stream) {
            return Vec::new();
        }
        let is_ordered = |stream: StreamId| {
            let stream = self.streams.get(&stream);
            stream.is_some_and(|stream| stream.context == context && stream.flags & NON_BLOCKING == 0)
        };
        let captured = self.captures.streams().filter(|&(stream, _)| is_ordered(stream));
        captured.map(|(_, graph)| graph).collect()
    }

    fn fail_captures(&mut self, graphs: Vec<GraphId>, error: CUresult) -> Result<()> {
        graphs.iter().for_each(|&graph| self.captures.invalidate(graph));
        if graphs.is_empty() { Ok(()) } else { Err(error) }
    }

    /// Checks that a stream is not captured, for calls that cannot be nodes.
    pub(crate) fn check_not_captured(&mut self, stream: StreamId) -> Result<()> {
        if !self.is_captured(stream)? {
            return Ok(());
        }
        let Some(graph) = self.captures.of(stream).filter(|&graph| self.captures.is_valid(graph)) else {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        };
        self.fail_captures(vec![graph], CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Checks that no stream of a context is captured, for calls that wait for all of them.
    pub(crate) fn check_context_not_captured(&mut self, context: ContextId) -> Result<()> {
        let is_own = |stream| self.context_of(stream) == Ok(context);
        let captured = self.captures.streams().filter(|&(stream, _)| is_own(stream));
        let captured = captured.map(|(_, graph)| graph).collect();
        self.fail_captures(captured, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Checks that the calling thread may wait for streams: no capture prohibits it, and the thread does not execute a host
    /// function.
    pub(crate) fn check_may_wait(&mut self) -> Result<()> {
        Current::check_is_no_function()?;
        if self.captures.is_empty() {
            return Ok(());
        }
        let prohibiting = self.captures.prohibiting(Current::thread(), Current::capture_mode());
        self.fail_captures(prohibiting, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Returns the last record of an event.
    ///
    /// # Errors
    ///
    /// The record is captured. The capture is invalidated.
    pub(crate) fn record_to_wait_for(&mut self, event: EventId) -> Result<Option<Record>> {
        match self.event(event)?.last.clone() {
            LastRecord::Never => Ok(None),
            LastRecord::Enqueued(record) => Ok(Some(record)),
            LastRecord::Captured(point) => {
                self.captures.invalidate(point.graph);
                Err(CUDA_ERROR_CAPTURED_EVENT)
            }
        }
    }
}
