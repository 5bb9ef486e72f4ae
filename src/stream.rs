//! CUDA streams.
#![allow(unsafe_code)] // The raw constructor is unsafe; `Send` and `Sync`; an unsafe trait.

use std::error::Error;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::cuda::{current_device, is_stream_complete};
use crate::sys::cudaStream_t;

/// A borrowed CUDA stream, similar to [`BorrowedFd`](std::os::fd::BorrowedFd).
///
/// NCCL's operations return when they are enqueued on a stream, and run in the stream's order. On host memory, the CPU backend
/// ignores the stream: every operation is complete when the call (or the group) returns.
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
    /// `raw` must be null or a stream. The stream must not be destroyed during `'a`, and must be on the device of every
    /// communicator with which it is used. (On GPUs, operations reject the handle `cudaStreamPerThread`: NCCL may use it on
    /// another thread, where it means another stream.)
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

    /// Returns an error if this is a default stream, and the current device is not `device`.
    pub(crate) fn check_current(self, device: i32) -> Result<(), Box<dyn Error>> {
        match current_device() {
            Some(found) if found != device && self.is_default() => Err(format!(
                "the current device is {found}, but this is the default stream of device {device}"
            )
            .into()),
            _ => Ok(()),
        }
    }

    /// Returns the CUDA handle of the stream, for calls into CUDA.
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

/// A CUDA stream of another crate. Every operation that accepts a `StreamRef` also accepts a reference to such a stream.
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
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let stream = OwnedStream(std::ptr::null_mut());
/// comms[0].all_reduce_in_place(&mut [1.0_f32], ReduceOp::Sum, &stream)?;
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// # Safety
/// `as_raw` must return null or a stream. The stream must not be destroyed while a reference to `self` lives. It must be on the
/// device that [`device`](Self::device) returns. If `device` returns `None`, it must be on the device of every communicator with
/// which it is used.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a stream",
    label = "not a stream",
    note = "pass `StreamRef::DEFAULT`, or a reference to a type that implements `Stream`",
    note = "for a `cudaStream_t`, use the unsafe function `StreamRef::from_raw(stream)`"
)]
pub unsafe trait Stream {
    /// Returns the CUDA handle of the stream.
    fn as_raw(&self) -> cudaStream_t;

    /// Returns the CUDA device of the stream, or `None` if it is not known. If it is known, operations of communicators on other
    /// devices return an error.
    #[inline]
    fn device(&self) -> Option<i32> {
        None
    }

    /// Returns whether all work that was enqueued on the stream is complete.
    /// [`Communicator::synchronize`](crate::communicator::Communicator::synchronize) calls this.
    ///
    /// The default implementation queries CUDA's driver (`cuStreamQuery`), which the process must have loaded. A null handle
    /// stands for the default stream of the current device. Do not call this method for a stream that is being captured.
    ///
    /// # Errors
    /// Returns an error if CUDA reports one, for example because work has failed, or if the process has not loaded CUDA's driver.
    /// If the handle is null and [`device`](Self::device) returns a device, this must be the current device.
    fn is_complete(&self) -> Result<bool, Box<dyn Error>> {
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

// SAFETY: a reference to the `Arc` keeps the stream; its own implementation guarantees the rest.
unsafe impl<S: Stream + ?Sized> Stream for Arc<S> {
    fn as_raw(&self) -> cudaStream_t {
        (**self).as_raw()
    }
    fn device(&self) -> Option<i32> {
        (**self).device()
    }
    fn is_complete(&self) -> Result<bool, Box<dyn Error>> {
        (**self).is_complete()
    }
}

// SAFETY: the creator of the `StreamRef` guarantees that the stream is live.
unsafe impl Stream for StreamRef<'_> {
    #[inline]
    fn as_raw(&self) -> cudaStream_t {
        StreamRef::as_raw(*self)
    }
    #[inline]
    fn device(&self) -> Option<i32> {
        StreamRef::device(*self)
    }
}
