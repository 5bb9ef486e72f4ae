#![allow(unsafe_code)] // Unsafe traits, and their implementations for slices.

use crate::{DeviceSlice, DeviceSliceMut, Element, MemorySpace, StreamRef, sys};

/// Memory that operations can read. Implement it to use the buffers of another crate without copying them.
///
/// Operations then accept `&B` wherever they accept a `DeviceSlice`.
///
/// ```
/// use libnccl::{Buffer, MemorySpace, ReduceOp, StreamRef};
///
/// /// A tensor of some framework.
/// struct Tensor {
///     data: Vec<f32>,
/// }
///
/// // SAFETY: initialized host memory, which `data` owns as long as a reference to the tensor lives.
/// unsafe impl Buffer for Tensor {
///     type Element = f32;
///
///     fn memory_space(&self) -> MemorySpace {
///         MemorySpace::Host
///     }
///     fn as_ptr(&self) -> *const f32 {
///         self.data.as_ptr()
///     }
///     fn len(&self) -> usize {
///         self.data.len()
///     }
/// }
///
/// # fn main() -> libnccl::Result<()> {
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let tensor = Tensor { data: vec![1.0, 2.0] };
/// let mut sum = [0.0; 2];
/// comms[0].all_reduce(&tensor, &mut sum, ReduceOp::Sum, StreamRef::DEFAULT)?;
/// assert_eq!(sum, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Safety
/// While a reference to the buffer lives, `as_ptr` is the address of `len` initialized elements in the memory
/// that `memory_space` names, and nothing writes them. For device memory, as operations return before they run, the
/// memory must also stay allocated and unwritten until the work that was enqueued while the reference lived *has run*.
/// Allocators that free in stream order satisfy this if it is the stream of the work, or one that waits for it; so does
/// a drop that waits.
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

    /// Returns the memory space of the buffer.
    fn memory_space(&self) -> MemorySpace;

    /// Returns the address of the first element; any address if there is none.
    fn as_ptr(&self) -> *const Self::Element;

    /// Returns the number of elements.
    fn len(&self) -> usize;
}

/// Memory that operations can write. They accept `&mut B` wherever they accept a `DeviceSliceMut`.
///
/// ```
/// use libnccl::{Buffer, BufferMut, MemorySpace, ReduceOp, StreamRef};
///
/// struct Tensor {
///     data: Vec<f32>,
/// }
///
/// // SAFETY: initialized host memory, which `data` owns as long as a reference to the tensor lives.
/// unsafe impl Buffer for Tensor {
///     type Element = f32;
/// #
/// #     fn memory_space(&self) -> MemorySpace {
/// #         MemorySpace::Host
/// #     }
/// #     fn as_ptr(&self) -> *const f32 {
/// #         self.data.as_ptr()
/// #     }
/// #     fn len(&self) -> usize {
/// #         self.data.len()
/// #     }
///     // ...
/// }
///
/// // SAFETY: as above; `&mut self` makes the access exclusive.
/// unsafe impl BufferMut for Tensor {
///     fn as_mut_ptr(&mut self) -> *mut f32 {
///         self.data.as_mut_ptr()
///     }
/// }
///
/// # fn main() -> libnccl::Result<()> {
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let mut tensor = Tensor { data: vec![1.0, 2.0] };
/// comms[0].all_reduce_in_place(&mut tensor, ReduceOp::Sum, StreamRef::DEFAULT)?;
/// # Ok(())
/// # }
/// ```
///
/// # Safety
/// As for [`Buffer`], with `as_mut_ptr` instead of `as_ptr`: the elements can be written while a mutable reference
/// lives and, on a device, until the work that was enqueued in that time has run. Until then nothing else reads or
/// writes them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a buffer that can be written",
    label = "not a buffer that operations can write",
    note = "buffers are slices, arrays and vectors of elements, `NcclBuffer`, and types that implement `BufferMut`",
    note = "for a device pointer, use the unsafe function `DeviceSliceMut::from_raw_parts(pointer, length)`"
)]
pub unsafe trait BufferMut: Buffer {
    /// Returns the address of the first element; any address if there is none.
    fn as_mut_ptr(&mut self) -> *mut Self::Element;
}

/// A CUDA stream of another crate. Operations accept `&S` wherever they accept a `StreamRef`.
///
/// ```
/// use libnccl::{ReduceOp, Stream, sys};
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
/// # fn main() -> libnccl::Result<()> {
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let stream = OwnedStream(std::ptr::null_mut());
/// comms[0].all_reduce_in_place(&mut [1.0_f32], ReduceOp::Sum, &stream)?;
/// # Ok(())
/// # }
/// ```
///
/// # Safety
/// While a reference to the stream lives, `as_raw` is null or a stream that is not destroyed, of the device of
/// every communicator that it is used with.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a stream",
    label = "not a stream",
    note = "pass `StreamRef::DEFAULT`, or a reference to a type that implements `Stream`",
    note = "for a `cudaStream_t`, use the unsafe function `StreamRef::from_raw(stream)`"
)]
pub unsafe trait Stream {
    /// Returns the handle.
    fn as_raw(&self) -> sys::cudaStream_t;
}

impl<'a, B: Buffer + ?Sized> From<&'a B> for DeviceSlice<'a, B::Element> {
    #[inline]
    fn from(buffer: &'a B) -> Self {
        // SAFETY: the implementation of the trait guarantees it while the reference lives, which is `'a`.
        unsafe { Self::new(buffer.as_ptr(), buffer.len(), buffer.memory_space()) }
    }
}

impl<'a, B: BufferMut + ?Sized> From<&'a mut B> for DeviceSliceMut<'a, B::Element> {
    #[inline]
    fn from(buffer: &'a mut B) -> Self {
        // SAFETY: the implementation of the trait guarantees it while the reference lives, which is `'a`.
        unsafe { Self::new(buffer.as_mut_ptr(), buffer.len(), buffer.memory_space()) }
    }
}

impl<'a, S: Stream + ?Sized> From<&'a S> for StreamRef<'a> {
    #[inline]
    fn from(stream: &'a S) -> Self {
        // SAFETY: the implementation of the trait guarantees it while the reference lives, which is `'a`.
        unsafe { Self::from_raw(stream.as_raw()) }
    }
}

// SAFETY: the creator of the view guarantees that the stream is live.
unsafe impl Stream for StreamRef<'_> {
    #[inline]
    fn as_raw(&self) -> sys::cudaStream_t {
        StreamRef::as_raw(*self)
    }
}

macro_rules! host_buffers {
    ($(($($generics:tt)*) $buffer:ty;)*) => {$(
        // SAFETY: initialized host memory, which cannot be written or freed while a reference to the buffer lives.
        unsafe impl<T: Element, $($generics)*> Buffer for $buffer {
            type Element = T;

            #[inline]
            fn memory_space(&self) -> MemorySpace {
                MemorySpace::Host
            }
            #[inline]
            fn as_ptr(&self) -> *const T {
                <[T]>::as_ptr(self)
            }
            #[inline]
            fn len(&self) -> usize {
                <[T]>::len(self)
            }
        }

        // SAFETY: as above; a mutable reference is exclusive.
        unsafe impl<T: Element, $($generics)*> BufferMut for $buffer {
            #[inline]
            fn as_mut_ptr(&mut self) -> *mut T {
                <[T]>::as_mut_ptr(self)
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
