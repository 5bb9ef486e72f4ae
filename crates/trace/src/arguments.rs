//! The arguments of operations, as they are recorded.

use std::ffi::c_void;

use libnccl::sys::{cudaStream_t, ncclDataType_t};
use libnccl::{CallArguments, Operation};

/// Returns the arguments of an operation with this count, of a communicator of this size.
#[inline(always)]
pub(crate) fn with_elements(
    operation: &'static Operation,
    (count, size): (usize, usize),
    data_type: ncclDataType_t,
    rank: Option<i32>,
    stream: cudaStream_t,
) -> CallArguments {
    let elements = operation.elements(count, size);
    CallArguments { operation, data_type: Some(data_type), elements, rank, stream: stream.addr() }
}

/// Returns the arguments of an operation without elements.
#[inline(always)]
pub(crate) fn without_elements(
    operation: &'static Operation,
    rank: Option<i32>,
    stream: cudaStream_t,
) -> CallArguments {
    CallArguments { operation, data_type: None, elements: [0, 0], rank, stream: stream.addr() }
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
