//! A client of NCCL's RAS service: which ranks of a running job are late, stuck, failed or dead. Feature `ras`.
//!
//! Every process of a job that has a communicator answers questions about the job on a TCP port, `NCCL_RAS_ADDR` or
//! `localhost:28028` (NCCL 2.24 and newer, unless `NCCL_RAS_ENABLE` is not 1). [`RasClient`] asks, and
//! [`verdicts`] draws the conclusions. No NCCL library is needed, and no GPU: the program may run anywhere from where the
//! port can be reached.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use libnccl_observe::ras::{RasClient, RasError, verdicts};
//!
//! # fn main() -> Result<(), RasError> {
//! let client = RasClient::from_env()?.timeout(Duration::from_secs(5));
//! let first = client.report()?;
//! std::thread::sleep(Duration::from_secs(2));
//! let second = client.report()?;
//! for verdict in verdicts(&[first, second]) {
//!     println!("{verdict}"); // For instance: rank 5 of 8 is a straggler: ...
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | method | since NCCL |
//! |---|---|
//! | [`RasClient::status`], [`RasClient::verbose_status`] | 2.24 |
//! | [`RasClient::report`] | 2.28.7 |
//! | [`RasClient::monitor`] | 2.29.2 |
//! | [`RasClient::diagnostics`], [`RasClient::set_profiler_mask`] | 2.31 |
//!
//! An older NCCL's answer is [`RasError::Unsupported`]. Release 2.32 added no request and no field. The CPU backend
//! serves all of it if `NCCL_RAS_ENABLE=1` is set.
//!
//! Each request is a connection of its own and ends by the client's [`timeout`](RasClient::timeout), whatever the other
//! end does; answers are at most 256 MiB, and a line of the handshake 64 KiB. Of several processes that listen on one port,
//! the kernel chooses one for each connection; a process that is stopped accepts and never answers, so the client tries
//! again until one does. The service neither authenticates nor encrypts.

mod client;
mod connection;
mod error;
mod monitor;
mod report;
mod verdict;

pub use client::RasClient;
pub use error::RasError;
pub use monitor::{Event, EventGroup, Monitor, Peer};
pub use report::{
    Collection, CommunicatorId, MissingRank, MissingStatus, RankReport, RankState, RankStatus, Report,
    ReportedCommunicator,
};
pub use verdict::{RankPlace, Verdict, VerdictKind, verdicts};
