//! The calls that are errors while streams are captured: those that wait, or could wait, for what is not executed.
//!
//! Such a call makes the capture fail, of which `cuStreamEndCapture` tells.

use cudarc::driver::sys::CUresult::*;

use crate::context::Current;
use crate::driver::State;
use crate::error::Result;
use crate::event::{LastRecord, Record};
use crate::handle::{ContextId, EventId, GraphId, StreamId};

impl State {
    fn fail_captures(&mut self, graphs: Vec<GraphId>) -> Result<()> {
        if graphs.is_empty() {
            return Ok(());
        }
        graphs.into_iter().for_each(|graph| self.captures.invalidate(graph));
        Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }

    pub(crate) fn check_not_captured(&mut self, stream: StreamId) -> Result<()> {
        if !self.is_captured(stream)? {
            return Ok(());
        }
        let Some(graph) = self.captures.of(stream).filter(|&graph| self.captures.is_valid(graph)) else {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        };
        self.fail_captures(vec![graph])
    }

    /// Invalidates the capture of a stream that would wait for uncaptured work.
    pub(crate) fn fail_capture_of(&mut self, stream: StreamId) -> Result<()> {
        if let Some(graph) = self.captures.of(stream) {
            self.captures.invalidate(graph);
        }
        Err(CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
    }

    pub(crate) fn check_context_not_captured(&mut self, context: ContextId) -> Result<()> {
        let is_own = |stream| self.context_of(stream) == Ok(context);
        let captured = self.captures.streams().filter(|&(stream, _)| is_own(stream));
        let captured = captured.map(|(_, graph)| graph).collect();
        self.fail_captures(captured)
    }

    /// Checks that the calling thread may wait for streams: no capture prohibits it, and the thread does not
    /// execute a host function.
    pub(crate) fn check_may_wait(&mut self) -> Result<()> {
        Current::check_is_no_function()?;
        if self.captures.is_empty() {
            return Ok(());
        }
        let (thread, mode) = (self.thread(), Current::capture_mode());
        let forbidding = self.captures.forbidding(thread, mode);
        self.fail_captures(forbidding)
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
