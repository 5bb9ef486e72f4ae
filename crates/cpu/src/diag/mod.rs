//! Diagnostics: errors with NCCL's result codes, the text of the last error, findings, and `NCCL_DEBUG` logging.

pub(crate) mod debug;
pub(crate) mod error;
pub(crate) mod failures;
pub(crate) mod fault_signal;
pub(crate) mod finding;
pub(crate) mod report;
pub(crate) mod settings;
pub(crate) mod stack;
