use std::io;

use super::machine::Event;

/// What the threads of the supervisor tell its main thread, in the order in which it acts on it.
pub(super) enum Report {
    Event(Event),
    /// A rank has ended, and is to be waited for.
    Ended(usize),
    /// Output was lost.
    CannotPrint(io::Error),
}
