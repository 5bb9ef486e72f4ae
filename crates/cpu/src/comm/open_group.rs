//! The calls in open groups: the calls of each communicator, for reports, and the objects that this thread's group creates, for errors
//! about handles that do not exist yet.

use std::cell::Cell;
use std::fmt;
use std::sync::Mutex;

use crate::coll::call::{CallHeader, ControlCall};
use crate::shm::process;
use crate::sync::lock;

#[derive(Clone, Copy, Default)]
struct Makes {
    /// The [generation](process::fork_generation) of the process. A forked child does not take part in its parent's group.
    generation: usize,
    communicator: bool,
    window: bool,
}

thread_local! {
    static MAKES: Cell<Makes> = Cell::default();
}

/// Records a call of this thread's group.
pub(super) fn note(call: QueuedCall) {
    let mut makes = Makes { generation: process::fork_generation(), ..MAKES.get() };
    match call {
        QueuedCall::Init(_) => makes.communicator = true,
        QueuedCall::Operation(CallHeader::Control { call: ControlCall::RegisterWindow, .. }) => {
            makes.window = true;
        }
        QueuedCall::Operation(_) => return,
    }
    MAKES.set(makes);
}

pub(super) fn clear() {
    MAKES.set(Makes::default());
}

/// If this thread's open group creates a `what`, explains that the `what` has no handle before the group ends.
pub(crate) fn explain_absence(what: &str) -> String {
    let Makes { generation, communicator, window } = MAKES.get();
    let is_made = if what == "communicator" { communicator } else { window };
    if !is_made || generation != process::fork_generation() {
        return String::new();
    }
    format!(
        "; this thread's group is open, and a {what} that it makes has a handle only after the outermost ncclGroupEnd"
    )
}

#[derive(Clone, Copy)]
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

/// The calls of a communicator's rank in an open group.
#[derive(Default)]
pub(crate) struct QueuedCalls(Mutex<Option<Queued>>);

struct Queued {
    first: QueuedCall,
    number: usize,
    is_reported: bool,
}

impl QueuedCalls {
    pub(crate) fn note(&self, call: QueuedCall) {
        lock(&self.0).get_or_insert(Queued { first: call, number: 0, is_reported: false }).number += 1;
    }

    pub(crate) fn clear(&self) {
        *lock(&self.0) = None;
    }

    /// Describes the calls, and returns whether they were described before. Returns `None` if there are none.
    pub(crate) fn describe(&self) -> Option<(String, bool)> {
        let mut queued = lock(&self.0);
        let Queued { first, number, is_reported } = queued.as_mut()?;
        let text = match *number {
            1 => format!("called {first} in a group that has not ended, so it has not run"),
            number => format!(
                "made {number} calls in a group that has not ended, so none of them has run, the first of them {first}"
            ),
        };
        Some((text, std::mem::replace(is_reported, true)))
    }
}
