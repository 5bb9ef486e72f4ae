#![allow(unsafe_code)] // Makes views of buffers.

use crate::buffer::{AnyElement, AnySlice, AnySliceMut, BufferResult, RecvBuffer, SendBuffer};
use crate::data_type::DataType;
use crate::stream::StreamRef;

/// A buffer of bytes with an element type that is known at run time only: as an argument of an operation, what an
/// [`AnySlice`] is, for whatever `B` an operation takes as `u8` elements. The guard of the buffer is kept as without it.
///
/// So frameworks whose tensors own bytes, such as cudarc's `CudaSlice<u8>` or cuda-core's `DeviceBuffer<u8>`, need no
/// addresses:
///
/// ```
/// use libnccl::{Communicator, DataType, ReduceOp, Result, StreamRef, buffer::{AnyBuffer, BufferMut}};
///
/// /// `B` is a `CudaSlice<u8>`, or a vector in tests on the CPU.
/// struct Tensor<B> {
///     data_type: DataType,
///     bytes: B,
/// }
///
/// impl<B: BufferMut<Element = u8>> Tensor<B> {
///     fn sum(&mut self, comm: &Communicator) -> Result<()> {
///         let elements = AnyBuffer::new(self.data_type, &mut self.bytes);
///         comm.all_reduce_in_place(elements, ReduceOp::Sum, StreamRef::DEFAULT)
///     }
/// }
///
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// Tensor { data_type: DataType::Int8, bytes: vec![1, 2, 3] }.sum(&comms[0])?;
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// The operation is [`Error::InvalidArgument`](crate::error::Error::InvalidArgument) if the length or the address of the bytes is
/// no multiple of the type's size.
#[derive(Debug, Clone, Copy)]
pub struct AnyBuffer<B> {
    data_type: DataType,
    bytes: B,
}

impl<B> AnyBuffer<B> {
    /// Creates the argument from an argument of bytes: a reference to a buffer, or a view.
    #[must_use]
    pub const fn new(data_type: DataType, bytes: B) -> Self {
        Self { data_type, bytes }
    }
}

impl<'a, B: SendBuffer<'a, Element = u8>> SendBuffer<'a> for AnyBuffer<B> {
    type Element = AnyElement;
    type Guard = B::Guard;

    #[inline]
    unsafe fn into_view(self, stream: StreamRef<'a>) -> BufferResult<(AnySlice<'a>, B::Guard)> {
        // SAFETY: the caller guarantees it.
        let (bytes, guard) = unsafe { self.bytes.into_view(stream) }?;
        Ok((bytes.elements_of(self.data_type), guard))
    }
}

impl<'a, B: RecvBuffer<'a, Element = u8>> RecvBuffer<'a> for AnyBuffer<B> {
    type Element = AnyElement;
    type Guard = B::Guard;

    #[inline]
    unsafe fn into_view(self, stream: StreamRef<'a>) -> BufferResult<(AnySliceMut<'a>, B::Guard)> {
        // SAFETY: the caller guarantees it.
        let (bytes, guard) = unsafe { self.bytes.into_view(stream) }?;
        Ok((bytes.elements_of(self.data_type), guard))
    }
}
