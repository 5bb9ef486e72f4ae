//! Events.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::capture::CapturedPoint;
use crate::handle::ContextId;
use crate::interprocess::SharedEvent;
use crate::scheduler::Point;

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: ContextId,
    pub(crate) has_timing: bool,
    pub(crate) last: LastRecord,
    /// The part in shared memory, if the event is interprocess.
    pub(crate) shared: Option<Arc<SharedEvent>>,
}

#[derive(Debug, Clone)]
pub(crate) enum LastRecord {
    Never,
    Enqueued(Record),
    Captured(CapturedPoint),
}

#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) point: Point,
    /// The time of execution.
    pub(crate) time: Arc<OnceLock<Instant>>,
}
