#![allow(unsafe_code)] // The raw constructors are unsafe.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;

/// The kind of memory that a communicator works on.
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
    /// Host memory, used by the CPU implementation.
    Host,
    /// GPU memory, used by NCCL itself.
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
/// It is created from a slice, or with [`from_raw_parts`](Self::from_raw_parts). Operations also accept references to
/// [buffers](crate::Buffer) directly.
///
/// ```
/// use libnccl::{DeviceSlice, MemorySpace};
///
/// let slice = DeviceSlice::from(&[1.0_f32, 2.0]);
/// assert_eq!((slice.len(), slice.memory_space()), (2, Some(MemorySpace::Host)));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct DeviceSlice<'a, T> {
    raw: RawSlice<T>,
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
    raw: RawSlice<T>,
    memory: PhantomData<&'a mut [T]>,
}

/// The common part of the two: an address, a length, a memory space and a device.
#[derive(Debug, Clone, Copy)]
struct RawSlice<T> {
    pointer: *const T,
    length: usize,
    space: MemorySpace,
    /// The CUDA device, if it is known.
    device: Option<i32>,
}

impl<T> RawSlice<T> {
    const fn memory_space(&self) -> Option<MemorySpace> {
        if self.length == 0 { None } else { Some(self.space) }
    }

    const fn slice(&self, start: usize, length: usize) -> Self {
        debug_assert!(start + length <= self.length);
        Self { pointer: self.pointer.wrapping_add(start), length, ..*self }
    }

    const fn part(&self, index: usize, parts: usize) -> Self {
        let length = self.length / parts;
        self.slice(index * length, length)
    }

    const fn as_raw(&self) -> *const c_void {
        if self.length == 0 { std::ptr::null() } else { self.pointer.cast() }
    }
}

impl<T> DeviceSlice<'_, T> {
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
    /// // SAFETY: cudaMalloc returned `pointer` for `length` elements; they are freed after `synchronize`.
    /// let send = unsafe { DeviceSlice::from_raw_parts(pointer, length) };
    /// comm.all_reduce(send, &mut sums, ReduceOp::Sum, StreamRef::DEFAULT)?;
    /// synchronize(); // cudaStreamSynchronize
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// `pointer` is the address of `length` elements on the device of every communicator that the view is used
    /// with. The memory stays allocated until the work that reads it *has run* on its stream, which is later than the
    /// end of `'a`: operations return when they are enqueued. No `&mut` reference to the elements exists until then.
    ///
    /// If other work on the device writes the memory at the same time, the elements have unspecified values, and nothing
    /// worse happens.
    #[must_use]
    pub const unsafe fn from_raw_parts(pointer: *const T, length: usize) -> Self {
        // SAFETY: the caller guarantees that the memory is valid until the work has run.
        unsafe { Self::new(pointer, length, MemorySpace::Device) }
    }

    /// Borrows `length` elements of memory in `space`.
    ///
    /// # Safety
    /// As for [`from_raw_parts`](Self::from_raw_parts), in the memory that `space` names; host memory need only live
    /// as long as `'a`.
    #[inline]
    pub(crate) const unsafe fn new(pointer: *const T, length: usize, space: MemorySpace) -> Self {
        Self { raw: RawSlice { pointer, length, space, device: None }, memory: PhantomData }
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

    /// Sets the CUDA device of the memory, if it is known.
    #[inline]
    pub(crate) const fn on_device(mut self, device: Option<i32>) -> Self {
        self.raw.device = device;
        self
    }

    #[inline]
    pub(crate) const fn device(&self) -> Option<i32> {
        self.raw.device
    }

    /// Returns `length` elements from `start` on; the caller has checked that they exist.
    pub(crate) const fn slice(&self, start: usize, length: usize) -> Self {
        Self { raw: self.raw.slice(start, length), memory: PhantomData }
    }

    /// Returns part `index` of the `parts` equal parts of this buffer.
    pub(crate) const fn part(&self, index: usize, parts: usize) -> Self {
        Self { raw: self.raw.part(index, parts), memory: PhantomData }
    }

    /// Returns the address for C: null for an empty buffer, whose address is meaningless.
    pub(crate) const fn as_raw(&self) -> *const c_void {
        self.raw.as_raw()
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
    /// // SAFETY: cudaMalloc returned `pointer` for `length` elements; they are freed after `synchronize`.
    /// let buffer = unsafe { DeviceSliceMut::from_raw_parts(pointer, length) };
    /// comm.all_reduce_in_place(buffer, ReduceOp::Sum, StreamRef::DEFAULT)?;
    /// synchronize(); // cudaStreamSynchronize
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// As for [`DeviceSlice::from_raw_parts`], and no reference to the elements exists until the work has run.
    #[must_use]
    pub const unsafe fn from_raw_parts(pointer: *mut T, length: usize) -> Self {
        // SAFETY: the caller guarantees that the memory is valid until the work has run.
        unsafe { Self::new(pointer, length, MemorySpace::Device) }
    }

    /// Borrows `length` elements of memory in `space`.
    ///
    /// # Safety
    /// As for [`from_raw_parts`](Self::from_raw_parts), in the memory that `space` names; host memory need only live
    /// as long as `'a`.
    #[inline]
    pub(crate) const unsafe fn new(pointer: *mut T, length: usize, space: MemorySpace) -> Self {
        Self { raw: RawSlice { pointer, length, space, device: None }, memory: PhantomData }
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

    /// Sets the CUDA device of the memory, if it is known.
    #[inline]
    pub(crate) const fn on_device(mut self, device: Option<i32>) -> Self {
        self.raw.device = device;
        self
    }

    #[inline]
    pub(crate) const fn device(&self) -> Option<i32> {
        self.raw.device
    }

    /// Returns `length` elements from `start` on; the caller has checked that they exist.
    pub(crate) const fn slice_mut(&self, start: usize, length: usize) -> Self {
        Self { raw: self.raw.slice(start, length), memory: PhantomData }
    }

    /// Returns part `index` of the `parts` equal parts of this buffer.
    pub(crate) const fn part_mut(&self, index: usize, parts: usize) -> Self {
        Self { raw: self.raw.part(index, parts), memory: PhantomData }
    }

    /// Returns the same part as [`part_mut`](Self::part_mut), for an in-place operation to send.
    pub(crate) const fn part(&self, index: usize, parts: usize) -> DeviceSlice<'a, T> {
        DeviceSlice { raw: self.raw.part(index, parts), memory: PhantomData }
    }

    /// Returns the address for C: null for an empty buffer, whose address is meaningless.
    pub(crate) const fn as_raw(&self) -> *mut c_void {
        self.raw.as_raw().cast_mut()
    }
}
