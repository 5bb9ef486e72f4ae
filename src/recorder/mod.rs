//! The recorder, an observer: the last operations that a communicator was given, in a ring that any thread reads at any time.
//!
//! One thread writes, that which uses the communicator. It takes no lock, and waits for nobody.
#![allow(unsafe_code)]

mod clock;
mod document;
mod pytorch;
mod record;
#[allow(clippy::module_inception)] // The type has the name of the room.
mod recorder;
mod recording;
mod ring;
#[cfg(all(unix, feature = "signal"))]
mod signal;

pub use record::{Record, RecordState};
pub use recorder::Recorder;
pub(crate) use recorder::record_as_the_environment_says;
