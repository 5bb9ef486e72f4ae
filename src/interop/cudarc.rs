//! Buffers, streams and contexts of the crate cudarc.
#![allow(unsafe_code)] // Unsafe traits; streams without ownership.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdeviceptr, CUevent_flags, CUevent_wait_flags, CUstream,
    CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as NOT_CAPTURING,
};
use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice as _,
    DriverError, SyncOnDrop, result,
};

use super::device;
use crate::buffer::{Buffer, BufferMut, BufferResult, Slice, SliceMut};
use crate::cuda::{Context, is_stream_complete};
use crate::data_type::Element;
use crate::stream::{Stream, StreamRef};
use crate::sys;

/// The guard of a buffer of the crate cudarc that is passed to an operation. Once the operation is enqueued, the guard makes the
/// buffer's stream wait for it.
///
/// Operations accept references to `CudaSlice`, `CudaView` and `CudaViewMut`. They also accept the views by value. Each buffer
/// has a stream, on which cudarc allocates and frees the memory. An operation on another stream waits for the buffer's stream,
/// and the buffer's stream waits for the operation. So a buffer may be dropped, or used again on its stream, right after the
/// call.
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use libnccl::{Nccl, ReduceOp};
///
/// let nccl = Nccl::load()?;
/// let context = CudaContext::new(0)?;
/// let stream = context.new_stream()?;
/// let comm = nccl.communicator(1, 0, &nccl.unique_id()?).device(&context).init()?;
///
/// let gradients = stream.clone_htod(&[1.0_f32, 2.0])?;
/// let mut sums = stream.alloc_zeros::<f32>(2)?;
/// comm.all_reduce(&gradients, &mut sums, ReduceOp::Sum, &stream)?;
/// comm.all_reduce_in_place(sums.slice_mut(1..), ReduceOp::Max, &stream)?;
/// assert_eq!(stream.clone_dtoh(&sums)?, [1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Two uses are rejected as [`NotReady`](crate::error::InvalidArgumentKind::NotReady), because no guard could make them
/// safe:
/// - A buffer of cudarc's per-thread stream. If another thread drops the buffer, the memory is freed on that thread's stream.
/// - An operation that a CUDA graph captures. The operation runs at each launch of the graph, perhaps after the buffer was
///   dropped. For graphs, use an [`NcclBuffer`](crate::buffer::NcclBuffer), or [`Slice::from_device_ptr`], whose caller must
///   ensure that the memory outlives the launches.
#[allow(unreachable_pub)] // Named as the associated type of buffers only.
pub struct CudaGuard<'a> {
    /// Records the buffer's event on the buffer's stream when dropped.
    record: Option<SyncOnDrop<'a>>,
    /// The stream of the buffer, which `record` borrows.
    own: Arc<CudaStream>,
    stream: StreamRef<'a>,
}

impl<'a> CudaGuard<'a> {
    /// Calls `prepare`, which makes the buffer's stream, `own`, wait for other users of the buffer. Then makes `stream` wait for
    /// all work on `own`.
    fn new(
        own: Arc<CudaStream>,
        stream: StreamRef<'a>,
        prepare: impl FnOnce(&'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>),
    ) -> BufferResult<(CUdeviceptr, Self)> {
        // On another device, the operation does not start.
        if has_device_of(&own, stream) {
            check_guardable(&own, stream)?;
        }
        // SAFETY: the guard keeps the stream, which does not move, until it has dropped what borrows it; and so does this
        // function, in which `own` is declared before.
        let borrowed: &'a CudaStream = unsafe { &*Arc::as_ptr(&own) };
        let (address, record) = prepare(borrowed);
        let guard = Self { record: Some(record), own, stream };
        if guard.has_other_stream() {
            // SAFETY: the guard has the buffer's stream. The other one is live for `'a`, and of the same device.
            unsafe { order(guard.own.context(), guard.own.cu_stream(), stream.as_raw().cast()) }?;
        }
        Ok((address, guard))
    }

    /// Returns `true` if the operation runs on another stream of the buffer's device. (On another device it does not
    /// start.)
    fn has_other_stream(&self) -> bool {
        has_device_of(&self.own, self.stream) && self.own.cu_stream() != self.stream.as_raw().cast()
    }
}

/// Returns whether the operation's stream is on the buffer's device. A stream whose device is unknown counts as a stream of the
/// buffer's device.
fn has_device_of(own: &CudaStream, stream: StreamRef<'_>) -> bool {
    stream.device().is_none_or(|found| Some(found) == device(own.context()))
}

/// Returns an error if no guard can order the operation before the buffer is freed.
fn check_guardable(own: &CudaStream, stream: StreamRef<'_>) -> BufferResult<()> {
    if StreamRef::from(own).is_per_thread() {
        return Err("its stream is cudarc's per_thread_stream, which is another one on each thread".into());
    }
    // Those cannot be captured.
    if stream.is_default() {
        return Ok(());
    }
    // SAFETY: a live stream.
    let status = unsafe { result::stream::is_capturing(stream.as_raw().cast()) }?;
    if status != NOT_CAPTURING {
        let problem = "a CUDA graph captures the operation, and cudarc may free the memory before the graph is launched";
        return Err(problem.into());
    }
    Ok(())
}

impl Drop for CudaGuard<'_> {
    fn drop(&mut self) {
        if self.has_other_stream() {
            // SAFETY: as in `new`.
            let ordered =
                unsafe { order(self.own.context(), self.stream.as_raw().cast(), self.own.cu_stream()) };
            // The context has failed: the error of a later call of cudarc says so.
            self.own.context().record_err(ordered);
        }
        self.record = None;
    }
}

impl fmt::Debug for CudaGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaGuard")
            .field("own", &self.own)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

/// Implements `$trait` for buffers of cudarc, whose memory has the address that `$pointer` returns.
macro_rules! buffers {
    (
        $trait:ident, $method:ident -> $slice:ident of $address:ty;
        $(($($lifetime:lifetime)?) $buffer:ty, $pointer:ident;)*
    ) => {$(
        impl<'a, $($lifetime: 'a,)? T: Element> $trait<'a> for $buffer {
            type Element = T;
            type Guard = CudaGuard<'a>;

            unsafe fn $method(self, stream: StreamRef<'a>) -> BufferResult<($slice<'a, T>, CudaGuard<'a>)> {
                let (own, length) = (Arc::clone(self.stream()), self.len());
                let device = device(own.context());
                let (address, guard) = CudaGuard::new(own, stream, |own| self.$pointer(own))?;
                // SAFETY: device memory of `length` elements, which cudarc frees on the stream of the buffer. That stream waits
                // for the work that is enqueued until the guard is dropped. cudarc forms no references to the elements. For
                // `BufferMut`, the buffer is borrowed exclusively.
                let slice = unsafe { $slice::from_device_ptr(address as $address, length) };
                Ok((slice.on_device(device), guard))
            }
        }
    )*};
}

buffers! {
    Buffer, into_slice -> Slice of *const T;
    () &'a CudaSlice<T>, device_ptr;
    ('v) &'a CudaView<'v, T>, device_ptr;
    ('v) &'a CudaViewMut<'v, T>, device_ptr;
    () CudaView<'a, T>, view_ptr;
}

buffers! {
    BufferMut, into_slice_mut -> SliceMut of *mut T;
    () &'a mut CudaSlice<T>, device_ptr_mut;
    ('v) &'a mut CudaViewMut<'v, T>, device_ptr_mut;
    () CudaViewMut<'a, T>, view_ptr_mut;
}

// SAFETY: it owns the stream, or the context of the device has it; `device` returns the device.
unsafe impl Stream for CudaStream {
    fn as_raw(&self) -> sys::cudaStream_t {
        self.cu_stream().cast()
    }
    fn device(&self) -> Option<i32> {
        device(self.context())
    }
    fn is_complete(&self) -> Result<bool, Box<dyn Error>> {
        // Not by `bind_to_thread`, as in `order`.
        // SAFETY: the context is live, and so is the stream.
        unsafe {
            result::ctx::set_current(self.context().cu_ctx())?;
            is_stream_complete(self.as_raw())
        }
    }
}

/// Makes the work that is enqueued on `later` from now on wait for the work that is already on `earlier`. If CUDA cannot do this,
/// the host waits instead.
///
/// # Safety
/// Both streams must be live, and of the context's device.
unsafe fn order(context: &CudaContext, earlier: CUstream, later: CUstream) -> Result<(), DriverError> {
    // Not by `bind_to_thread`, which reports and then forgets errors of the past.
    // SAFETY: the context is live. The caller guarantees that the streams are.
    unsafe {
        result::ctx::set_current(context.cu_ctx())
            .and_then(|()| wait_by_event(earlier, later))
            .or_else(|_| result::stream::synchronize(earlier))
    }
}

/// # Safety
/// Both streams must be live, and of the current context.
unsafe fn wait_by_event(earlier: CUstream, later: CUstream) -> Result<(), DriverError> {
    let event = result::event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
    // SAFETY: the caller guarantees that the streams are live. CUDA keeps a destroyed event as long as work refers to it.
    unsafe {
        let ordered = result::event::record(event, earlier).and_then(|()| {
            result::stream::wait_event(later, event, CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT)
        });
        ordered.and(result::event::destroy(event))
    }
}

impl Context for CudaContext {
    fn device(&self) -> usize {
        self.ordinal()
    }
    fn make_current(&self) -> Result<(), Box<dyn Error>> {
        Ok(self.bind_to_thread()?)
    }
}
