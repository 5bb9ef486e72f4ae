//! The recorder of a communicator: the last operations that it was given, in a ring that any thread reads at any time.
//!
//! One thread writes, that which uses the communicator. It takes no lock, and waits for nobody.
#![allow(unsafe_code)]

mod clock;
mod document;
mod dump;
mod entry;
mod method;
pub(crate) mod pytorch;
mod record;
mod ring;
#[cfg(all(unix, feature = "signal"))]
mod signal;

pub(crate) use document::Document;
pub(crate) use dump::{CommunicatorDump, process_document};
// Public in a private module, as a sealed trait's hidden methods take it.
#[allow(unreachable_pub)]
pub use entry::Entry;
pub(crate) use entry::peer;
pub(crate) use entry::{IS_FIRST_OF_GROUP, IS_GROUPED, encode_raw};
pub(crate) use method::Method;
pub(crate) use record::{Place, records};
pub use record::{Record, RecordState};
pub(crate) use ring::Ring;
#[cfg(all(unix, feature = "signal"))]
pub(crate) use signal::{on_signal, on_signal_of_environment};
