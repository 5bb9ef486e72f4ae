//! The buffer arguments of operations: the traits [`Buffer`] and [`BufferMut`], implemented for host memory and slices.
#![allow(unsafe_code)] // Unsafe methods; slices of host memory.

use std::error::Error as StdError;

use crate::buffer::{AnyElement, MemorySpace, Slice, SliceMut};
use crate::data_type::{DataType, Element};
use crate::stream::StreamRef;

/// The result of preparing a buffer. After an error, such as a CUDA error, the operation does not start. It returns
/// [`Error::InvalidArgument`](crate::error::Error::InvalidArgument) with the error's text and the kind
/// [`NotReady`](crate::error::InvalidArgumentKind::NotReady). An error that already is an `Error::InvalidArgument` keeps its
/// kind.
pub type BufferResult<T> = Result<T, Box<dyn StdError>>;

/// A buffer that an operation reads, such as a [`Slice`], or a reference to a slice, an array, a vector or an
/// [`NcclBuffer`](crate::buffer::NcclBuffer).
///
/// A crate with its own buffer types should implement this trait for references to them, and for its view types by value:
///
/// ```
/// use libnccl::{ReduceOp, Slice, SliceMut, StreamRef, buffer::{Buffer, BufferMut, BufferResult}};
///
/// /// A tensor of some framework.
/// struct Tensor(Vec<f32>);
///
/// impl<'a> Buffer<'a> for &'a Tensor {
///     type Element = f32;
///     type Guard = ();
///
///     unsafe fn into_slice(self, _: StreamRef<'a>) -> BufferResult<(Slice<'a, f32>, ())> {
///         Ok((Slice::from(&self.0), ()))
///     }
/// }
///
/// impl<'a> BufferMut<'a> for &'a mut Tensor {
///     type Element = f32;
///     type Guard = ();
///
///     unsafe fn into_slice_mut(self, _: StreamRef<'a>) -> BufferResult<(SliceMut<'a, f32>, ())> {
///         Ok((SliceMut::from(&mut self.0), ()))
///     }
/// }
///
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let (tensor, mut sum) = (Tensor(vec![1.0, 2.0]), Tensor(vec![0.0; 2]));
/// comms[0].all_reduce(&tensor, &mut sum, ReduceOp::Sum, StreamRef::DEFAULT)?;
/// assert_eq!(sum.0, [1.0, 2.0]);
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// # Device memory
/// Operations return before they have run, so the borrow of the buffer ends too early to protect the memory. Implementations must
/// protect it in two steps:
///
/// - [`into_slice`](Self::into_slice) must make `stream` wait for the work that produces the elements, if that work is on another
///   stream (`cudaStreamWaitEvent`).
/// - Dropping the guard must record an event on `stream` (`cudaEventRecord`), and make the stream that frees or reuses the
///   memory wait for this event.
///
/// cudarc's `device_ptr` works in the same way. If all work uses one stream, or if the allocator waits for the device before
/// freeing memory, the guard can be `()`.
///
/// If other work writes the memory while the operation reads it, the elements have unspecified values. This is sound because
/// every bit pattern is a valid value of an [`Element`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a buffer that an operation can read",
    label = "not a buffer",
    note = "pass a reference to a slice, an array, a vector, an `NcclBuffer` or a type whose references implement `Buffer`; or a `Slice` or an `AnyBuffer` by value",
    note = "for a device pointer, use the unsafe function `Slice::from_device_ptr(pointer, length)`"
)]
pub trait Buffer<'a> {
    /// The type of the elements.
    type Element: 'static;

    /// A value that is kept until the operation is enqueued. It is dropped after the call or, in a group, when the group ends.
    type Guard: 'a;

    /// Prepares the buffer for an operation that reads it on `stream`.
    ///
    /// # Errors
    /// Returns an error if the operation must not start; see [`BufferResult`].
    ///
    /// # Safety
    /// The caller must use the slice only for operations on `stream` that are enqueued before the guard is dropped.
    unsafe fn into_slice(
        self,
        stream: StreamRef<'a>,
    ) -> BufferResult<(Slice<'a, Self::Element>, Self::Guard)>;
}

/// A buffer that an operation writes, such as a [`SliceMut`], or a mutable reference to a slice, an array, a vector or an
/// [`NcclBuffer`](crate::buffer::NcclBuffer). To implement it, see [`Buffer`].
///
/// Rust does not reborrow a generic argument, so a variable `buffer: &mut B` is moved into the first operation. To keep the
/// variable usable, pass `&mut *buffer`. For a `SliceMut`, pass [`slice.reborrow()`](SliceMut::reborrow).
///
/// A function that is generic over buffers can be tested on the CPU backend:
///
/// ```
/// use libnccl::{Communicator, DataType, ReduceOp, Result, SliceMut, StreamRef, buffer::BufferMut};
///
/// fn sum<'b>(comm: &Communicator, buffer: impl BufferMut<'b>) -> Result<()> {
///     comm.all_reduce_in_place(buffer, ReduceOp::Sum, StreamRef::DEFAULT)
/// }
///
/// let nccl = libnccl_cpu::nccl();
/// let comm = nccl.init_all(&[0])?.remove(0);
/// let (mut vector, mut own) = (vec![1.0_f64; 4], nccl.alloc::<f32>(4)?);
/// sum(&comm, &mut vector)?;
/// sum(&comm, SliceMut::from(&mut vector))?;
/// sum(&comm, &mut own)?;
/// sum(&comm, SliceMut::from_bytes(DataType::Int8, &mut [1])?)?;
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// In a group, buffers must outlive the group. The parameter of a generic function that opens a group must therefore be a slice,
/// or a reference `buffer: &mut B` with the bound `for<'a> &'a mut B: BufferMut<'a>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a buffer that an operation can write",
    label = "not a buffer that can be written",
    note = "pass a mutable reference to a slice, an array, a vector, an `NcclBuffer` or a type whose mutable references implement `BufferMut`; or a `SliceMut` or an `AnyBuffer` by value",
    note = "for a device pointer, use the unsafe function `SliceMut::from_device_ptr(pointer, length)`"
)]
pub trait BufferMut<'a> {
    /// The type of the elements.
    type Element: 'static;

    /// A value that is kept until the operation is enqueued; see [`Buffer::Guard`].
    type Guard: 'a;

    /// Prepares the buffer for an operation that writes it on `stream`.
    ///
    /// # Errors
    /// Returns an error if the operation must not start; see [`BufferResult`].
    ///
    /// # Safety
    /// The condition of [`Buffer::into_slice`] must hold.
    unsafe fn into_slice_mut(
        self,
        stream: StreamRef<'a>,
    ) -> BufferResult<(SliceMut<'a, Self::Element>, Self::Guard)>;
}

impl<'a, T: 'static> Buffer<'a> for Slice<'a, T> {
    type Element = T;
    type Guard = ();

    #[inline]
    unsafe fn into_slice(self, _: StreamRef<'a>) -> BufferResult<(Self, ())> {
        Ok((self, ()))
    }
}

impl<'a, T: 'static> BufferMut<'a> for SliceMut<'a, T> {
    type Element = T;
    type Guard = ();

    #[inline]
    unsafe fn into_slice_mut(self, _: StreamRef<'a>) -> BufferResult<(Self, ())> {
        Ok((self, ()))
    }
}

macro_rules! host_buffers {
    ($(($($generics:tt)*) $buffer:ty;)*) => {$(
        impl<'a, T: Element, $($generics)*> From<&'a $buffer> for Slice<'a, T> {
            #[inline]
            fn from(buffer: &'a $buffer) -> Self {
                // SAFETY: elements in host memory, borrowed for `'a`. All their bytes are initialized, as `Element` requires.
                unsafe { Self::new(buffer.as_ptr(), buffer.len(), MemorySpace::Host) }
            }
        }

        impl<'a, T: Element, $($generics)*> From<&'a mut $buffer> for SliceMut<'a, T> {
            #[inline]
            fn from(buffer: &'a mut $buffer) -> Self {
                // SAFETY: as above, borrowed exclusively.
                unsafe { Self::new(buffer.as_mut_ptr(), buffer.len(), MemorySpace::Host) }
            }
        }

        impl<'a, T: Element, $($generics)*> Buffer<'a> for &'a $buffer {
            type Element = T;
            type Guard = ();

            #[inline]
            unsafe fn into_slice(self, _: StreamRef<'a>) -> BufferResult<(Slice<'a, T>, ())> {
                Ok((self.into(), ()))
            }
        }

        impl<'a, T: Element, $($generics)*> BufferMut<'a> for &'a mut $buffer {
            type Element = T;
            type Guard = ();

            #[inline]
            unsafe fn into_slice_mut(self, _: StreamRef<'a>) -> BufferResult<(SliceMut<'a, T>, ())> {
                Ok((self.into(), ()))
            }
        }
    )*};
}

host_buffers! {
    () [T];
    () Vec<T>;
    () Box<[T]>;
    (const N: usize) [T; N];
}

/// A buffer of bytes whose element type is known only at run time.
///
/// It wraps byte buffers such as cudarc's `CudaSlice<u8>` or cuda-core's `DeviceBuffer<u8>`, so that no raw address is needed:
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
/// impl<B> Tensor<B>
/// where
///     for<'a> &'a mut B: BufferMut<'a, Element = u8>,
/// {
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
/// An operation returns [`Error::InvalidArgument`](crate::error::Error::InvalidArgument) if the length or the address of the
/// bytes is not a multiple of the element size.
#[derive(Debug, Clone, Copy)]
pub struct AnyBuffer<B> {
    data_type: DataType,
    bytes: B,
}

impl<B> AnyBuffer<B> {
    /// Interprets a buffer of bytes as elements of `data_type`.
    #[must_use]
    pub const fn new(data_type: DataType, bytes: B) -> Self {
        Self { data_type, bytes }
    }
}

impl<'a, B: Buffer<'a, Element = u8>> Buffer<'a> for AnyBuffer<B> {
    type Element = AnyElement;
    type Guard = B::Guard;

    unsafe fn into_slice(self, stream: StreamRef<'a>) -> BufferResult<(Slice<'a, AnyElement>, B::Guard)> {
        // SAFETY: guaranteed by the caller.
        let (bytes, guard) = unsafe { self.bytes.into_slice(stream) }?;
        Ok((Slice::from_bytes(self.data_type, bytes)?, guard))
    }
}

impl<'a, B: BufferMut<'a, Element = u8>> BufferMut<'a> for AnyBuffer<B> {
    type Element = AnyElement;
    type Guard = B::Guard;

    unsafe fn into_slice_mut(
        self,
        stream: StreamRef<'a>,
    ) -> BufferResult<(SliceMut<'a, AnyElement>, B::Guard)> {
        // SAFETY: guaranteed by the caller.
        let (bytes, guard) = unsafe { self.bytes.into_slice_mut(stream) }?;
        Ok((SliceMut::from_bytes(self.data_type, bytes)?, guard))
    }
}
