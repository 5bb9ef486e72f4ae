//! Memory allocated by NCCL, and the rules for freeing it (reasons: `docs/decisions.md`).
#![allow(unsafe_code)]

use std::alloc::Layout;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::slice::checked_range;
use crate::backend::{Library, call};
use crate::buffer::{Buffer, BufferMut, BufferResult, MemorySpace, Slice, SliceMut};
use crate::cuda::device_of_memory;
use crate::data_type::Element;
use crate::error::{Error, InvalidArgumentKind, Result};
use crate::stream::StreamRef;

/// A buffer that NCCL has allocated. [`register`](crate::Communicator::register) and windows require such a buffer. Since NCCL
/// 2.19.3.
///
/// NCCL allocates it in GPU memory. The CPU backend allocates it in host memory or, with the CUDA emulation, in emulated GPU
/// memory. If it is in host memory, [`as_slice`](Self::as_slice) returns the elements. Pass `&buffer` or `&mut buffer` to
/// operations.
///
/// ```
/// use libnccl::{ReduceOp, StreamRef};
///
/// let nccl = libnccl_cpu::nccl();
/// let comm = nccl.init_all(&[0])?.remove(0);
/// let mut sums = nccl.alloc::<f32>(3)?;
/// comm.all_reduce(&[1.0, 2.0, 3.0], &mut sums, ReduceOp::Sum, StreamRef::DEFAULT)?;
/// assert_eq!(sums.as_slice(), Some(&[1.0, 2.0, 3.0][..]));
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// # Dropping a buffer on a GPU
/// Operations return when they are enqueued, and NCCL does not report when they have run. Work may therefore still use the memory
/// when the buffer is dropped. So a buffer that was passed to an operation, or from which a [`Slice`] was created, is *leaked*
/// when it is dropped. To free it, wait until the work has run, and call [`assume_idle`](Self::assume_idle) before the drop.
///
/// A buffer that is unused or in host memory is freed when it is dropped. However, a buffer that is or was a
/// [`Window`](crate::window::Window) is leaked, also in host memory, unless `assume_idle` is called: other ranks may access it at
/// any time.
///
/// ```
/// # use libnccl::{ReduceOp, StreamRef};
/// # let nccl = libnccl_cpu::nccl();
/// # let comm = nccl.init_all(&[0])?.remove(0);
/// # fn synchronize() {}
/// let mut buffer = nccl.alloc::<f32>(1 << 20)?;
/// comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, StreamRef::DEFAULT)?;
/// synchronize(); // cudaStreamSynchronize
/// // SAFETY: all work that uses the buffer was on that stream.
/// unsafe { buffer.assume_idle() };
/// buffer.free()?; // Or drop it.
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// An operation borrows the buffer during the call; a group borrows it until the group ends.
#[doc(alias = "ncclMemAlloc")]
#[doc(alias = "ncclMemFree")]
pub struct NcclBuffer<T> {
    allocation: Arc<Allocation>,
    length: usize,
    element: PhantomData<T>,
}

/// The memory of a buffer, which the buffer, its registrations and its windows share. The last of them frees it.
pub(crate) struct Allocation {
    library: Arc<Library>,
    pointer: NonNull<c_void>,
    /// The library's memory space when the memory was allocated. A program may load CUDA afterwards.
    memory_space: MemorySpace,
    /// The size; zero if there is nothing to free.
    bytes: usize,
    /// The CUDA device, if it is known.
    device: Option<i32>,
    /// Set while enqueued work or another rank may still access the memory. Operations on host memory have run when they return,
    /// so they do not set it.
    busy: AtomicBool,
    /// The number of windows of the memory, through which other ranks may write it at any time.
    windows: AtomicUsize,
}

// SAFETY: the memory belongs to no thread, and any thread may call ncclMemFree.
unsafe impl Send for Allocation {}
// SAFETY: as above; a shared reference gives access only to the address, the size and atomic flags.
unsafe impl Sync for Allocation {}

impl<T: Element> NcclBuffer<T> {
    pub(crate) fn new(call: &'static str, library: &Arc<Library>, length: usize) -> Result<Self> {
        let layout = Layout::array::<T>(length).map_err(|_| {
            let size = size_of::<T>();
            let problem = format!("{length} elements of {size} bytes exceed isize::MAX bytes");
            Error::argument(call, InvalidArgumentKind::Length, problem)
        })?;
        let (pointer, memory_space) = allocate::<T>(call, library, layout.size())?;
        let is_on_device = layout.size() > 0 && memory_space == MemorySpace::Device;
        let allocation = Allocation {
            library: Arc::clone(library),
            pointer,
            memory_space,
            bytes: layout.size(),
            device: is_on_device.then(|| device_of_memory(pointer.as_ptr())).flatten(),
            busy: AtomicBool::new(false),
            windows: AtomicUsize::new(0),
        };
        Ok(Self { allocation: Arc::new(allocation), length, element: PhantomData })
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(crate) fn memory_space(&self) -> MemorySpace {
        self.allocation.memory_space
    }

    /// Returns the address of the elements, for CUDA calls that read them. Keep the buffer until the work that these calls
    /// enqueue is complete.
    #[must_use]
    pub fn as_ptr(&self) -> *const T {
        self.allocation.pointer.as_ptr().cast()
    }

    /// Returns the address of the elements, for CUDA calls that write them. Keep the buffer until the work that these calls
    /// enqueue is complete.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.allocation.pointer.as_ptr().cast()
    }

    /// Returns the elements, or `None` if they are in GPU memory. Also returns `None` while the buffer is registered as a
    /// [`Window`](crate::window::Window), because other ranks may then write to it.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[T]> {
        // SAFETY: elements in host memory, alive and unchanged as long as the buffer is borrowed. Their bytes are initialized:
        // the library returned zeroed memory, and operations and `as_mut_slice` write initialized bytes, as `Element` requires.
        self.is_exclusive_host_memory()
            .then(|| unsafe { std::slice::from_raw_parts(self.as_ptr(), self.length) })
    }

    /// Returns the elements for writing, or `None` in the same cases as [`as_slice`](Self::as_slice).
    ///
    /// ```
    /// let mut buffer = libnccl_cpu::nccl().alloc::<i32>(3)?;
    /// if let Some(elements) = buffer.as_mut_slice() {
    ///     elements.fill(7);
    /// }
    /// assert_eq!(buffer.as_slice(), Some(&[7; 3][..]));
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[must_use]
    pub fn as_mut_slice(&mut self) -> Option<&mut [T]> {
        // SAFETY: as in `as_slice`; the borrow is exclusive.
        self.is_exclusive_host_memory()
            .then(|| unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.length) })
    }

    /// Returns whether the elements are in host memory and no other rank can access them.
    fn is_exclusive_host_memory(&self) -> bool {
        self.memory_space() == MemorySpace::Host && self.allocation.windows.load(Acquire) == 0
    }

    /// Returns a range for an operation to read, or `None` if it is out of bounds. For an example, see
    /// [`get_mut`](Self::get_mut).
    #[must_use]
    pub fn get(&self, range: impl RangeBounds<usize>) -> Option<Slice<'_, T>> {
        let range = checked_range(range, self.length)?;
        Some(Slice::from(self).slice(range.start, range.len()))
    }

    /// Returns a range for an operation to write, or `None` if it is out of bounds.
    ///
    /// ```
    /// use libnccl::{ReduceOp, StreamRef};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let comm = nccl.init_all(&[0])?.remove(0);
    /// let mut buffer = nccl.alloc::<f32>(4)?;
    /// let last = buffer.get_mut(3..).expect("it has 4 elements");
    /// comm.all_reduce(&[5.0], last, ReduceOp::Sum, StreamRef::DEFAULT)?;
    /// assert_eq!(buffer.as_slice(), Some(&[0.0, 0.0, 0.0, 5.0][..]));
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[must_use]
    pub fn get_mut(&mut self, range: impl RangeBounds<usize>) -> Option<SliceMut<'_, T>> {
        let range = checked_range(range, self.length)?;
        Some(SliceMut::from(self).slice(range.start, range.len()))
    }

    /// Promises that nothing uses the buffer any more, so that its memory is freed when the buffer, its registrations and its
    /// windows are dropped. A later operation with the buffer cancels the promise. For an example, see [`NcclBuffer`].
    ///
    /// # Safety
    /// - All work of this rank that uses the buffer must have run.
    /// - If the buffer is or was a window, all work of other ranks that uses it must have run. They must never start such work
    ///   again, not even after this rank has deregistered the window.
    /// - No CUDA graph that has captured work with the buffer may be launched again.
    pub unsafe fn assume_idle(&mut self) {
        self.allocation.busy.store(false, Relaxed);
    }

    /// Frees the memory as a drop does, but returns errors; for an example, see [`NcclBuffer`]. Since NCCL 2.19.3.
    ///
    /// # Errors
    /// - [`Error::InvalidUsage`] if work may still use the memory (see [`NcclBuffer`]). The memory is then leaked.
    /// - [`Error::InvalidUsage`] if a registration or a window of the buffer exists. When the last of these is dropped, the
    ///   memory is freed, unless work may still use it.
    /// - [`Error::Nccl`] if NCCL fails. The memory cannot be used anymore.
    #[doc(alias = "ncclMemFree")]
    pub fn free(self) -> Result<()> {
        match Arc::into_inner(self.allocation) {
            Some(mut allocation) => allocation.free(),
            None => Err(Error::usage("free", "the memory is still registered")),
        }
    }

    pub(crate) fn device(&self) -> Option<i32> {
        self.allocation.device
    }

    pub(crate) fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }
}

/// Allocates memory, and returns it with its memory space. Host memory is zeroed.
fn allocate<T>(
    call: &'static str,
    library: &Library,
    bytes: usize,
) -> Result<(NonNull<c_void>, MemorySpace)> {
    if bytes == 0 {
        return Ok((NonNull::<T>::dangling().cast(), library.memory_space()));
    }
    loop {
        let memory_space = library.memory_space();
        let mut pointer = ptr::null_mut();
        // SAFETY: a valid out-parameter.
        unsafe { call!(library, ncclMemAlloc(&raw mut pointer, bytes)) }?;
        if library.memory_space() != memory_space {
            // Another thread has loaded CUDA, which happens once. The memory may be in either memory space.
            // SAFETY: memory of ncclMemAlloc, which nothing uses.
            unsafe { call!(library, ncclMemFree(pointer)) }?;
            continue;
        }
        // Never violated so far, but the unsafe code that uses the memory relies on it.
        let pointer = NonNull::new(pointer).filter(|pointer| pointer.cast::<T>().is_aligned());
        return pointer.map(|pointer| (pointer, memory_space)).ok_or_else(|| {
            Error::usage(call, format!("ncclMemAlloc returned {pointer:?}, which is null or not aligned"))
        });
    }
}

impl Allocation {
    pub(crate) fn as_ptr(&self) -> *mut c_void {
        self.pointer.as_ptr()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn set_busy(&self) {
        if self.memory_space == MemorySpace::Device {
            self.busy.store(true, Relaxed);
        }
    }

    /// Returns an error if work of this or another rank may still use the memory.
    pub(crate) fn check_idle(&self, call: &'static str) -> Result<()> {
        if self.busy.load(Relaxed) {
            let problem =
                "work that uses the memory may not have run yet; wait for it, then call assume_idle";
            return Err(Error::usage(call, problem));
        }
        Ok(())
    }

    /// Records a window, through which other ranks may write the memory from now on.
    pub(crate) fn open_window(&self) {
        self.busy.store(true, Relaxed);
        self.windows.fetch_add(1, Relaxed);
    }

    /// Records the end of a window. Other ranks no longer write the memory.
    pub(crate) fn close_window(&self) {
        self.windows.fetch_sub(1, Release);
    }

    fn free(&mut self) -> Result<()> {
        if std::mem::take(&mut self.bytes) == 0 {
            return Ok(());
        }
        self.check_idle("free")?;
        // SAFETY: memory of ncclMemAlloc, freed only here. No buffer, registration or window exists anymore, because all of
        // them share `self`. It is idle, so no work uses it.
        unsafe { call!(self.library, ncclMemFree(self.pointer.as_ptr())) }.map(drop)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let _ = self.free();
    }
}

impl<'a, T: Element> Buffer<'a> for &'a NcclBuffer<T> {
    type Element = T;
    type Guard = ();

    unsafe fn into_slice(self, _: StreamRef<'a>) -> BufferResult<(Slice<'a, T>, ())> {
        Ok((self.into(), ()))
    }
}

impl<'a, T: Element> BufferMut<'a> for &'a mut NcclBuffer<T> {
    type Element = T;
    type Guard = ();

    unsafe fn into_slice_mut(self, _: StreamRef<'a>) -> BufferResult<(SliceMut<'a, T>, ())> {
        Ok((self.into(), ()))
    }
}

/// Borrows the whole buffer. The buffer then counts as used by an operation, even if no operation uses the slice; see [dropping a
/// buffer](NcclBuffer#dropping-a-buffer-on-a-gpu).
impl<'a, T: Element> From<&'a NcclBuffer<T>> for Slice<'a, T> {
    #[inline]
    fn from(buffer: &'a NcclBuffer<T>) -> Self {
        buffer.allocation.set_busy();
        // SAFETY: `length` elements in that memory space, allocated as long as the buffer is borrowed. On a GPU, busy memory is
        // not freed before `assume_idle`, whose caller guarantees that the work has run. No Rust reference exists to memory that
        // enqueued work or other ranks may write: `as_slice` refuses it, and the CPU backend accesses windows only by atomic
        // words. So overlapping work can at worst produce wrong values.
        unsafe { Self::new(buffer.as_ptr(), buffer.length, buffer.memory_space()) }.on_device(buffer.device())
    }
}

/// Borrows the whole buffer. The buffer then counts as used by an operation, even if no operation uses the slice; see [dropping a
/// buffer](NcclBuffer#dropping-a-buffer-on-a-gpu).
impl<'a, T: Element> From<&'a mut NcclBuffer<T>> for SliceMut<'a, T> {
    #[inline]
    fn from(buffer: &'a mut NcclBuffer<T>) -> Self {
        buffer.allocation.set_busy();
        // SAFETY: as above; no slice of the elements exists, as the buffer is borrowed exclusively.
        unsafe { Self::new(buffer.as_mut_ptr(), buffer.length, buffer.memory_space()) }
            .on_device(buffer.device())
    }
}

impl<T: Element> fmt::Debug for NcclBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NcclBuffer")
            .field("data_type", &T::DATA_TYPE)
            .field("length", &self.length)
            .field("memory_space", &self.memory_space())
            .finish_non_exhaustive()
    }
}
