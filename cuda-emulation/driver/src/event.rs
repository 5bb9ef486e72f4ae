//! Events.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::capture::CapturedPoint;
use crate::handle::ContextId;
use crate::interprocess::SharedEvent;
use crate::scheduler::Point;

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    /// Its context.
    pub(crate) context: ContextId,
    /// True if it notes the time.
    pub(crate) has_timing: bool,
    /// Its last record by this process.
    pub(crate) last: LastRecord,
    /// The part that other processes know of it, if they can.
    pub(crate) shared: Option<Arc<SharedEvent>>,
}

/// The last record of an event.
#[derive(Debug, Clone)]
pub(crate) enum LastRecord {
    /// No record yet.
    Never,
    /// On a stream.
    Enqueued(Record),
    /// In a capture: nothing of it is executed.
    Captured(CapturedPoint),
}

/// A record of an event on a stream.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// The point behind it.
    pub(crate) point: Point,
    /// The time at which it was executed.
    pub(crate) time: Arc<OnceLock<Instant>>,
}
