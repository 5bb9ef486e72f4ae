//! A client of NCCL's RAS service, which finds late, stuck, failed and dead ranks of a running job. Feature `ras`.
//!
//! With NCCL 2.24 or newer, every process with a communicator serves requests about the whole job at `NCCL_RAS_ADDR`, by default
//! `localhost:28028`. `NCCL_RAS_ENABLE=0` disables the service. [`RasClient`] sends requests, and [`verdicts`] draws conclusions
//! from the reports. The client needs neither an NCCL library nor a GPU, and may run on any host that reaches the port.
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
//! | [`RasClient::report`], [`RasClient::json_report`] | 2.28.7 |
//! | [`RasClient::monitor`] | 2.29.2 |
//! | [`RasClient::diagnostics`], [`RasClient::set_profiler_mask`] | 2.31 |
//!
//! With an older NCCL, a request fails with [`RasError::Unsupported`]. NCCL 2.32 did not add requests or fields. The CPU
//! backend serves all requests if `NCCL_RAS_ENABLE=1` or `NCCL_RAS_ADDR` is set.
//!
//! Each request uses a separate connection, and ends within the client's [`timeout`](RasClient::timeout). A reply above 256 MiB
//! is an error, and so is a handshake line above 64 KiB. If several processes listen on one port, the kernel chooses one for
//! each connection. A process that is stopped by a signal accepts connections but does not respond, so the client retries until a
//! process responds.
//! The service neither authenticates nor encrypts.

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
