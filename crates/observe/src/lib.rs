//! Monitoring of `libnccl` communicators and of running jobs.
//!
//! | purpose | how | feature |
//! |---|---|---|
//! | list the last operations of a rank, also while it hangs | [`RecordExt::record`], or [`Recorder::record_from_env`] and `LIBNCCL_RECORDER` | |
//! | write them on a signal | `Recorder::write_on_signal` | `signal` |
//! | report or abort a communicator that has failed or is stuck in one call | [`Watchdog`] | |
//! | a log record for each operation (crate `log`) | `log` | `log` |
//! | a span for each operation (crate `tracing`) | `tracing` | `tracing` |
//! | find the ranks of a running job that are late, stuck or dead | `ras` | `ras` |
//!
//! All rows except the last use the trait [`Observer`](libnccl::observer::Observer). For an example, see [`Recorder`].
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))] // libnccl reads variables.

#[doc(hidden)] // The tool identifies libraries by it, too.
pub mod library_file;
#[cfg(feature = "log")]
mod log;
#[doc(hidden)] // The library that records any program writes by it, too.
pub mod private_file;
#[cfg(feature = "ras")]
pub mod ras;
mod recorder;
#[cfg(feature = "tracing")]
mod tracing;
#[doc(hidden)] // Those who set them depend on this crate.
pub mod variables;
mod watchdog;

#[cfg(feature = "log")]
pub use log::log;
pub use recorder::{Record, RecordExt, RecordState, Recorder};
#[cfg(feature = "tracing")]
pub use tracing::tracing;
pub use watchdog::{Action, Cause, Finding, Watchdog};

/// The program of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
