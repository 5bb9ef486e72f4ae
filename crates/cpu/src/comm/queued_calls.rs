//! The calls of a rank in a group that has not ended.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::coll::call_header::CallHeader;

/// A call that runs when its group ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum QueuedCall {
    Operation(CallHeader),
    /// A function that creates a communicator.
    Init(&'static str),
}

impl fmt::Display for QueuedCall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operation(header) => header.fmt(formatter),
            Self::Init(function) => formatter.write_str(function),
        }
    }
}

/// The calls of a communicator's rank in a group that has not ended.
#[derive(Debug, Default)]
pub(crate) struct QueuedCalls(Mutex<Option<Queued>>);

#[derive(Debug)]
struct Queued {
    first: QueuedCall,
    number: usize,
    is_reported: bool,
}

impl QueuedCalls {
    pub(crate) fn note(&self, call: QueuedCall) {
        self.queued().get_or_insert(Queued { first: call, number: 0, is_reported: false }).number += 1;
    }

    pub(crate) fn clear(&self) {
        *self.queued() = None;
    }

    /// Describes the calls, and returns whether they were described before; `None` if there are none.
    pub(crate) fn describe(&self) -> Option<(String, bool)> {
        let mut queued = self.queued();
        let Queued { first, number, is_reported } = queued.as_mut()?;
        let text = match *number {
            1 => format!("called {first} in a group that has not ended, so it has not run"),
            number => format!(
                "made {number} calls in a group that has not ended, so none of them has run, the first of them {first}"
            ),
        };
        Some((text, std::mem::replace(is_reported, true)))
    }

    fn queued(&self) -> MutexGuard<'_, Option<Queued>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
