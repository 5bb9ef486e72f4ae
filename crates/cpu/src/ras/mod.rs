//! The answers to RAS requests: what this process knows of its job, served as NCCL serves it.
//!
//! In: the states of this process's communicators, in which every rank's counters stand. Out: reports, over TCP. NCCL's
//! processes ask each other; here, each reads what all have written, so a process that is stopped cannot delay an answer,
//! and the death of one is certain at once.

mod job;
mod json;
mod monitor;
mod request;
pub(crate) mod service;
mod session;
mod text;
