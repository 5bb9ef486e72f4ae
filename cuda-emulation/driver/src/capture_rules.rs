//! The calls that are errors while streams are captured: those that wait, or could wait, for what is not executed.
//!
//! Such a call makes the capture fail, of which `cuStreamEndCapture` tells.

use cudarc::driver::sys::CUresult;

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
        Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Checks that a stream is not captured, for calls that cannot be nodes.
    pub(crate) fn check_not_captured(&mut self, stream: StreamId) -> Result<()> {
        if !self.is_captured(stream)? {
            return Ok(());
        }
        let Some(graph) = self.captures.of(stream).filter(|&graph| self.captures.is_valid(graph)) else {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        };
        self.fail_captures(vec![graph])
    }

    /// Makes the capture of a stream fail, as it would have to wait for work outside it.
    pub(crate) fn fail_capture_of(&mut self, stream: StreamId) -> Result<()> {
        if let Some(graph) = self.captures.of(stream) {
            self.captures.invalidate(graph);
        }
        Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
    }

    /// Checks that no stream of a context is captured, for calls that wait for all of them.
    pub(crate) fn check_context_not_captured(&mut self, context: ContextId) -> Result<()> {
        let is_own = |stream| self.context_of(stream) == Ok(context);
        let captured = self.captures.streams().filter(|&(stream, _)| is_own(stream));
        let captured = captured.map(|(_, graph)| graph).collect();
        self.fail_captures(captured)
    }

    /// Checks that nothing forbids the calling thread what could wait for work of streams: no capture, and no function that it
    /// executes on one.
    pub(crate) fn check_may_wait(&mut self) -> Result<()> {
        Current::check_is_no_function()?;
        if self.captures.is_empty() {
            return Ok(());
        }
        let (thread, mode) = (self.thread(), Current::capture_mode());
        let forbidding = self.captures.forbidding(thread, mode);
        self.fail_captures(forbidding)
    }

    /// The last record of an event, if it has one.
    ///
    /// # Errors
    /// It is that of a capture, which fails.
    pub(crate) fn record_to_wait_for(&mut self, event: EventId) -> Result<Option<Record>> {
        match self.event(event)?.last.clone() {
            LastRecord::Never => Ok(None),
            LastRecord::Enqueued(record) => Ok(Some(record)),
            LastRecord::Captured(point) => {
                self.captures.invalidate(point.graph);
                Err(CUresult::CUDA_ERROR_CAPTURED_EVENT)
            }
        }
    }
}
