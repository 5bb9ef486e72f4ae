#![allow(unsafe_code)] // The raw constructors are unsafe.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;

/// Where the memory is that a communicator works on.
///
/// ```
/// use libnccl::MemorySpace;
///
/// let nccl = libnccl_cpu::nccl();
/// assert_eq!(nccl.memory_space(), MemorySpace::Host);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemorySpace {
    /// The host's memory: the CPU implementation.
    Host,
    /// A GPU's memory: NCCL itself.
    Device,
}

impl fmt::Display for MemorySpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Device => "device",
        })
    }
}

/// A borrowed buffer that an operation reads.
///
/// Made from a slice, or any other [`Buffer`](crate::Buffer), or by [`from_raw_parts`](Self::from_raw_parts).
///
/// ```
/// use libnccl::{DeviceSlice, MemorySpace};
///
/// let slice = DeviceSlice::from(&[1.0_f32, 2.0]);
/// assert_eq!((slice.len(), slice.memory_space()), (2, Some(MemorySpace::Host)));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct DeviceSlice<'a, T> {
    pointer: *const T,
    length: usize,
    space: MemorySpace,
    memory: PhantomData<&'a [T]>,
}

/// A borrowed buffer that an operation writes; see [`DeviceSlice`].
///
/// ```
/// use libnccl::DeviceSliceMut;
///
/// let mut sums = vec![0.0_f64; 4];
/// let slice = DeviceSliceMut::from(&mut sums);
/// assert_eq!(slice.len(), 4);
/// ```
#[derive(Debug)]
pub struct DeviceSliceMut<'a, T> {
    pointer: *mut T,
    length: usize,
    space: MemorySpace,
    memory: PhantomData<&'a mut [T]>,
}

impl<'a, T> DeviceSlice<'a, T> {
    /// Borrows `length` elements of device memory.
    ///
    /// ```no_run
    /// # fn main() -> libnccl::Result<()> {
    /// # let nccl = libnccl::Nccl::load()?;
    /// # let comm = nccl.init_rank(8, 0, &nccl.unique_id()?)?;
    /// # let (pointer, length, mut sums) = (std::ptr::null::<f32>(), 1024, nccl.alloc::<f32>(1024)?);
    /// # fn synchronize() {}
    /// use libnccl::{DeviceSlice, ReduceOp, StreamRef};
    ///
    /// // SAFETY: cudaMalloc gave `pointer` for so many elements; they are freed after `synchronize`.
    /// let send = unsafe { DeviceSlice::from_raw_parts(pointer, length) };
    /// comm.all_reduce(send, &mut sums, ReduceOp::Sum, StreamRef::DEFAULT)?;
    /// synchronize(); // cudaStreamSynchronize
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// `pointer` is the address of `length` elements on the device of every communicator that the view is used
    /// with. The memory stays allocated, and is not written, until the work that reads it *has run* on its
    /// stream, which is later than the end of `'a`: operations return when they are enqueued.
    #[must_use]
    pub const unsafe fn from_raw_parts(pointer: *const T, length: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::new(pointer, length, MemorySpace::Device) }
    }

    /// # Safety
    /// As for [`from_raw_parts`](Self::from_raw_parts), in the memory that `space` says; host memory has only to
    /// live as long as `'a`.
    #[inline]
    pub(crate) const unsafe fn new(pointer: *const T, length: usize, space: MemorySpace) -> Self {
        Self { pointer, length, space, memory: PhantomData }
    }

    /// How many elements it holds.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether it holds none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Where its memory is; `None` for an empty buffer, which has none.
    #[must_use]
    pub const fn memory_space(&self) -> Option<MemorySpace> {
        if self.is_empty() { None } else { Some(self.space) }
    }

    /// `length` elements from `start` on; the caller has checked that they are there.
    pub(crate) const fn slice(&self, start: usize, length: usize) -> Self {
        debug_assert!(start + length <= self.length);
        let Self { pointer, space, memory, .. } = *self;
        Self { pointer: pointer.wrapping_add(start), length, space, memory }
    }

    /// Part `index` of the `parts` equal ones that this buffer consists of.
    pub(crate) const fn part(&self, index: usize, parts: usize) -> Self {
        let length = self.length / parts;
        self.slice(index * length, length)
    }

    /// What the C function is given: null for an empty buffer, whose address means nothing.
    pub(crate) const fn as_raw(&self) -> *const c_void {
        if self.is_empty() { std::ptr::null() } else { self.pointer.cast() }
    }
}

impl<'a, T> DeviceSliceMut<'a, T> {
    /// Borrows `length` elements of device memory.
    ///
    /// ```no_run
    /// # fn main() -> libnccl::Result<()> {
    /// # let nccl = libnccl::Nccl::load()?;
    /// # let comm = nccl.init_rank(8, 0, &nccl.unique_id()?)?;
    /// # let (pointer, length) = (std::ptr::null_mut::<f32>(), 1024);
    /// # fn synchronize() {}
    /// use libnccl::{DeviceSliceMut, ReduceOp, StreamRef};
    ///
    /// // SAFETY: cudaMalloc gave `pointer` for so many elements; nothing else uses them before `synchronize`.
    /// let buffer = unsafe { DeviceSliceMut::from_raw_parts(pointer, length) };
    /// comm.all_reduce_in_place(buffer, ReduceOp::Sum, StreamRef::DEFAULT)?;
    /// synchronize(); // cudaStreamSynchronize
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// As for [`DeviceSlice::from_raw_parts`]; and until the work has run, nothing else reads or writes the
    /// memory.
    #[must_use]
    pub const unsafe fn from_raw_parts(pointer: *mut T, length: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::new(pointer, length, MemorySpace::Device) }
    }

    /// # Safety
    /// As for [`from_raw_parts`](Self::from_raw_parts), in the memory that `space` says; host memory has only to
    /// live as long as `'a`.
    #[inline]
    pub(crate) const unsafe fn new(pointer: *mut T, length: usize, space: MemorySpace) -> Self {
        Self { pointer, length, space, memory: PhantomData }
    }

    /// How many elements it holds.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether it holds none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Where its memory is; `None` for an empty buffer, which has none.
    #[must_use]
    pub const fn memory_space(&self) -> Option<MemorySpace> {
        if self.is_empty() { None } else { Some(self.space) }
    }

    pub(crate) const fn as_raw(&self) -> *mut c_void {
        if self.is_empty() { std::ptr::null_mut() } else { self.pointer.cast() }
    }

    /// `length` elements from `start` on; the caller has checked that they are there.
    pub(crate) const fn slice_mut(&self, start: usize, length: usize) -> Self {
        debug_assert!(start + length <= self.length);
        let Self { pointer, space, .. } = *self;
        Self { pointer: pointer.wrapping_add(start), length, space, memory: PhantomData }
    }

    /// Part `index` of the `parts` equal ones that this buffer consists of.
    pub(crate) const fn part_mut(&self, index: usize, parts: usize) -> Self {
        let length = self.length / parts;
        self.slice_mut(index * length, length)
    }

    /// The same part, for an in-place operation to send.
    pub(crate) const fn part(&self, index: usize, parts: usize) -> DeviceSlice<'a, T> {
        let Self { pointer, length, space, .. } = self.part_mut(index, parts);
        DeviceSlice { pointer: pointer.cast_const(), length, space, memory: PhantomData }
    }
}
