#![allow(unsafe_code)] // Unsafe traits, and their implementations for slices.

use std::error::Error as StdError;
use std::sync::Arc;

use crate::buffer::{DeviceSlice, DeviceSliceMut, MemorySpace};
use crate::cuda::is_stream_complete;
use crate::data_type::Element;
use crate::stream::StreamRef;
use crate::sys;

/// The result of preparing a buffer. An error is the reason for which the buffer cannot be used, such as an error of CUDA: the
/// operation does not start, and is [`Error::InvalidArgument`](crate::error::Error::InvalidArgument) with this text and the kind
/// [`NotReady`](crate::error::InvalidArgumentKind::NotReady).
///
/// For an example, see [`Buffer`].
pub type BufferResult<T> = Result<T, Box<dyn StdError>>;

/// Memory that operations can read. Implement it to use the buffers of another crate without copying them.
///
/// Operations then accept `&B`.
///
/// ```
/// use libnccl::{ReduceOp, StreamRef, buffer::{Buffer, BufferMut, BufferResult, MemorySpace}};
///
/// /// A tensor of some framework.
/// struct Tensor {
///     data: Vec<f32>,
/// }
///
/// // SAFETY: initialized host memory, which `data` owns as long as a reference to the tensor lives.
/// unsafe impl Buffer for Tensor {
///     type Element = f32;
///     type Guard<'a> = ();
///
///     fn memory_space(&self) -> MemorySpace {
///         MemorySpace::Host
///     }
///     fn len(&self) -> usize {
///         self.data.len()
///     }
///     fn as_ptr<'a>(&'a self, _: StreamRef<'a>) -> BufferResult<(*const f32, ())> {
///         Ok((self.data.as_ptr(), ()))
///     }
/// }
///
/// // SAFETY: as above; `&mut self` makes the access exclusive.
/// unsafe impl BufferMut for Tensor {
///     type GuardMut<'a> = ();
///
///     fn as_mut_ptr<'a>(&'a mut self, _: StreamRef<'a>) -> BufferResult<(*mut f32, ())> {
///         Ok((self.data.as_mut_ptr(), ()))
///     }
/// }
///
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let (tensor, mut sum) = (Tensor { data: vec![1.0, 2.0] }, Tensor { data: vec![0.0; 2] });
/// comms[0].all_reduce(&tensor, &mut sum, ReduceOp::Sum, StreamRef::DEFAULT)?;
/// assert_eq!(sum.data, [1.0, 2.0]);
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// # Device memory
/// Operations return before they run, so a borrow of the buffer ends too early to protect it. The buffer learns the
/// operation's stream instead, and gives a guard that is dropped once the operation is enqueued:
///
/// - [`as_ptr`](Self::as_ptr) makes `stream` wait for the work that produces the elements, if it is on another stream
///   (`cudaStreamWaitEvent`);
/// - the guard's drop makes whatever frees or reuses the memory wait for `stream`: it records an event there
///   (`cudaEventRecord`), for which the buffer's own stream waits before the memory is freed.
///
/// This is how `device_ptr` of the crate cudarc works too. With an allocator that has one stream for everything, or a
/// drop that waits for the device, there is nothing to do, and the guard is `()`.
///
/// # Safety
/// An operation calls [`len`](Self::len), [`memory_space`](Self::memory_space) and [`device`](Self::device), in this order
/// and once each, and then [`as_ptr`](Self::as_ptr) or [`as_mut_ptr`](BufferMut::as_mut_ptr). `as_ptr` returns the address of
/// as many elements as `len` has returned before it, in the memory that `memory_space` has named. So a buffer does not shrink
/// in `as_ptr`. Device memory is that of the device that `device` has returned or, if that is `None`, of every communicator
/// that it is used with.
///
/// - Host memory is initialized, as are all bytes of an [`Element`], and neither written nor freed as long as the buffer is borrowed and the guard lives.
/// - Device memory is not freed before the work has run that is enqueued on `stream` until the guard is dropped. No Rust
///   reference to the elements exists in that time.
///
/// Other work may use device memory at the same time: the elements then have unspecified values, and nothing worse
/// happens, as every bit pattern is a valid [`Element`].
#[allow(clippy::len_without_is_empty)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a buffer",
    label = "not a buffer that operations can read or write",
    note = "buffers are slices, arrays and vectors of elements, `NcclBuffer`, and types that implement `Buffer`",
    note = "for a device pointer, use the unsafe functions `DeviceSlice::from_raw_parts(pointer, length)` and `DeviceSliceMut::from_raw_parts`"
)]
pub unsafe trait Buffer {
    /// The type of the elements.
    type Element: Element;

    /// A value that is kept until the operation is enqueued, and dropped after the call or, in a group, after its end.
    type Guard<'a>: 'a
    where
        Self: 'a;

    /// Returns the memory space of the buffer.
    fn memory_space(&self) -> MemorySpace;

    /// Returns the number of elements.
    fn len(&self) -> usize;

    /// Returns the CUDA device of the memory, if the buffer knows it: its use with a communicator of another device is an
    /// error then.
    #[inline]
    fn device(&self) -> Option<i32> {
        None
    }

    /// Prepares the buffer for an operation that reads it on `stream`. Returns the address of the first element, or any
    /// address if there is none, and the guard.
    ///
    /// # Errors
    /// The reason for which the operation must not start: see [`BufferResult`].
    fn as_ptr<'a>(&'a self, stream: StreamRef<'a>) -> BufferResult<(*const Self::Element, Self::Guard<'a>)>;
}

/// Memory that operations can write. They then accept `&mut B`; for an example, see [`Buffer`].
///
/// # Safety
/// As for [`Buffer`], with `as_mut_ptr` instead of `as_ptr` also in the order of the calls, and the elements can be written. Nothing else reads or
/// writes host memory as long as the buffer is borrowed and the guard lives.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a buffer that can be written",
    label = "not a buffer that operations can write",
    note = "buffers are slices, arrays and vectors of elements, `NcclBuffer`, and types that implement `BufferMut`",
    note = "for a device pointer, use the unsafe function `DeviceSliceMut::from_raw_parts(pointer, length)`"
)]
pub unsafe trait BufferMut: Buffer {
    /// A value that is kept until the operation is enqueued, as [`Guard`](Buffer::Guard) is.
    type GuardMut<'a>: 'a
    where
        Self: 'a;

    /// Prepares the buffer for an operation that writes it on `stream`. Returns the address of the first element, or
    /// any address if there is none, and the guard.
    ///
    /// # Errors
    /// As for [`as_ptr`](Buffer::as_ptr).
    fn as_mut_ptr<'a>(
        &'a mut self,
        stream: StreamRef<'a>,
    ) -> BufferResult<(*mut Self::Element, Self::GuardMut<'a>)>;
}

/// A CUDA stream of another crate. Operations accept `&S` wherever they accept a `StreamRef`.
///
/// ```
/// use libnccl::{ReduceOp, sys, buffer::Stream};
///
/// /// A stream of some CUDA crate, which destroys it on drop.
/// struct OwnedStream(sys::cudaStream_t);
///
/// // SAFETY: a stream of the device that this program uses, and alive as long as `self`.
/// unsafe impl Stream for OwnedStream {
///     fn as_raw(&self) -> sys::cudaStream_t {
///         self.0
///     }
/// }
///
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let stream = OwnedStream(std::ptr::null_mut());
/// comms[0].all_reduce_in_place(&mut [1.0_f32], ReduceOp::Sum, &stream)?;
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// # Safety
/// While a reference to the stream lives, `as_raw` is null or a stream that is not destroyed, of the device that
/// [`device`](Self::device) returns or, if that is `None`, of the device of every communicator that it is used with.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a stream",
    label = "not a stream",
    note = "pass `StreamRef::DEFAULT`, or a reference to a type that implements `Stream`",
    note = "for a `cudaStream_t`, use the unsafe function `StreamRef::from_raw(stream)`"
)]
pub unsafe trait Stream {
    /// Returns the handle.
    fn as_raw(&self) -> sys::cudaStream_t;

    /// Returns the CUDA device of the stream, if it knows it: its use with a communicator of another device is an error
    /// then.
    #[inline]
    fn device(&self) -> Option<i32> {
        None
    }

    /// Returns whether all work that was enqueued on the stream is complete, for
    /// [`Communicator::synchronize`](crate::communicator::Communicator::synchronize).
    ///
    /// Unless a type does it otherwise, this asks CUDA's driver (`cuStreamQuery`), which has to be in the process; the
    /// null stream is that of the calling thread's context. A stream that is captured must not be asked.
    ///
    /// # Errors
    /// The error of CUDA, such as that of work that has failed; that the stream is a default one, and the calling thread's
    /// context is of another device.
    fn is_complete(&self) -> Result<bool, Box<dyn StdError>> {
        if let Some(device) = self.device() {
            StreamRef::from(self).check_current(device)?;
        }
        // SAFETY: the implementation of the trait guarantees that it is null or live while `self` is borrowed.
        unsafe { is_stream_complete(self.as_raw()) }
    }
}

impl<'a, S: Stream + ?Sized> From<&'a S> for StreamRef<'a> {
    #[inline]
    fn from(stream: &'a S) -> Self {
        // SAFETY: the implementation of the trait guarantees it while the reference lives, which is `'a`.
        unsafe { Self::from_raw(stream.as_raw()) }.on_device(stream.device())
    }
}

// SAFETY: a reference to the `Arc` keeps the stream, of which the implementation guarantees the rest.
unsafe impl<S: Stream + ?Sized> Stream for Arc<S> {
    fn as_raw(&self) -> sys::cudaStream_t {
        (**self).as_raw()
    }
    fn device(&self) -> Option<i32> {
        (**self).device()
    }
    fn is_complete(&self) -> Result<bool, Box<dyn StdError>> {
        (**self).is_complete()
    }
}

// SAFETY: the creator of the view guarantees that the stream is live.
unsafe impl Stream for StreamRef<'_> {
    #[inline]
    fn as_raw(&self) -> sys::cudaStream_t {
        StreamRef::as_raw(*self)
    }
    #[inline]
    fn device(&self) -> Option<i32> {
        StreamRef::device(*self)
    }
}

macro_rules! host_buffers {
    ($(($($generics:tt)*) $buffer:ty;)*) => {$(
        // SAFETY: host memory, initialized as `Element` requires initialized bytes, which cannot be written or freed while a
        // reference to the buffer lives. The length stays as it is.
        unsafe impl<T: Element, $($generics)*> Buffer for $buffer {
            type Element = T;
            type Guard<'a> = () where T: 'a;

            #[inline]
            fn memory_space(&self) -> MemorySpace {
                MemorySpace::Host
            }
            #[inline]
            fn len(&self) -> usize {
                <[T]>::len(self)
            }
            #[inline]
            fn as_ptr<'a>(&'a self, _: StreamRef<'a>) -> BufferResult<(*const T, ())> {
                Ok((<[T]>::as_ptr(self), ()))
            }
        }

        // SAFETY: as above; a mutable reference is exclusive.
        unsafe impl<T: Element, $($generics)*> BufferMut for $buffer {
            type GuardMut<'a> = () where T: 'a;

            #[inline]
            fn as_mut_ptr<'a>(&'a mut self, _: StreamRef<'a>) -> BufferResult<(*mut T, ())> {
                Ok((<[T]>::as_mut_ptr(self), ()))
            }
        }

        impl<'a, T: Element, $($generics)*> From<&'a $buffer> for DeviceSlice<'a, T> {
            fn from(buffer: &'a $buffer) -> Self {
                // SAFETY: elements in host memory, which are not written while the reference lives, which is `'a`.
                unsafe { Self::new(<[T]>::as_ptr(buffer), <[T]>::len(buffer), MemorySpace::Host) }
            }
        }

        impl<'a, T: Element, $($generics)*> From<&'a mut $buffer> for DeviceSliceMut<'a, T> {
            fn from(buffer: &'a mut $buffer) -> Self {
                // SAFETY: elements in host memory, borrowed exclusively while the reference lives, which is `'a`.
                unsafe { Self::new(<[T]>::as_mut_ptr(buffer), <[T]>::len(buffer), MemorySpace::Host) }
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
