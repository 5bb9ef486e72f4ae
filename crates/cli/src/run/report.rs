use std::io;

use super::machine::Event;

/// A message from a thread of the supervisor to its main thread, which acts on them in their order.
pub(super) enum Report {
    Event(Event),
    /// A rank has ended, and is to be waited for.
    Ended(usize),
    /// Output was lost.
    CannotPrint(io::Error),
}
