//! Buffers of operations: borrowed slices, the traits for buffers of other crates, and memory that NCCL allocates.

mod argument;
mod nccl_buffer;
mod slice;

pub use argument::{AnyBuffer, Buffer, BufferMut, BufferResult};
pub(crate) use nccl_buffer::Allocation;
pub use nccl_buffer::NcclBuffer;
pub(crate) use slice::RawSlice;
pub use slice::{AnyElement, Slice, SliceMut};

pub use crate::backend::MemorySpace;
