//! The recorder of a communicator: the last operations that it was given, in a ring that any thread reads at any time.
//!
//! One thread writes, that which uses the communicator. It takes no lock, and waits for nobody.
#![allow(unsafe_code)]

mod clock;
mod document;
mod dump;
mod entry;
pub(crate) mod pytorch;
mod record;
mod ring;
#[cfg(all(unix, feature = "signal"))]
mod signal;

pub(crate) use document::Document;
pub(crate) use dump::{CommunicatorDump, process_document};
pub(crate) use entry::{Entry, IS_FIRST_OF_GROUP, IS_GROUPED, encode_raw};
pub(crate) use record::{Place, records};
pub use record::{Record, RecordState};
pub(crate) use ring::Ring;
#[cfg(all(unix, feature = "signal"))]
pub(crate) use signal::{on_signal, on_signal_of_environment};
