//! The arguments of operations, as they are recorded.

use std::ffi::c_void;

use libnccl::Operation;
use libnccl::sys::{cudaStream_t, ncclDataType_t};

/// The arguments of a C call that are recorded.
#[derive(Clone, Copy)]
pub(crate) struct Arguments {
    /// The method of `Communicator` that makes this call.
    pub(crate) operation: &'static Operation,
    pub(crate) data_type: Option<ncclDataType_t>,
    /// The numbers of elements that the rank sends and receives.
    pub(crate) elements: [usize; 2],
    /// The root or the other rank.
    pub(crate) rank: Option<i32>,
    /// The address of the stream.
    pub(crate) stream: usize,
}

/// Returns the arguments of an operation with this count, of a communicator of this size.
#[inline(always)]
pub(crate) fn with_elements(
    operation: &'static Operation,
    (count, size): (usize, usize),
    data_type: ncclDataType_t,
    rank: Option<i32>,
    stream: cudaStream_t,
) -> Arguments {
    let elements = operation.elements(count, size);
    Arguments { operation, data_type: Some(data_type), elements, rank, stream: stream.addr() }
}

/// Returns the arguments of an operation without elements.
#[inline(always)]
pub(crate) fn without_elements(
    operation: &'static Operation,
    rank: Option<i32>,
    stream: cudaStream_t,
) -> Arguments {
    Arguments { operation, data_type: None, elements: [0, 0], rank, stream: stream.addr() }
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
