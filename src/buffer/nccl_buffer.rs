//! Memory that NCCL allocates, and the conditions under which it is freed; for the reasons, see
//! `docs/adr/002-owned-memory.md`.
#![allow(unsafe_code)]

use std::alloc::Layout;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::backend::{Library, call};
use crate::buffer::{Buffer, BufferMut, BufferResult, DeviceSlice, DeviceSliceMut, MemorySpace};
use crate::cuda::device_of_memory;
use crate::data_type::Element;
use crate::error::{Error, InvalidArgumentKind, Result};
use crate::nccl::Nccl;
use crate::stream::StreamRef;

/// A buffer that NCCL has allocated, as registrations and windows require. Since NCCL 2.19.3.
///
/// It is in the memory space of the implementation: in GPU memory with NCCL, and in host memory with the CPU
/// implementation, where it can be used as a slice too. Pass `&buffer` or `&mut buffer` to operations.
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
/// Operations return when they are enqueued, and NCCL does not tell when they have run. To never free memory that work
/// may still use, dropping a buffer that was passed to an operation *leaks* it, unless
/// [`assume_idle`](Self::assume_idle) promises that the work has run. A buffer that was not used, and a buffer in host
/// memory, is freed on drop. A buffer that is a [`Window`](crate::operation::Window) is leaked in both memory spaces, as other
/// ranks may access it at any time, unless `assume_idle` promises that they do not.
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
/// An operation borrows the buffer during the call, and a group during the group.
#[doc(alias = "ncclMemAlloc")]
#[doc(alias = "ncclMemFree")]
pub struct NcclBuffer<T> {
    allocation: Arc<Allocation>,
    length: usize,
    element: PhantomData<T>,
}

/// The memory of a buffer, shared with its registrations and windows: it is freed after all of them are dropped.
pub(crate) struct Allocation {
    library: Arc<Library>,
    pointer: NonNull<c_void>,
    /// The library's at the time of the allocation: a program may load CUDA afterwards.
    memory_space: MemorySpace,
    /// The size; zero if there is nothing to free.
    bytes: usize,
    /// The CUDA device, if it is known.
    device: Option<i32>,
    /// Set while enqueued work or another rank may still access the memory. In host memory, an operation has run when
    /// it returns.
    busy: AtomicBool,
    /// The number of windows on it, through which other ranks may write it at any time.
    windows: AtomicUsize,
}

// SAFETY: the memory belongs to no thread, and any thread may call ncclMemFree.
unsafe impl Send for Allocation {}
// SAFETY: as above; a shared reference gives access only to the address, the size and atomic flags.
unsafe impl Sync for Allocation {}

impl Nccl {
    /// Allocates `length` elements: on the calling thread's current GPU, or zeroed in host memory. Since NCCL
    /// 2.19.3.
    ///
    /// NCCL rounds up to the granularity of the GPU, about 2 MiB, so prefer one large buffer to many small ones. For
    /// zero elements no memory is allocated.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the size exceeds `isize::MAX` bytes; [`Error::Unsupported`]; [`Error::Nccl`], for
    /// instance if memory is exhausted.
    #[doc(alias = "ncclMemAlloc")]
    pub fn alloc<T: Element>(&self, length: usize) -> Result<NcclBuffer<T>> {
        NcclBuffer::new("alloc", &self.library, length)
    }
}

impl<T: Element> NcclBuffer<T> {
    /// Allocates elements on behalf of the method `call`.
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

    /// Returns `true` if there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the memory space.
    #[must_use]
    pub fn memory_space(&self) -> MemorySpace {
        self.allocation.memory_space
    }

    /// Returns the address, for calls into CUDA. Keep the buffer until the work of these calls has run too.
    #[must_use]
    pub fn as_ptr(&self) -> *const T {
        self.allocation.pointer.as_ptr().cast()
    }

    /// Returns the address, for calls that write.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.allocation.pointer.as_ptr().cast()
    }

    /// Returns the elements; `None` on a GPU, and while the buffer is a [`Window`](crate::operation::Window), which other ranks
    /// may write.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[T]> {
        // SAFETY: elements in host memory, alive and unchanged as long as the buffer is borrowed. Their bytes are initialized:
        // the library returned zeroed memory, and what writes it, operations and `as_mut_slice`, writes initialized bytes, as
        // `Element` requires.
        self.is_exclusive_host_memory()
            .then(|| unsafe { std::slice::from_raw_parts(self.as_ptr(), self.length) })
    }

    /// Returns the elements, for writing; `None` in the cases of [`as_slice`](Self::as_slice).
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

    /// Returns `true` if the elements are in host memory and no other rank can access them.
    fn is_exclusive_host_memory(&self) -> bool {
        self.memory_space() == MemorySpace::Host && self.allocation.windows.load(Acquire) == 0
    }

    /// Returns a view for an operation, which makes the memory busy.
    pub(crate) fn view(&self) -> DeviceSlice<'_, T> {
        self.allocation.set_busy();
        // SAFETY: `length` elements in that memory space, alive as long as the buffer is borrowed. On a GPU, busy
        // memory is not freed until `assume_idle`, whose caller guarantees that the work has run. No Rust reference
        // exists to memory that enqueued work or other ranks may write: not here, as `as_slice` refuses it, and not in
        // the CPU implementation, which accesses windows by atomic words only. So overlapping work can at worst produce
        // wrong values.
        unsafe { DeviceSlice::new(self.as_ptr(), self.length, self.memory_space()) }.on_device(self.device())
    }

    /// Returns a view for an operation that writes, which makes the memory busy.
    pub(crate) fn view_mut(&mut self) -> DeviceSliceMut<'_, T> {
        self.allocation.set_busy();
        // SAFETY: as in `view`; no slice of the elements exists, as the buffer is borrowed exclusively.
        unsafe { DeviceSliceMut::new(self.as_mut_ptr(), self.length, self.memory_space()) }
            .on_device(self.device())
    }

    /// Promises that nothing uses the buffer, so that dropping it, its registrations and its windows frees them.
    /// Operations that are enqueued with it from now on make it busy again. For an example, see [`NcclBuffer`].
    ///
    /// # Safety
    /// All work that uses this buffer has run: that of this rank and, if it is or was a window, that of the other ranks.
    /// The other ranks never start work again that uses this rank's part of that window, not even after this rank has
    /// deregistered it. No CUDA graph that has captured work with the buffer is launched again.
    pub unsafe fn assume_idle(&mut self) {
        self.allocation.busy.store(false, Relaxed);
    }

    /// Frees the memory, as dropping it does, and returns errors; for an example, see [`NcclBuffer`]. Since NCCL 2.19.3.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] if work may still use it, on a GPU or as a window: the memory is leaked; or if it is
    /// registered: the memory is freed after its registrations. [`Error::Nccl`] if NCCL reports a failure; the memory
    /// is gone nevertheless.
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

/// Allocates memory, which is zeroed in host memory, and returns its memory space.
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
            // Another thread has loaded CUDA, which happens once: the memory may be in either memory space.
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

    /// Records a window: other ranks may write the memory from now on.
    pub(crate) fn open_window(&self) {
        self.busy.store(true, Relaxed);
        self.windows.fetch_add(1, Relaxed);
    }

    /// Records the end of a window: other ranks do not write any more.
    pub(crate) fn close_window(&self) {
        self.windows.fetch_sub(1, Release);
    }

    fn free(&mut self) -> Result<()> {
        if std::mem::take(&mut self.bytes) == 0 {
            return Ok(());
        }
        self.check_idle("free")?;
        // SAFETY: memory of ncclMemAlloc, freed only here. No buffer, registration or window exists any more, as all of
        // them share `self`; no work uses it, as it is idle.
        unsafe { call!(self.library, ncclMemFree(self.pointer.as_ptr())) }.map(drop)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let _ = self.free();
    }
}

// SAFETY: `length` elements in that memory space, both of which never change. In host memory they are initialized, as
// `as_slice` says, and borrowed as long as the buffer is. On a GPU they are not freed before `assume_idle`, whose caller
// guarantees that the work has run, as an operation makes the memory busy; no Rust reference to them exists.
unsafe impl<T: Element> Buffer for NcclBuffer<T> {
    type Element = T;
    type Guard<'a>
        = ()
    where
        T: 'a;

    fn memory_space(&self) -> MemorySpace {
        self.memory_space()
    }
    fn len(&self) -> usize {
        self.len()
    }
    fn device(&self) -> Option<i32> {
        self.device()
    }
    fn as_ptr<'a>(&'a self, _: StreamRef<'a>) -> BufferResult<(*const T, ())> {
        self.allocation.set_busy();
        Ok((self.as_ptr(), ()))
    }
}

// SAFETY: as above; the buffer is borrowed exclusively.
unsafe impl<T: Element> BufferMut for NcclBuffer<T> {
    type GuardMut<'a>
        = ()
    where
        T: 'a;

    fn as_mut_ptr<'a>(&'a mut self, _: StreamRef<'a>) -> BufferResult<(*mut T, ())> {
        self.allocation.set_busy();
        Ok((self.as_mut_ptr(), ()))
    }
}

/// Marks the buffer as used by an operation, whether the view is used or not.
impl<'a, T: Element> From<&'a NcclBuffer<T>> for DeviceSlice<'a, T> {
    fn from(buffer: &'a NcclBuffer<T>) -> Self {
        buffer.view()
    }
}

/// Marks the buffer as used by an operation, whether the view is used or not.
impl<'a, T: Element> From<&'a mut NcclBuffer<T>> for DeviceSliceMut<'a, T> {
    fn from(buffer: &'a mut NcclBuffer<T>) -> Self {
        buffer.view_mut()
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
