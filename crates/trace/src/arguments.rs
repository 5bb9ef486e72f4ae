//! The arguments of operations, as they are recorded.

use std::ffi::c_void;

use libnccl::sys::{cudaStream_t, ncclDataType_t};
use libnccl::{CallArguments, Operation};

/// Returns the arguments of a collective. `lengths` are those of the buffers that the method of `Communicator` takes.
#[inline(always)]
pub(crate) fn collective(
    operation: &'static Operation,
    lengths: [usize; 2],
    data_type: ncclDataType_t,
    root: Option<i32>,
    stream: cudaStream_t,
) -> CallArguments {
    CallArguments { operation, data_type: Some(data_type), lengths, peer: root, stream: stream.addr() }
}

/// Returns the arguments of an operation without elements.
#[inline(always)]
pub(crate) fn without_elements(
    operation: &'static Operation,
    peer: Option<i32>,
    stream: cudaStream_t,
) -> CallArguments {
    CallArguments { operation, data_type: None, lengths: [0, 0], peer, stream: stream.addr() }
}

/// Returns one of two operations: the first for two buffers, the second for one.
#[inline(always)]
pub(crate) fn in_place(
    [other, same]: [&'static Operation; 2],
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
) -> &'static Operation {
    if sendbuff == recvbuff.cast_const() { same } else { other }
}
