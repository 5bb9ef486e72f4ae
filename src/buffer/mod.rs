//! The views that operations take, the traits for buffers of other crates, and memory that NCCL allocates.

mod any_buffer;
mod any_slice;
mod nccl_buffer;
mod nccl_slice;
mod send_buffer;
mod slice;
mod traits;

pub use crate::backend::MemorySpace;
pub use any_buffer::AnyBuffer;
pub(crate) use any_slice::check_layout;
pub use any_slice::{AnyElement, AnySlice, AnySliceMut, BufferElement};
pub(crate) use nccl_buffer::Allocation;
pub use nccl_buffer::NcclBuffer;
pub use nccl_slice::{NcclSlice, NcclSliceMut};
pub use send_buffer::{RecvBuffer, SendBuffer};
pub(crate) use slice::RawSlice;
pub use slice::{DeviceSlice, DeviceSliceMut};
pub use traits::{Buffer, BufferMut, BufferResult, Stream};
