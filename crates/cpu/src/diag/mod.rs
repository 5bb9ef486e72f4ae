//! Diagnostics: errors with NCCL's result codes, the text of the last error, findings, and `NCCL_DEBUG` logging.

pub(crate) mod debug;
pub(crate) mod error;
pub(crate) mod report;
pub(crate) mod settings;
