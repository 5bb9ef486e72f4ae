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
    /// Whether it notes the time.
    pub(crate) has_timing: bool,
    /// Its last record, if it was recorded.
    pub(crate) record: Option<Record>,
}

/// A record of an event.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// What it comes after, itself included.
    pub(crate) point: Point,
    /// When it was executed.
    pub(crate) time: Arc<OnceLock<Instant>>,
}
