//! Devices and contexts.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;

use cudarc::driver::sys::CUresult;

use crate::handle::{ContextId, PoolId, StreamId};

#[derive(Debug)]
pub(crate) struct Device {
    /// The handle of the primary context, active or not.
    pub(crate) primary: ContextId,
    pub(crate) primary_flags: u32,
    /// How often the primary context is retained.
    pub(crate) retained: usize,
    pub(crate) default_pool: PoolId,
    pub(crate) pool: PoolId,
}

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) flags: u32,
    pub(crate) default_stream: StreamId,
    /// Per-thread default streams.
    pub(crate) thread_streams: BTreeMap<u64, StreamId>,
    /// The contexts with peer access from this one.
    pub(crate) peers: BTreeSet<ContextId>,
    /// A sticky error.
    pub(crate) error: Option<CUresult>,
    /// Errors until `libnccl_cuda_recover`, by the number passed to `libnccl_cuda_fail`.
    pub(crate) failures: BTreeMap<u64, Failure>,
}

/// The error of a failed NCCL operation.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: CUresult,
    /// The operation, and why it failed.
    pub(crate) reason: CString,
}
