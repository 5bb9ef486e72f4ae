//! The events that the supervisor waits for.

use std::io;

/// An event.
pub(super) enum Event {
    /// A signal for the ranks.
    Signal(i32),
    /// A rank has ended.
    Ended(usize),
    /// Output was lost.
    CannotPrint(io::Error),
}
