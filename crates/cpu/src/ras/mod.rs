//! The RAS service: reports on the communicators of this process, over TCP, in NCCL's protocol.
//!
//! Reports are read from the shared states of the communicators, which hold every rank's counters. NCCL's processes query each
//! other. Here, a stopped process does not delay a report, and a dead process is detected immediately.

mod report;
pub(crate) mod service;
