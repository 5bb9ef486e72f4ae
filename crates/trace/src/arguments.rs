//! The arguments of operations, as they are recorded.

use libnccl::observer::Operation;
use libnccl::sys::ncclDataType_t;

#[derive(Clone, Copy)]
pub(crate) struct Arguments {
    /// The operation of libnccl that corresponds to the call.
    pub(crate) operation: &'static Operation,
    pub(crate) data_type: Option<ncclDataType_t>,
    /// The numbers of elements that the rank sends and receives.
    pub(crate) elements: [usize; 2],
    /// The root or the other rank.
    pub(crate) rank: Option<i32>,
    /// The address of the stream.
    pub(crate) stream: usize,
}
