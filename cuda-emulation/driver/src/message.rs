//! Messages to the user.

use std::io::{self, Write};

/// Writes a message to stderr in one piece, so that those of several processes do not mix. If stderr is closed, it is lost.
pub(crate) fn write(message: &str) {
    let _ = io::stderr().write_all(message.as_bytes());
}
