//! Memory that NCCL allocates, and when it may be taken back: `docs/adr/002-owned-memory.md` says why so.
#![allow(unsafe_code)]

use std::alloc::Layout;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::backend::{Library, call};
use crate::{DeviceSlice, DeviceSliceMut, Element, Error, MemorySpace, Nccl, Result};

/// A buffer in the kind of memory that registrations and windows want. Since NCCL 2.19.3.
///
/// It is in the memory of the implementation: on a GPU, where `&buffer` and `&mut buffer` go into operations; on
/// the CPU implementation in host memory, where it is a slice as well.
///
/// ```
/// # fn main() -> libnccl::Result<()> {
/// use libnccl::{ReduceOp, StreamRef};
///
/// let nccl = libnccl_cpu::nccl();
/// let comm = nccl.init_all(&[0])?.remove(0);
/// let mut sums = nccl.alloc::<f32>(3)?;
/// comm.all_reduce(&[1.0, 2.0, 3.0], &mut sums, ReduceOp::Sum, StreamRef::DEFAULT)?;
/// assert_eq!(sums.as_slice(), Some(&[1.0, 2.0, 3.0][..]));
/// # Ok(())
/// # }
/// ```
///
/// # On a GPU, a drop alone does not free
/// Operations return when they are enqueued, and NCCL does not say when they have run. So memory that an operation
/// was given is never taken back under work in flight: dropping it *leaks* it, until
/// [`assume_idle`](Self::assume_idle) promises that the work has run. A buffer that nothing has used is freed by its
/// drop, and so is one in host memory. Either way, a [`Window`](crate::Window) is not: other ranks may use it at any
/// time, and only `assume_idle` says that they do not.
///
/// ```
/// # fn main() -> libnccl::Result<()> {
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
/// # Ok(())
/// # }
/// ```
///
/// An operation borrows the buffer during the call, and a group during the group:
///
/// ```compile_fail,E0505
/// # fn main() -> libnccl::Result<()> {
/// # use libnccl::StreamRef;
/// let nccl = libnccl_cpu::nccl();
/// let comm = nccl.init_all(&[0])?.remove(0);
/// let buffer = nccl.alloc::<f32>(3)?;
/// nccl.group(|g| {
///     g.send(&comm, &buffer, 0, StreamRef::DEFAULT)?;
///     drop(buffer);
///     Ok(())
/// })?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ncclMemAlloc")]
#[doc(alias = "ncclMemFree")]
pub struct NcclBuffer<T> {
    allocation: Arc<Allocation>,
    length: usize,
    element: PhantomData<T>,
}

/// The memory itself, owned together by the buffer and its registrations: it goes after the last of them.
pub(crate) struct Allocation {
    library: Arc<Library>,
    pointer: NonNull<c_void>,
    /// Zero if there is nothing to free.
    bytes: usize,
    /// Whether someone may use the memory of whom nobody knows when they are done: work that may not have run yet,
    /// or other ranks, as it is a window. In host memory an operation has run when it returns.
    busy: AtomicBool,
    /// How many windows it is: other ranks may write it at any time then.
    windows: AtomicUsize,
}

// SAFETY: the memory belongs to no thread, and ncclMemFree may be called from any.
unsafe impl Send for Allocation {}
// SAFETY: as above; through a shared reference, only its address and its flags are read and written.
unsafe impl Sync for Allocation {}

impl Nccl {
    /// Allocates `length` elements: on the calling thread's current GPU, or zeroed in host memory. Since NCCL
    /// 2.19.3.
    ///
    /// NCCL rounds up to the GPU's granularity, some 2 MiB: better one large buffer than many small ones. No
    /// memory is allocated for no elements.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// let mut buffer = libnccl_cpu::nccl().alloc::<i64>(4)?;
    /// assert_eq!(buffer.as_mut_slice(), Some(&mut [0; 4][..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if so many elements fit into no memory; [`Error::Unsupported`];
    /// [`Error::Nccl`], above all if there is no such memory left.
    #[doc(alias = "ncclMemAlloc")]
    pub fn alloc<T: Element>(&self, length: usize) -> Result<NcclBuffer<T>> {
        NcclBuffer::new(&self.library, length)
    }
}

impl<T: Element> NcclBuffer<T> {
    pub(crate) fn new(library: &Arc<Library>, length: usize) -> Result<Self> {
        const CALL: &str = "alloc";
        let layout = Layout::array::<T>(length).map_err(|_| {
            let size = size_of::<T>();
            Error::argument(CALL, format!("{length} elements of {size} bytes are more than there can be"))
        })?;
        let pointer = if layout.size() == 0 {
            NonNull::<T>::dangling().cast()
        } else {
            let mut pointer = ptr::null_mut();
            // SAFETY: a place to write an address to.
            unsafe { call!(library, ncclMemAlloc(&raw mut pointer, layout.size())) }?;
            // Never so far, but all of the below rests on it.
            NonNull::new(pointer).filter(|pointer| pointer.cast::<T>().is_aligned()).ok_or_else(|| {
                Error::usage(CALL, format!("ncclMemAlloc gave {pointer:?}, which cannot hold the elements"))
            })?
        };
        if library.memory_space == MemorySpace::Host {
            // SAFETY: NCCL has just allocated the bytes, and no one else has them.
            unsafe { pointer.cast::<u8>().write_bytes(0, layout.size()) };
        }
        let allocation = Allocation {
            library: Arc::clone(library),
            pointer,
            bytes: layout.size(),
            busy: AtomicBool::new(false),
            windows: AtomicUsize::new(0),
        };
        Ok(Self { allocation: Arc::new(allocation), length, element: PhantomData })
    }

    /// How many elements it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Where it is.
    #[must_use]
    pub fn memory_space(&self) -> MemorySpace {
        self.allocation.library.memory_space
    }

    /// The address, for calls into CUDA. Their work is work that the buffer has to wait for, too.
    #[must_use]
    pub fn as_ptr(&self) -> *const T {
        self.allocation.pointer.as_ptr().cast()
    }

    /// The address, to write to.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.allocation.pointer.as_ptr().cast()
    }

    /// The elements; `None` on a GPU, and while other ranks may write them because they are a
    /// [`Window`](crate::Window).
    #[must_use]
    pub fn as_slice(&self) -> Option<&[T]> {
        // SAFETY: initialized elements in host memory, alive and unchanged as long as the buffer is borrowed.
        self.is_own().then(|| unsafe { std::slice::from_raw_parts(self.as_ptr(), self.length) })
    }

    /// The elements, to write; `None` as for [`as_slice`](Self::as_slice).
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// let mut buffer = libnccl_cpu::nccl().alloc::<i32>(3)?;
    /// if let Some(elements) = buffer.as_mut_slice() {
    ///     elements.fill(7);
    /// }
    /// assert_eq!(buffer.as_slice(), Some(&[7; 3][..]));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn as_mut_slice(&mut self) -> Option<&mut [T]> {
        // SAFETY: as in `as_slice`, and exclusively borrowed.
        self.is_own().then(|| unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.length) })
    }

    fn is_own(&self) -> bool {
        self.memory_space() == MemorySpace::Host && self.allocation.windows.load(Acquire) == 0
    }

    /// A part of it, for an operation to read; `None` if it has no such part.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// let buffer = libnccl_cpu::nccl().alloc::<f32>(8)?;
    /// assert_eq!(buffer.get(6..).map(|part| part.len()), Some(2));
    /// assert!(buffer.get(6..9).is_none());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn get(&self, range: impl RangeBounds<usize>) -> Option<DeviceSlice<'_, T>> {
        let Range { start, end } = self.part(range)?;
        Some(self.view().slice(start, end - start))
    }

    /// A part of it, for an operation to write; `None` if it has no such part.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::{ReduceOp, StreamRef};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let comm = nccl.init_all(&[0])?.remove(0);
    /// let mut buffer = nccl.alloc::<f32>(4)?;
    /// let last = buffer.get_mut(3..).expect("it has 4 elements");
    /// comm.all_reduce(&[5.0], last, ReduceOp::Sum, StreamRef::DEFAULT)?;
    /// assert_eq!(buffer.as_slice(), Some(&[0.0, 0.0, 0.0, 5.0][..]));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn get_mut(&mut self, range: impl RangeBounds<usize>) -> Option<DeviceSliceMut<'_, T>> {
        let Range { start, end } = self.part(range)?;
        Some(self.view_mut().slice_mut(start, end - start))
    }

    fn part(&self, range: impl RangeBounds<usize>) -> Option<Range<usize>> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.checked_add(1)?,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.checked_add(1)?,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.length,
        };
        (start <= end && end <= self.length).then_some(start..end)
    }

    fn view(&self) -> DeviceSlice<'_, T> {
        self.allocation.set_busy();
        // SAFETY: `length` elements in that memory, alive as long as the buffer is borrowed; on a GPU, being busy
        // keeps them so until the work has run. Nothing in Rust reads what work may still write, or other ranks
        // through a window, so that work which overlaps can at worst leave wrong numbers.
        unsafe { DeviceSlice::new(self.as_ptr(), self.length, self.memory_space()) }
    }

    /// From a shared reference for the barrier, whose buffer has contents that nobody looks at.
    pub(crate) fn view_mut(&self) -> DeviceSliceMut<'_, T> {
        self.allocation.set_busy();
        // SAFETY: as in `view`; and no one has a slice of the elements, as the buffer is borrowed exclusively, or
        // is the barrier's.
        unsafe { DeviceSliceMut::new(self.as_ptr().cast_mut(), self.length, self.memory_space()) }
    }

    /// Promises that nothing uses the buffer, so that dropping it, and its registrations and windows, takes them
    /// back. What is enqueued with it from now on makes it busy again. For an example, see
    /// [`NcclBuffer`].
    ///
    /// # Safety
    /// All work that this buffer was given to has run, this rank's and, if it is a window, that of the other
    /// ranks; and as long as it is a window, the other ranks start no more that writes or reads it.
    pub unsafe fn assume_idle(&mut self) {
        self.allocation.busy.store(false, Relaxed);
    }

    /// Frees the memory, as dropping it does, and reports. Since NCCL 2.19.3.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// libnccl_cpu::nccl().alloc::<f32>(8)?.free()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] if work may still use it, on a GPU or as a window, which leaks it; or if it is
    /// registered: then it is freed after its registrations. [`Error::Nccl`] if NCCL reports a failure; the memory is gone all the
    /// same.
    #[doc(alias = "ncclMemFree")]
    pub fn free(self) -> Result<()> {
        match Arc::into_inner(self.allocation) {
            Some(mut allocation) => allocation.free(),
            None => Err(Error::usage("free", "the memory is still registered")),
        }
    }

    pub(crate) fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }
}

impl Allocation {
    pub(crate) fn as_ptr(&self) -> *mut c_void {
        self.pointer.as_ptr()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// An operation is given the memory.
    fn set_busy(&self) {
        if self.library.memory_space == MemorySpace::Device {
            self.busy.store(true, Relaxed);
        }
    }

    /// An error if work that uses the memory, this rank's or another's, may be in flight.
    pub(crate) fn check_idle(&self, call: &'static str) -> Result<()> {
        if self.busy.load(Relaxed) {
            return Err(Error::usage(
                call,
                "work that uses the memory may not have run yet; wait for it, and say so with assume_idle",
            ));
        }
        Ok(())
    }

    /// Other ranks may write it from now on.
    pub(crate) fn open_window(&self) {
        self.busy.store(true, Relaxed);
        self.windows.fetch_add(1, Relaxed);
    }

    /// They do not, any more.
    pub(crate) fn close_window(&self) {
        self.windows.fetch_sub(1, Release);
    }

    fn free(&mut self) -> Result<()> {
        if std::mem::take(&mut self.bytes) == 0 {
            return Ok(());
        }
        self.check_idle("free")?;
        // SAFETY: what ncclMemAlloc gave, once; no reference, registration or window is left, as all of them
        // own a part of `self`, and no work.
        unsafe { call!(self.library, ncclMemFree(self.pointer.as_ptr())) }.map(drop)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let _ = self.free();
    }
}

impl<'a, T: Element> From<&'a NcclBuffer<T>> for DeviceSlice<'a, T> {
    fn from(buffer: &'a NcclBuffer<T>) -> Self {
        buffer.view()
    }
}

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
