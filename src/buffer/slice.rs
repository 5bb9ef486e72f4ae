#![allow(unsafe_code)] // The raw constructors are unsafe.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::ops::{Bound, Range, RangeBounds};

use crate::buffer::{AnyElement, MemorySpace};
use crate::data_type::{DataType, Element};

/// A borrowed buffer that an operation reads.
///
/// It is created from a slice, or with [`from_raw_parts`](Self::from_raw_parts). Operations also accept references to
/// [buffers](crate::buffer::Buffer) directly.
///
/// ```
/// use libnccl::{DeviceSlice, buffer::MemorySpace};
///
/// let slice = DeviceSlice::from(&[1.0_f32, 2.0]);
/// assert_eq!((slice.len(), slice.memory_space()), (2, Some(MemorySpace::Host)));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct DeviceSlice<'a, T> {
    raw: RawSlice,
    memory: PhantomData<&'a [T]>,
}

/// A borrowed buffer that an operation writes; see [`DeviceSlice`].
#[derive(Debug)]
pub struct DeviceSliceMut<'a, T> {
    raw: RawSlice,
    memory: PhantomData<&'a mut [T]>,
}

/// The common part of the two, without lifetime and type: an address, a length, a memory space and a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawSlice {
    pointer: *const c_void,
    length: usize,
    space: MemorySpace,
    /// The CUDA device, if it is known.
    device: Option<i32>,
    data_type: DataType,
    /// The bytes after the last whole element, with which no operation takes the view.
    excess: u8,
}

impl RawSlice {
    pub(crate) const NONE: Self = Self {
        pointer: std::ptr::null(),
        length: 0,
        space: MemorySpace::Host,
        device: None,
        data_type: DataType::Uint8,
        excess: 0,
    };

    /// Returns the bytes as elements of `data_type`.
    const fn elements_of(self, data_type: DataType) -> Self {
        let (bytes, size) = (self.bytes(), data_type.size());
        // A remainder of a size, which is 8 at most.
        let excess = (bytes % size) as u8;
        Self { length: bytes / size, data_type, excess, ..self }
    }

    const fn bytes(&self) -> usize {
        self.length * self.data_type.size() + self.excess as usize
    }

    pub(crate) const fn as_raw_bytes(&self) -> (*const c_void, usize) {
        (self.pointer, self.bytes())
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

    /// Returns the memory space; `None` for an empty buffer, which may be in any.
    #[inline]
    pub(crate) const fn memory_space(&self) -> Option<MemorySpace> {
        if self.length == 0 { None } else { Some(self.space) }
    }

    #[inline]
    pub(crate) const fn slice(&self, start: usize, length: usize) -> Self {
        debug_assert!(start + length <= self.length);
        Self { pointer: self.pointer.wrapping_byte_add(start * self.data_type.size()), length, ..*self }
    }

    /// Returns one of so many parts of the same length.
    #[inline]
    pub(crate) const fn part(&self, index: usize, parts: usize) -> Self {
        let length = self.length / parts;
        self.slice(index * length, length)
    }

    /// Returns the address as C takes it: null for an empty buffer.
    #[inline]
    pub(crate) const fn as_raw(&self) -> *const c_void {
        if self.length == 0 { std::ptr::null() } else { self.pointer }
    }
}

/// Defines what the two views have in common: how they are made, and what is asked of them.
macro_rules! views {
    ($($view:ident of $pointer:ty;)*) => {$(
        impl<'a, T: Element> $view<'a, T> {
            /// Borrows `length` elements of memory in `space`.
            ///
            /// # Safety
            /// As for [`from_raw_parts`](Self::from_raw_parts), in the memory that `space` names; host memory need only
            /// live as long as `'a`.
            #[inline]
            pub(crate) const unsafe fn new(pointer: $pointer, length: usize, space: MemorySpace) -> Self {
                let (pointer, data_type) = (pointer.cast(), T::DATA_TYPE);
                let raw = RawSlice { pointer, length, space, device: None, data_type, excess: 0 };
                Self { raw, memory: PhantomData }
            }

            /// Returns the same view, with the element type known at run time only; see [`AnySlice`](crate::buffer::AnySlice).
            #[must_use]
            pub const fn into_any(self) -> $view<'a, AnyElement> {
                $view { raw: self.raw, memory: PhantomData }
            }
        }

        impl<'a, T> $view<'a, T> {
            /// Returns the bytes as elements of `data_type`, which are to be checked.
            pub(crate) const fn elements_of<U>(self, data_type: DataType) -> $view<'a, U> {
                $view { raw: self.raw.elements_of(data_type), memory: PhantomData }
            }

            /// Returns `length` elements from `start` on; the caller has checked that they exist.
            pub(crate) const fn slice(&self, start: usize, length: usize) -> Self {
                Self { raw: self.raw.slice(start, length), memory: PhantomData }
            }

            #[inline]
            pub(crate) const fn on_device(mut self, device: Option<i32>) -> Self {
                self.raw.device = device;
                self
            }

            #[inline]
            pub(crate) const fn raw(&self) -> RawSlice {
                self.raw
            }

            /// Returns the type of the elements.
            #[must_use]
            pub const fn data_type(&self) -> DataType {
                self.raw.data_type
            }

            /// Returns the number of elements.
            #[must_use]
            pub const fn len(&self) -> usize {
                self.raw.length
            }

            /// Returns `true` if there are no elements.
            #[must_use]
            pub const fn is_empty(&self) -> bool {
                self.raw.length == 0
            }

            /// Returns the memory space; `None` for an empty buffer, which has no memory.
            #[must_use]
            pub const fn memory_space(&self) -> Option<MemorySpace> {
                self.raw.memory_space()
            }
        }
    )*};
}

views! {
    DeviceSlice of *const T;
    DeviceSliceMut of *mut T;
}

impl<T: Element> DeviceSlice<'_, T> {
    /// Borrows `length` elements of device memory.
    ///
    /// ```no_run
    /// # let nccl = libnccl::Nccl::load()?;
    /// # let comm = nccl.communicator(8, 0, &nccl.unique_id()?).init()?;
    /// # let (pointer, length, mut sums) = (std::ptr::null::<f32>(), 1024, nccl.alloc::<f32>(1024)?);
    /// # fn synchronize() {}
    /// use libnccl::{DeviceSlice, ReduceOp, StreamRef};
    ///
    /// // SAFETY: cudaMalloc returned `pointer` for `length` elements; they are freed after `synchronize`.
    /// let send = unsafe { DeviceSlice::from_raw_parts(pointer, length) };
    /// comm.all_reduce(send, &mut sums, ReduceOp::Sum, StreamRef::DEFAULT)?;
    /// synchronize(); // cudaStreamSynchronize
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Safety
    /// `pointer` is the address of `length` elements on the device of every communicator that the view is used
    /// with. The memory stays allocated until the work that reads it *has run* on its stream, which is later than the
    /// end of `'a`: operations return when they are enqueued. No `&mut` reference to the elements exists until then. Work that
    /// a CUDA graph captures runs at each launch of the graph.
    ///
    /// If other work on the device writes the memory at the same time, the elements have unspecified values, and nothing
    /// worse happens.
    #[must_use]
    pub const unsafe fn from_raw_parts(pointer: *const T, length: usize) -> Self {
        // SAFETY: the caller guarantees that the memory is valid until the work has run.
        unsafe { Self::new(pointer, length, MemorySpace::Device) }
    }
}

impl<'a, T> DeviceSlice<'a, T> {
    /// Returns a part; `None` if the range is out of bounds.
    ///
    /// ```
    /// use libnccl::DeviceSlice;
    ///
    /// let slice = DeviceSlice::from(&[1.0_f32, 2.0, 3.0]);
    /// assert_eq!(slice.get(1..).map(|part| part.len()), Some(2));
    /// assert!(slice.get(2..4).is_none());
    /// ```
    #[must_use]
    pub fn get(&self, range: impl RangeBounds<usize>) -> Option<Self> {
        let Range { start, end } = checked_range(range, self.len())?;
        Some(self.slice(start, end - start))
    }
}

impl<T: Element> DeviceSliceMut<'_, T> {
    /// Borrows `length` elements of device memory; for an example, see [`DeviceSlice::from_raw_parts`].
    ///
    /// # Safety
    /// As for [`DeviceSlice::from_raw_parts`], and no reference to the elements exists until the work has run.
    #[must_use]
    pub const unsafe fn from_raw_parts(pointer: *mut T, length: usize) -> Self {
        // SAFETY: the caller guarantees that the memory is valid until the work has run.
        unsafe { Self::new(pointer, length, MemorySpace::Device) }
    }
}

impl<'a, T> DeviceSliceMut<'a, T> {
    /// Borrows the view, for a second use of the memory after the first.
    ///
    /// ```
    /// use libnccl::{DeviceSliceMut, ReduceOp, StreamRef};
    ///
    /// let comms = libnccl_cpu::nccl().init_all(&[0])?;
    /// let mut sums = [1.0_f32, 2.0];
    /// let mut view = DeviceSliceMut::from(&mut sums);
    /// comms[0].all_reduce_in_place(view.reborrow(), ReduceOp::Sum, StreamRef::DEFAULT)?;
    /// comms[0].broadcast_in_place(view, 0, StreamRef::DEFAULT)?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[must_use]
    pub const fn reborrow(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut { raw: self.raw.slice(0, self.raw.length), memory: PhantomData }
    }

    /// Returns a part, as [`DeviceSlice::get`] does; `None` if the range is out of bounds.
    #[must_use]
    pub fn get_mut(self, range: impl RangeBounds<usize>) -> Option<Self> {
        let Range { start, end } = checked_range(range, self.len())?;
        Some(self.slice(start, end - start))
    }

    /// Divides the view into two, the second from element `middle` on; `None` if `middle` is out of bounds.
    ///
    /// ```
    /// use libnccl::{DeviceSliceMut, ReduceOp, StreamRef};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let comms = nccl.init_all(&[0])?;
    /// let mut sums = [1.0_f32, 2.0, 3.0];
    /// let (first, second) = DeviceSliceMut::from(&mut sums).split_at_mut(1).expect("it has 3 elements");
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

    /// Divides the view into parts of `length` elements, of which the last may be shorter.
    ///
    /// ```
    /// use libnccl::DeviceSliceMut;
    /// use std::num::NonZeroUsize;
    ///
    /// let mut gradients = [0.0_f32; 10];
    /// let buckets = DeviceSliceMut::from(&mut gradients).chunks_mut(NonZeroUsize::new(4).unwrap());
    /// assert_eq!(buckets.map(|bucket| bucket.len()).collect::<Vec<_>>(), [4, 4, 2]);
    /// ```
    pub fn chunks_mut(self, length: NonZeroUsize) -> impl Iterator<Item = Self> {
        (0..self.len()).step_by(length.get()).map(move |start| {
            let rest = self.len() - start;
            self.slice(start, rest.min(length.get()))
        })
    }
}

// SAFETY: a view of host memory is like `&[T]`; device memory belongs to no thread.
unsafe impl<T: Sync> Send for DeviceSlice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for DeviceSlice<'_, T> {}
// SAFETY: as above, like `&mut [T]`.
unsafe impl<T: Send> Send for DeviceSliceMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for DeviceSliceMut<'_, T> {}

/// Converts a range of a buffer of `length` elements; `None` if it is out of bounds.
pub(crate) fn checked_range(range: impl RangeBounds<usize>, length: usize) -> Option<Range<usize>> {
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
