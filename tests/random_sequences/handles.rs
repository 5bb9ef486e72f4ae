//! The handles of communicators that nobody has ended.
#![allow(unsafe_code)] // Asks for handles by their numbers.

use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use libnccl::Nccl;
use libnccl::sys::{ncclComm_t, ncclResult_t};

/// A point in the sequence of the CPU backend's handles: they are numbers in order, and none is used twice.
#[derive(Clone, Copy)]
pub(crate) struct Point {
    address: usize,
    /// The distance of two handles.
    step: usize,
}

/// Returns the present point.
pub(crate) fn point(nccl: &Nccl) -> Point {
    let comms = [(); 2].map(|()| nccl.init_all(&[0]).expect("a rank alone").remove(0));
    let [first, second] = comms.map(|comm| comm.as_raw().addr());
    Point { address: second, step: second - first }
}

/// Returns the handles since `start` that are live for longer than an end takes, and ends them.
pub(crate) fn reap(nccl: &Nccl, start: Point) -> usize {
    let end = point(nccl).address;
    let live = || {
        let handles = (start.address..end).step_by(start.step).skip(1);
        handles.map(ptr::without_provenance_mut).filter(|handle| is_live(nccl, *handle))
    };
    let patience = Instant::now();
    while live().next().is_some() && patience.elapsed() < Duration::from_secs(2) {
        thread::sleep(Duration::from_millis(1));
    }
    let left: Vec<ncclComm_t> = live().collect();
    for handle in &left {
        let abort = nccl.as_raw().ncclCommAbort.expect("the CPU backend has it");
        // SAFETY: the sequence is over, and whatever had the handle is gone.
        unsafe { abort(*handle) };
    }
    left.len()
}

fn is_live(nccl: &Nccl, handle: ncclComm_t) -> bool {
    let get = nccl.as_raw().ncclCommGetAsyncError.expect("the CPU backend has it");
    let mut state = ncclResult_t::ncclSuccess;
    // SAFETY: a valid out-parameter; the CPU backend looks handles up, and refuses those that it does not know.
    unsafe { get(handle, &raw mut state) == ncclResult_t::ncclSuccess }
}
