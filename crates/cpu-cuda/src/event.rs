//! Events.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::handle::ContextId;
use crate::scheduler::Point;

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    /// Its context.
    pub(crate) context: ContextId,
    /// True if it notes the time.
    pub(crate) has_timing: bool,
    /// Its last record, if it was recorded.
    pub(crate) record: Option<Record>,
}

/// A record of an event.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// The point behind it.
    pub(crate) point: Point,
    /// The time at which it was executed.
    pub(crate) time: Arc<OnceLock<Instant>>,
}
