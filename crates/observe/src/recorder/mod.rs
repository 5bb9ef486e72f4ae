//! The recorder, an observer: the last operations that a communicator was given, in a ring that any thread reads at any time.
//!
//! One thread writes, that which uses the communicator. It takes no lock, and waits for nobody.
#![allow(unsafe_code)]

mod clock;
mod document;
mod pytorch;
mod record;
mod record_ext;
#[allow(clippy::module_inception)] // The type has the name of the room.
mod recorder;
mod ring;
#[cfg(all(unix, feature = "signal"))]
mod signal;

pub use record::{Record, RecordState};
pub use record_ext::RecordExt;
pub use recorder::Recorder;
