#![allow(unsafe_code)] // The raw constructor is unsafe; `Send` and `Sync`.

use std::error::Error;
use std::marker::PhantomData;

use crate::cuda::current_device;
use crate::sys::cudaStream_t;

/// A borrowed CUDA stream, similar to [`BorrowedFd`](std::os::fd::BorrowedFd).
///
/// NCCL's operations return when they are enqueued on a stream, and run in its order. The CPU implementation
/// has no streams: every operation is complete when the call (or the group) returns.
#[doc(alias = "cudaStream_t")]
#[derive(Debug, Clone, Copy)]
pub struct StreamRef<'a> {
    raw: cudaStream_t,
    /// The CUDA device, if it is known.
    device: Option<i32>,
    stream: PhantomData<&'a ()>,
}

impl StreamRef<'static> {
    /// The default stream of the communicator's device.
    pub const DEFAULT: Self = Self { raw: std::ptr::null_mut(), device: None, stream: PhantomData };
}

impl<'a> StreamRef<'a> {
    /// Borrows a stream of another library.
    ///
    /// ```
    /// # let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
    /// # let (mut buffer, raw) = ([1.0], std::ptr::null_mut());
    /// use libnccl::{ReduceOp, StreamRef};
    ///
    /// // SAFETY: cudaStreamCreate returned `raw`, which is destroyed later.
    /// let stream = unsafe { StreamRef::from_raw(raw) };
    /// comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, stream)?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Safety
    /// `raw` is null or a stream of the device of every communicator that it is used with, and it is not
    /// destroyed during `'a`. (On GPUs, operations refuse the handle `cudaStreamPerThread`: NCCL may use it on another thread,
    /// where it means another stream.)
    #[must_use]
    pub const unsafe fn from_raw(raw: cudaStream_t) -> Self {
        Self { raw, device: None, stream: PhantomData }
    }

    #[inline]
    pub(crate) const fn on_device(self, device: Option<i32>) -> Self {
        Self { device, ..self }
    }

    #[inline]
    pub(crate) const fn device(self) -> Option<i32> {
        self.device
    }

    /// Returns `true` for the handle `CU_STREAM_PER_THREAD`, which means another stream on each thread.
    #[inline]
    pub(crate) fn is_per_thread(self) -> bool {
        self.raw.addr() == 2
    }

    /// Returns `true` for the handles that mean a stream of the calling thread's context: null, `CU_STREAM_LEGACY` and
    /// `CU_STREAM_PER_THREAD`.
    pub(crate) fn is_default(self) -> bool {
        self.raw.addr() <= 2
    }

    /// Returns an error if the handle means a stream of another device, whose context is current.
    pub(crate) fn check_current(self, device: i32) -> Result<(), Box<dyn Error>> {
        match current_device() {
            Some(found) if found != device && self.is_default() => Err(format!(
                "the calling thread's context is of device {found}; expected that of device {device}, whose default stream this is"
            )
            .into()),
            _ => Ok(()),
        }
    }

    /// Returns the handle, for calls into CUDA.
    #[must_use]
    pub const fn as_raw(self) -> cudaStream_t {
        self.raw
    }
}

// SAFETY: CUDA's functions take a stream on any thread. The handles of the default streams mean a stream of the thread or
// device that uses them, which always exists.
unsafe impl Send for StreamRef<'_> {}
// SAFETY: as above.
unsafe impl Sync for StreamRef<'_> {}
