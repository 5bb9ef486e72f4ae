//! Slices of host or device memory that are borrowed for an operation.
#![allow(unsafe_code)] // The constructors from pointers are unsafe.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::ops::{Bound, Range, RangeBounds};

use crate::backend::MemorySpace;
use crate::data_type::{DataType, Element};
use crate::error::{Error, InvalidArgumentKind, Result};

/// Borrowed host or device memory that an operation reads. [`from_device_ptr`](Self::from_device_ptr) borrows device memory.
///
/// Operations also accept references to [buffers](crate::buffer::Buffer) directly.
///
/// ```
/// use libnccl::{DataType, Slice};
///
/// let slice = Slice::from(&[1.0_f32, 2.0]);
/// assert_eq!((slice.len(), slice.data_type()), (2, DataType::Float32));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Slice<'a, T> {
    raw: RawSlice,
    memory: PhantomData<&'a [T]>,
}

/// Borrowed host or device memory that an operation writes; see [`Slice`].
#[derive(Debug)]
pub struct SliceMut<'a, T> {
    raw: RawSlice,
    memory: PhantomData<&'a mut [T]>,
}

/// The element type of a [`Slice`] whose data type is known only at run time; see [`Slice::from_bytes`]. The type has no values.
///
/// All operations accept such slices, except [`put_signal`](crate::Communicator::put_signal). The two slices of an operation must
/// have the same data type.
#[derive(Debug, Clone, Copy)]
pub enum AnyElement {}

/// A slice without lifetime and element type.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawSlice {
    pointer: *const c_void,
    length: usize,
    space: MemorySpace,
    /// The CUDA device, if it is known.
    device: Option<i32>,
    data_type: DataType,
}

impl RawSlice {
    pub(crate) const NONE: Self = Self {
        pointer: std::ptr::null(),
        length: 0,
        space: MemorySpace::Host,
        device: None,
        data_type: DataType::Uint8,
    };

    /// Interprets bytes as elements of `data_type`.
    fn with_data_type(self, call: &'static str, data_type: DataType) -> Result<Self> {
        let (pointer, bytes, size) = (self.pointer, self.length, data_type.size());
        if !bytes.is_multiple_of(size) {
            let problem = format!("{bytes} bytes are not a multiple of {size}, the size of {data_type}");
            return Err(Error::argument(call, InvalidArgumentKind::Length, problem));
        }
        if bytes > 0 && !pointer.addr().is_multiple_of(size) {
            let problem =
                format!("the address {pointer:?} is not a multiple of {size}, the size of {data_type}");
            return Err(Error::argument(call, InvalidArgumentKind::Address, problem));
        }
        Ok(Self { length: bytes / size, data_type, ..self })
    }

    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.length
    }

    #[inline]
    pub(crate) const fn data_type(&self) -> DataType {
        self.data_type
    }

    #[inline]
    pub(crate) const fn device(&self) -> Option<i32> {
        self.device
    }

    /// Returns the memory space, or `None` for an empty slice, which is valid in any memory space.
    #[inline]
    pub(crate) const fn memory_space(&self) -> Option<MemorySpace> {
        if self.length == 0 { None } else { Some(self.space) }
    }

    #[inline]
    pub(crate) const fn slice(&self, start: usize, length: usize) -> Self {
        debug_assert!(start + length <= self.length);
        Self { pointer: self.pointer.wrapping_byte_add(start * self.data_type.size()), length, ..*self }
    }

    /// Returns the address to pass to C, null for an empty slice.
    #[inline]
    pub(crate) const fn as_raw(&self) -> *const c_void {
        if self.length == 0 { std::ptr::null() } else { self.pointer }
    }
}

/// Defines the methods that `Slice` and `SliceMut` share.
macro_rules! slices {
    ($($slice:ident, $name:literal, $pointer:ty;)*) => {$(
        impl<'a, T: Element> $slice<'a, T> {
            /// Borrows `length` elements in `space`.
            ///
            /// # Safety
            /// For device memory, the conditions of [`from_device_ptr`](Self::from_device_ptr) must hold. Host memory must be
            /// valid for a reference with the lifetime `'a`.
            #[inline]
            pub(crate) const unsafe fn new(pointer: $pointer, length: usize, space: MemorySpace) -> Self {
                let (pointer, data_type) = (pointer.cast(), T::DATA_TYPE);
                Self { raw: RawSlice { pointer, length, space, device: None, data_type }, memory: PhantomData }
            }

            /// Converts the slice to a slice of [`AnyElement`], which has the same [data type](Self::data_type).
            #[must_use]
            pub const fn into_any(self) -> $slice<'a, AnyElement> {
                $slice { raw: self.raw, memory: PhantomData }
            }
        }

        impl<'a> $slice<'a, AnyElement> {
            /// Interprets bytes as elements of `data_type`. For bytes in buffers of other crates, see
            /// [`AnyBuffer`](crate::buffer::AnyBuffer).
            ///
            /// ```
            /// use libnccl::{DataType, ReduceOp, Slice, SliceMut, StreamRef};
            ///
            /// let comms = libnccl_cpu::nccl().init_all(&[0])?;
            /// let (send, mut recv) = ([1_u8, 2, 3], [0_u8; 3]);
            /// let data_type: DataType = "uint8".parse().expect("the name of a data type");
            /// let from = Slice::from_bytes(data_type, &send)?;
            /// let to = SliceMut::from_bytes(data_type, &mut recv)?;
            /// comms[0].all_reduce(from, to, ReduceOp::Sum, StreamRef::DEFAULT)?;
            /// assert_eq!(recv, [1, 2, 3]);
            /// # Ok::<(), libnccl::Error>(())
            /// ```
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] if the length or the address is not a multiple of the element size.
            pub fn from_bytes(data_type: DataType, bytes: impl Into<$slice<'a, u8>>) -> Result<Self> {
                let raw = bytes.into().raw.with_data_type($name, data_type)?;
                Ok(Self { raw, memory: PhantomData })
            }
        }

        impl<'a, T> $slice<'a, T> {
            /// Returns `length` elements from `start` on. The caller must have checked that they exist.
            pub(crate) const fn slice(&self, start: usize, length: usize) -> Self {
                Self { raw: self.raw.slice(start, length), memory: PhantomData }
            }

            /// Restricts the slice to communicators of one CUDA device. On GPUs, operations of communicators on other devices
            /// then return an error. Changes nothing if `device` is `None`, or if the slice already has a device.
            #[inline]
            #[must_use]
            pub const fn on_device(mut self, device: Option<i32>) -> Self {
                if self.raw.device.is_none() {
                    self.raw.device = device;
                }
                self
            }

            #[inline]
            pub(crate) const fn raw(&self) -> RawSlice {
                self.raw
            }

            /// Returns the data type of the elements.
            #[must_use]
            pub const fn data_type(&self) -> DataType {
                self.raw.data_type
            }

            /// Returns the number of elements.
            #[must_use]
            pub const fn len(&self) -> usize {
                self.raw.length
            }

            /// Returns whether there are no elements.
            #[must_use]
            pub const fn is_empty(&self) -> bool {
                self.raw.length == 0
            }
        }
    )*};
}

slices! {
    Slice, "Slice::from_bytes", *const T;
    SliceMut, "SliceMut::from_bytes", *mut T;
}

impl<T: Element> Slice<'_, T> {
    /// Borrows `length` elements of device memory.
    ///
    /// ```no_run
    /// # let nccl = libnccl::Nccl::load()?;
    /// # let comm = nccl.communicator(8, 0, &nccl.unique_id()?).init()?;
    /// # let (pointer, length, mut sums) = (std::ptr::null::<f32>(), 1024, nccl.alloc::<f32>(1024)?);
    /// # fn synchronize() {}
    /// use libnccl::{ReduceOp, Slice, StreamRef};
    ///
    /// // SAFETY: cudaMalloc returned `pointer` for `length` elements; they are freed after `synchronize`.
    /// let send = unsafe { Slice::from_device_ptr(pointer, length) };
    /// comm.all_reduce(send, &mut sums, ReduceOp::Sum, StreamRef::DEFAULT)?;
    /// synchronize(); // cudaStreamSynchronize
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Safety
    /// `pointer` must be the address of `length` elements, on the device of every communicator with which the slice is used.
    /// ([`on_device`](Self::on_device) restricts the slice to communicators of one device.)
    ///
    /// Until the work that reads the memory *has run*, the memory must stay allocated, and no `&mut` reference to the elements
    /// may exist. Operations return when they are enqueued, so the work may run after the end of `'a`. If a CUDA graph captures
    /// the work, the work runs at each launch of the graph.
    ///
    /// An implementation of [`Buffer::into_slice`](crate::buffer::Buffer::into_slice) must guarantee this only for work that is
    /// enqueued on the stream before the guard is dropped.
    ///
    /// If other work on the device writes the memory at the same time, the elements have unspecified values.
    #[must_use]
    pub const unsafe fn from_device_ptr(pointer: *const T, length: usize) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::new(pointer, length, MemorySpace::Device) }
    }
}

impl<T> Slice<'_, T> {
    /// Returns a range of the slice, or `None` if it is out of bounds.
    ///
    /// ```
    /// use libnccl::Slice;
    ///
    /// let slice = Slice::from(&[1.0_f32, 2.0, 3.0]);
    /// assert_eq!(slice.get(1..).map(|part| part.len()), Some(2));
    /// assert!(slice.get(2..4).is_none());
    /// ```
    #[must_use]
    pub fn get(&self, range: impl RangeBounds<usize>) -> Option<Self> {
        let range = checked_range(range, self.len())?;
        Some(self.slice(range.start, range.len()))
    }
}

impl<T: Element> SliceMut<'_, T> {
    /// Borrows `length` elements of device memory; for an example, see [`Slice::from_device_ptr`].
    ///
    /// # Safety
    /// The conditions of [`Slice::from_device_ptr`] must hold. In addition, no reference to the elements may exist until the work
    /// has run.
    #[must_use]
    pub const unsafe fn from_device_ptr(pointer: *mut T, length: usize) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::new(pointer, length, MemorySpace::Device) }
    }
}

impl<T> SliceMut<'_, T> {
    /// Borrows the slice again, so that more than one operation can use the memory.
    ///
    /// ```
    /// use libnccl::{ReduceOp, SliceMut, StreamRef};
    ///
    /// let comms = libnccl_cpu::nccl().init_all(&[0])?;
    /// let mut sums = [1.0_f32, 2.0];
    /// let mut slice = SliceMut::from(&mut sums);
    /// comms[0].all_reduce_in_place(slice.reborrow(), ReduceOp::Sum, StreamRef::DEFAULT)?;
    /// comms[0].broadcast_in_place(slice, 0, StreamRef::DEFAULT)?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[must_use]
    pub const fn reborrow(&mut self) -> SliceMut<'_, T> {
        self.slice(0, self.raw.length)
    }

    /// Returns a range of the slice, or `None` if it is out of bounds.
    #[must_use]
    pub fn get_mut(self, range: impl RangeBounds<usize>) -> Option<Self> {
        let range = checked_range(range, self.len())?;
        Some(self.slice(range.start, range.len()))
    }

    /// Splits the slice before element `middle`; returns `None` if `middle` is out of bounds.
    ///
    /// ```
    /// use libnccl::{ReduceOp, SliceMut, StreamRef};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let comms = nccl.init_all(&[0])?;
    /// let mut sums = [1.0_f32, 2.0, 3.0];
    /// let (first, second) = SliceMut::from(&mut sums).split_at_mut(1).expect("3 elements");
    /// nccl.group(|g| {
    ///     comms[0].all_reduce_in_place(first, ReduceOp::Sum, g.stream(StreamRef::DEFAULT))?;
    ///     comms[0].all_reduce_in_place(second, ReduceOp::Max, g.stream(StreamRef::DEFAULT))
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[must_use]
    pub fn split_at_mut(self, middle: usize) -> Option<(Self, Self)> {
        let rest = self.len().checked_sub(middle)?;
        Some((self.slice(0, middle), self.slice(middle, rest)))
    }

    /// Splits the slice into parts of `length` elements. The last part may be shorter.
    ///
    /// ```
    /// use libnccl::SliceMut;
    /// use std::num::NonZeroUsize;
    ///
    /// let mut gradients = [0.0_f32; 10];
    /// let buckets = SliceMut::from(&mut gradients).chunks_mut(NonZeroUsize::new(4).unwrap());
    /// assert_eq!(buckets.map(|bucket| bucket.len()).collect::<Vec<_>>(), [4, 4, 2]);
    /// ```
    pub fn chunks_mut(self, length: NonZeroUsize) -> impl Iterator<Item = Self> {
        (0..self.len()).step_by(length.get()).map(move |start| {
            let rest = self.len() - start;
            self.slice(start, rest.min(length.get()))
        })
    }
}

// SAFETY: a slice of host memory is like `&[T]`; device memory belongs to no thread.
unsafe impl<T: Sync> Send for Slice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Slice<'_, T> {}
// SAFETY: as above, like `&mut [T]`.
unsafe impl<T: Send> Send for SliceMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for SliceMut<'_, T> {}

/// Converts a range within `length` elements; returns `None` if it is out of bounds.
pub(super) fn checked_range(range: impl RangeBounds<usize>, length: usize) -> Option<Range<usize>> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.checked_add(1)?,
        Bound::Excluded(end) => *end,
        Bound::Unbounded => length,
    };
    (start <= end && end <= length).then_some(start..end)
}
