//! Programs in which an operation of NCCL fails on its stream, which CUDA reports, by name.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Barrier;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaSlice, DriverError, result};
use cudarc::nccl::sys::{self, ncclResult_t};

use crate::rank::{Rank, abort, assert_all, async_error, check, run_ranks, unique_id};

const COUNT: usize = 1000;
const FAILED: Result<(), DriverError> = Err(DriverError(CUresult::CUDA_ERROR_LAUNCH_FAILED));

pub(crate) fn run(name: &str) {
    match name {
        "mismatch" => mismatch(),
        "abort_of_a_peer" => abort_of_a_peer(),
        "peer_that_leaves" => peer_that_leaves(),
        "two_communicators" => two_communicators(),
        "reported_alone" => reported_alone(),
        "pending_until_this_rank_aborts" => pending_until_this_rank_aborts(),
        "pending_until_teardown" => pending_until_teardown(),
        other => panic!("there is no program {other}"),
    }
}

/// Waits for a context, and ignores earlier errors of cudarc.
fn synchronize(context: &CudaContext) -> Result<(), DriverError> {
    let _ = context.check_err();
    context.synchronize()
}

/// Enqueues a sum of more elements on rank 1 than on the others.
fn reduce_differently(rank: &Rank) -> [CudaSlice<f32>; 2] {
    let (from, mut to) = (rank.filled(COUNT + rank.number), rank.zeros(COUNT + rank.number));
    rank.stream.synchronize().unwrap();
    check(rank.all_reduce(&from, &mut to, &rank.stream));
    [from, to]
}

/// After a mismatch, CUDA's calls fail until the communicator is aborted. Then a new one works.
fn mismatch() {
    let second = unique_id();
    run_ranks(2, |rank| {
        let [_from, to] = reduce_differently(&rank);
        for _ in 0..2 {
            assert_eq!(synchronize(&rank.context), FAILED);
            assert_eq!(rank.stream.clone_dtoh(&to).map(drop), FAILED);
        }
        assert_eq!(async_error(rank.comm), ncclResult_t::ncclInvalidUsage);
        abort(rank.comm);
        assert_eq!(synchronize(&rank.context), Ok(()));
        let new = Rank::join(rank.number, 2, second);
        let (from, mut to) = (new.filled(COUNT), new.zeros(COUNT));
        check(new.all_reduce(&from, &mut to, &new.stream));
        assert_all(&new.stream, &to, 3.0);
        new.destroy();
    });
}

/// An abort is no failure for the rank that calls it, but for one whose operation waits for that rank.
fn abort_of_a_peer() {
    run_ranks(2, |rank| {
        let (from, mut to) = (rank.filled(COUNT), rank.zeros(COUNT));
        rank.stream.synchronize().unwrap();
        let release = (rank.number == 1).then(|| hold(&rank));
        (0..2).for_each(|_| check(rank.all_reduce(&from, &mut to, &rank.stream)));
        if rank.number == 0 {
            assert_eq!(rank.stream.synchronize(), FAILED);
        }
        abort(rank.comm);
        drop(release);
        assert_eq!(synchronize(&rank.context), Ok(()));
        // The buffer of the discarded operation keeps its values.
        assert_all(&rank.stream, &to, 0.0);
    });
}

/// The failure stays with the context when its communicator is destroyed; the context of the rank that left has none.
fn peer_that_leaves() {
    let has_left = Barrier::new(2);
    run_ranks(2, |rank| {
        let (from, mut to) = (rank.filled(COUNT), rank.zeros(COUNT));
        let (number, context) = (rank.number, rank.context.clone());
        rank.stream.synchronize().unwrap();
        if number == 0 {
            has_left.wait();
            check(rank.all_reduce(&from, &mut to, &rank.stream));
            assert_eq!(rank.stream.synchronize(), FAILED);
        }
        rank.destroy();
        if number == 1 {
            has_left.wait();
        }
        assert_eq!(synchronize(&context), if number == 0 { FAILED } else { Ok(()) });
    });
}

/// Two failed communicators must both be aborted.
fn two_communicators() {
    let second = unique_id();
    let both_failed = Barrier::new(2);
    run_ranks(2, |rank| {
        let other = Rank::join(rank.number, 2, second);
        let mut buffers = [rank.filled(COUNT + rank.number), rank.zeros(COUNT + rank.number)];
        let [from, to] = &mut buffers;
        rank.stream.synchronize().unwrap();
        // Before one of them fails, after which nothing can be enqueued.
        let release = hold(&rank);
        check(rank.all_reduce(from, to, &rank.stream));
        check(other.all_reduce(from, to, &rank.stream));
        drop(release);
        while [rank.comm, other.comm].map(async_error).contains(&ncclResult_t::ncclSuccess) {
            std::thread::sleep(Duration::from_millis(1));
        }
        both_failed.wait();
        abort(rank.comm);
        assert_eq!(synchronize(&rank.context), FAILED);
        abort(other.comm);
        assert_eq!(synchronize(&rank.context), Ok(()));
    });
}

/// Blocks the stream of a rank until the result is dropped.
fn hold(rank: &Rank) -> Sender<()> {
    unsafe extern "C" fn wait(released: *mut c_void) {
        // SAFETY: made from a box below, and called once.
        let released = unsafe { Box::from_raw(released.cast::<Receiver<()>>()) };
        let _ = released.recv();
    }
    let (release, released) = mpsc::channel();
    let released = Box::into_raw(Box::new(released)).cast();
    // SAFETY: a live stream; the function makes no CUDA call.
    unsafe { result::stream::launch_host_function(rank.stream.cu_stream(), wait, released) }.unwrap();
    release
}

/// CUDA returns no error if failures are only reported.
fn reported_alone() {
    run_ranks(2, |rank| {
        let [_from, to] = reduce_differently(&rank);
        rank.stream.synchronize().unwrap();
        assert_eq!(async_error(rank.comm), ncclResult_t::ncclInvalidUsage);
        assert_all(&rank.stream, &to, 0.0);
        abort(rank.comm);
    });
}

/// Appends findings to a file, and returns a function that waits until a number of operations have failed.
fn watch_findings() -> impl Fn(usize) {
    let file = std::env::temp_dir().join(format!("findings-{}", std::process::id()));
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("LIBNCCL_CPU_REPORT", &file) };
    move |count| {
        let failed =
            || std::fs::read_to_string(&file).map_or(0, |text| text.matches("failed-operation").count());
        while failed() < count {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::remove_file(&file).unwrap();
    }
}

/// An operation whose peer has aborted while it was idle stays pending, and calls after it are enqueued, until this rank aborts.
fn pending_until_this_rank_aborts() {
    let wait_for_failure = watch_findings();
    let has_aborted = Barrier::new(2);
    run_ranks(2, |rank| {
        let (from, mut to) = (rank.filled(COUNT), rank.zeros(COUNT));
        rank.stream.synchronize().unwrap();
        if rank.number == 1 {
            abort(rank.comm);
            has_aborted.wait();
            return;
        }
        has_aborted.wait();
        check(rank.all_reduce(&from, &mut to, &rank.stream));
        wait_for_failure(1);
        check(rank.all_reduce(&from, &mut to, &rank.stream));
        // SAFETY: a stream that lives.
        let query = || unsafe { cudarc::driver::sys::cuStreamQuery(rank.stream.cu_stream()) };
        assert_eq!(query(), CUresult::CUDA_ERROR_NOT_READY);
        assert_eq!(async_error(rank.comm), ncclResult_t::ncclSuccess);
        abort(rank.comm);
        assert_eq!(synchronize(&rank.context), Ok(()));
        assert_all(&rank.stream, &to, 0.0);
    });
}

/// A mismatch stays pending at both ranks, until one finalizes its communicator and the other destroys it.
fn pending_until_teardown() {
    let wait_for_failure = watch_findings();
    let has_failed = Barrier::new(2);
    run_ranks(2, |rank| {
        let [_from, to] = reduce_differently(&rank);
        if rank.number == 0 {
            wait_for_failure(2);
        }
        has_failed.wait();
        // SAFETY: a stream that lives.
        let query = unsafe { cudarc::driver::sys::cuStreamQuery(rank.stream.cu_stream()) };
        assert_eq!(query, CUresult::CUDA_ERROR_NOT_READY);
        let stream = rank.stream.clone();
        if rank.number == 1 {
            // SAFETY: a communicator that is not used any more but by the destroy.
            check(unsafe { sys::ncclCommFinalize(rank.comm) });
            assert_all(&stream, &to, 0.0);
        }
        rank.destroy();
        assert_all(&stream, &to, 0.0);
    });
}
