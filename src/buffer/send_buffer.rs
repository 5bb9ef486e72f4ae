#![allow(unsafe_code)] // Makes views of buffers.

use crate::buffer::{Buffer, BufferElement, BufferMut, BufferResult, DeviceSlice, DeviceSliceMut};
use crate::stream::StreamRef;

/// An argument that an operation reads: a reference to a [`Buffer`], or a view such as [`DeviceSlice`].
///
/// A type with a lifetime, such as a view of another crate's buffer, implements this trait; a type that owns its memory
/// implements [`Buffer`].
///
/// ```
/// use libnccl::{DeviceSlice, ReduceOp, StreamRef, buffer::{BufferResult, SendBuffer}};
///
/// /// A row of a matrix of some framework.
/// struct Row<'a>(&'a [f32]);
///
/// impl<'a> SendBuffer<'a> for Row<'a> {
///     type Element = f32;
///     type Guard = ();
///
///     unsafe fn into_view(self, _: StreamRef<'a>) -> BufferResult<(DeviceSlice<'a, f32>, ())> {
///         Ok((self.0.into(), ()))
///     }
/// }
///
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let mut sum = [0.0; 2];
/// comms[0].all_reduce(Row(&[1.0, 2.0]), &mut sum, ReduceOp::Sum, StreamRef::DEFAULT)?;
/// assert_eq!(sum, [1.0, 2.0]);
/// # Ok::<(), libnccl::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a buffer that an operation can read",
    label = "not a buffer",
    note = "pass a reference to a slice, an array, a vector, an `NcclBuffer` or a type that implements `Buffer`, or a `DeviceSlice`",
    note = "for a device pointer, use the unsafe function `DeviceSlice::from_raw_parts(pointer, length)`"
)]
pub trait SendBuffer<'a> {
    /// The type of the elements.
    type Element: BufferElement;

    /// A value that is kept until the operation is enqueued; see [`Buffer::Guard`].
    type Guard: 'a;

    /// Returns the view for an operation on `stream`, and the guard.
    ///
    /// # Errors
    /// As for [`Buffer::as_ptr`].
    ///
    /// # Safety
    /// The view is used only by operations on `stream` that are enqueued before the guard is dropped.
    unsafe fn into_view(
        self,
        stream: StreamRef<'a>,
    ) -> BufferResult<(DeviceSlice<'a, Self::Element>, Self::Guard)>;
}

/// An argument that an operation writes: a mutable reference to a [`BufferMut`], or a view such as [`DeviceSliceMut`].
///
/// A function that was given a `&mut` lends it to each operation as `&mut *buffer`, and a view by
/// [`reborrow`](DeviceSliceMut::reborrow). An operation takes any buffer, so that `buffer` alone moves into the first one:
///
/// ```
/// use libnccl::{Communicator, NcclBuffer, ReduceOp, Result, StreamRef};
///
/// fn step(comm: &Communicator, buffer: &mut NcclBuffer<f32>) -> Result<()> {
///     comm.all_reduce_in_place(&mut *buffer, ReduceOp::Sum, StreamRef::DEFAULT)?;
///     comm.broadcast_in_place(buffer, 0, StreamRef::DEFAULT)
/// }
/// ```
///
/// A function for all kinds of buffers takes them as operations do. It can be tested on the CPU implementation with slices,
/// whether its callers have device memory, an [`NcclBuffer`](crate::buffer::NcclBuffer) or the buffers of another crate:
///
/// ```
/// use libnccl::{Communicator, DataType, DeviceSliceMut, ReduceOp, Result, StreamRef, buffer::{AnySliceMut, BufferElement, RecvBuffer}};
///
/// fn sum<'b, T: BufferElement>(comm: &Communicator, buffer: impl RecvBuffer<'b, Element = T>) -> Result<()> {
///     comm.all_reduce_in_place(buffer, ReduceOp::Sum, StreamRef::DEFAULT)
/// }
///
/// let nccl = libnccl_cpu::nccl();
/// let comm = nccl.init_all(&[0])?.remove(0);
/// let (mut vector, mut own) = (vec![1.0_f64; 4], nccl.alloc::<f32>(4)?);
/// sum(&comm, &mut vector)?;
/// sum(&comm, DeviceSliceMut::from(&mut vector))?;
/// sum(&comm, &mut own)?;
/// sum(&comm, AnySliceMut::from_bytes(DataType::Int8, &mut [1])?)?;
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// For an example of an implementation, see [`SendBuffer`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a buffer that an operation can write",
    label = "not a buffer that can be written",
    note = "pass a mutable reference to a slice, an array, a vector, an `NcclBuffer` or a type that implements `BufferMut`, or a `DeviceSliceMut`",
    note = "for a device pointer, use the unsafe function `DeviceSliceMut::from_raw_parts(pointer, length)`"
)]
pub trait RecvBuffer<'a> {
    /// The type of the elements.
    type Element: BufferElement;

    /// A value that is kept until the operation is enqueued; see [`Buffer::Guard`].
    type Guard: 'a;

    /// Returns the view for an operation on `stream`, and the guard.
    ///
    /// # Errors
    /// As for [`Buffer::as_ptr`].
    ///
    /// # Safety
    /// The view is used only by operations on `stream` that are enqueued before the guard is dropped.
    unsafe fn into_view(
        self,
        stream: StreamRef<'a>,
    ) -> BufferResult<(DeviceSliceMut<'a, Self::Element>, Self::Guard)>;
}

impl<'a, B: Buffer + ?Sized> SendBuffer<'a> for &'a B {
    type Element = B::Element;
    type Guard = B::Guard<'a>;

    #[inline]
    unsafe fn into_view(
        self,
        stream: StreamRef<'a>,
    ) -> BufferResult<(DeviceSlice<'a, B::Element>, B::Guard<'a>)> {
        let (length, space, device) = (self.len(), self.memory_space(), self.device());
        let (pointer, guard) = self.as_ptr(stream)?;
        // SAFETY: the implementation of `Buffer`, whose methods are called in the order of its contract, guarantees that the
        // elements are there while they are borrowed, which
        // is `'a`, and until the work has run that is enqueued on `stream` before the guard is dropped; the caller
        // guarantees that the view is used by no other work.
        Ok((unsafe { DeviceSlice::new(pointer, length, space) }.on_device(device), guard))
    }
}

impl<'a, B: BufferMut + ?Sized> RecvBuffer<'a> for &'a mut B {
    type Element = B::Element;
    type Guard = B::GuardMut<'a>;

    #[inline]
    unsafe fn into_view(
        self,
        stream: StreamRef<'a>,
    ) -> BufferResult<(DeviceSliceMut<'a, B::Element>, B::GuardMut<'a>)> {
        let (length, space, device) = (self.len(), self.memory_space(), self.device());
        let (pointer, guard) = self.as_mut_ptr(stream)?;
        // SAFETY: as above, and the implementation of `BufferMut` guarantees that the elements can be written.
        Ok((unsafe { DeviceSliceMut::new(pointer, length, space) }.on_device(device), guard))
    }
}

impl<'a, T: BufferElement> SendBuffer<'a> for DeviceSlice<'a, T> {
    type Element = T;
    type Guard = ();

    #[inline]
    unsafe fn into_view(self, _: StreamRef<'a>) -> BufferResult<(Self, ())> {
        Ok((self, ()))
    }
}

impl<'a, T: BufferElement> RecvBuffer<'a> for DeviceSliceMut<'a, T> {
    type Element = T;
    type Guard = ();

    #[inline]
    unsafe fn into_view(self, _: StreamRef<'a>) -> BufferResult<(Self, ())> {
        Ok((self, ()))
    }
}
