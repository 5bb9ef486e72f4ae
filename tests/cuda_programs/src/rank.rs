//! Ranks that call NCCL's functions directly, because cudarc's safe interface lacks some.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::thread;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use cudarc::nccl::sys::{
    self, ncclComm_t, ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum, ncclResult_t, ncclUniqueId,
};

/// Requires that a call did not fail.
pub(crate) fn check(code: ncclResult_t) {
    assert!(code == ncclResult_t::ncclSuccess || code == ncclResult_t::ncclInProgress, "{code:?}");
}

/// A rank: its communicator, and a stream of its device.
#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) number: usize,
    pub(crate) comm: ncclComm_t,
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
}

impl Rank {
    /// Joins a communicator of `ranks` ranks, with the device of the rank's number.
    pub(crate) fn join(number: usize, ranks: usize, id: ncclUniqueId) -> Self {
        let context = CudaContext::new(number).unwrap();
        let stream = context.new_stream().unwrap();
        let mut comm = std::ptr::null_mut();
        // SAFETY: a valid out-parameter.
        check(unsafe { sys::ncclCommInitRank(&raw mut comm, ranks as i32, id, number as i32) });
        Self { number, comm, context, stream }
    }

    pub(crate) fn zeros(&self, length: usize) -> CudaSlice<f32> {
        self.stream.alloc_zeros(length).unwrap()
    }

    /// Allocates elements with the value of the rank's number + 1.
    pub(crate) fn filled(&self, length: usize) -> CudaSlice<f32> {
        self.stream.clone_htod(&vec![(self.number + 1) as f32; length]).unwrap()
    }

    /// Enqueues the sum of a buffer over all ranks.
    pub(crate) fn all_reduce(
        &self,
        from: &CudaSlice<f32>,
        to: &mut CudaSlice<f32>,
        stream: &CudaStream,
    ) -> ncclResult_t {
        let count = from.len();
        let ((from, _read), (to, _written)) = (from.device_ptr(stream), to.device_ptr_mut(stream));
        let (from, to) = (from as *const c_void, to as *mut c_void);
        // SAFETY: device memory of `count` elements, which lives until the stream has been waited for.
        unsafe {
            sys::ncclAllReduce(from, to, count, ncclFloat32, ncclSum, self.comm, stream.cu_stream().cast())
        }
    }

    pub(crate) fn destroy(self) {
        // SAFETY: a communicator that is not used any more.
        check(unsafe { sys::ncclCommDestroy(self.comm) });
    }
}

/// Aborts a communicator that is not used any more.
pub(crate) fn abort(comm: ncclComm_t) {
    // SAFETY: a communicator.
    check(unsafe { sys::ncclCommAbort(comm) });
}

pub(crate) fn async_error(comm: ncclComm_t) -> ncclResult_t {
    let mut state = ncclResult_t::ncclSuccess;
    // SAFETY: a communicator and a valid out-parameter.
    check(unsafe { sys::ncclCommGetAsyncError(comm, &raw mut state) });
    state
}

/// Returns the identifier of a communicator to be created.
pub(crate) fn unique_id() -> ncclUniqueId {
    let mut id = MaybeUninit::uninit();
    // SAFETY: a valid out-parameter, which is written.
    unsafe {
        check(sys::ncclGetUniqueId(id.as_mut_ptr()));
        id.assume_init()
    }
}

/// Calls NCCL in a group, and returns the code of its end.
pub(crate) fn group(calls: impl FnOnce()) -> ncclResult_t {
    // SAFETY: has no arguments.
    check(unsafe { sys::ncclGroupStart() });
    calls();
    // SAFETY: has no arguments.
    unsafe { sys::ncclGroupEnd() }
}

/// Runs ranks, a thread each.
pub(crate) fn run_ranks(ranks: usize, body: impl Fn(Rank) + Sync) {
    let id = unique_id();
    thread::scope(|scope| {
        for number in 0..ranks {
            let body = &body;
            scope.spawn(move || body(Rank::join(number, ranks, id)));
        }
    });
}

/// Checks that all elements of a buffer are as expected, after the work on the stream.
pub(crate) fn assert_all(stream: &Arc<CudaStream>, from: &CudaSlice<f32>, expected: f32) {
    let mut values = vec![0.0; from.len()];
    stream.memcpy_dtoh(from, &mut values).unwrap();
    stream.synchronize().unwrap();
    let wrong = values.iter().position(|value| *value != expected);
    assert_eq!(wrong.map(|index| (index, values[index])), None, "expected {expected}");
}
