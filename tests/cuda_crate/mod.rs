//! Buffers and streams of a CUDA crate in operations, on the CUDA emulation and the CPU backend of NCCL. Each
//! missing order of two accesses is an error there. The program of each crate has the types and functions that differ.
//!
//! Two ranks are two threads, each with a device. Rank 1 is late, so that rank 0's operation is pending when its call
//! returns.

use std::env;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use libnccl::buffer::MemorySpace;
use libnccl::communicator::ShrinkMode;
use libnccl::error::ResultCode;
use libnccl::{Communicator, Context, Error, Nccl, ReduceOp, SliceMut, Stream, StreamRef};
use libtest_mimic::{Arguments, Trial};

use crate::{CudaContext, CudaStream, SHARES_A_DEVICE, read, upload, zeros};

/// Set where the libraries are in place.
const NCCL: &str = "LIBNCCL_PATH";

/// Set on the CUDA emulation.
const RACES: &str = "LIBNCCL_CPU_RACES";

/// Runs this program again with the libraries, and returns its exit code; `None` if they are in place.
pub(crate) fn run_with_libraries() -> Option<ExitCode> {
    if env::var_os(NCCL).is_some() {
        return None;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    libnccl_test_support::install(directory.path());
    let own = env::current_exe().expect("the path of this program");
    let status = Command::new(own)
        .args(env::args_os().skip(1))
        .env("LD_LIBRARY_PATH", directory.path())
        .env(NCCL, directory.path().join("libnccl.so.2"))
        .env(RACES, "error")
        .status()
        .expect("this program can be run");
    Some(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn devices() -> usize {
    CudaContext::device_count().unwrap() as usize
}

fn context(device: usize) -> Arc<CudaContext> {
    CudaContext::new(device).unwrap()
}

pub(crate) fn is_emulated() -> bool {
    env::var_os(RACES).is_some()
}

/// A timeout that is never reached.
const LONG: Duration = Duration::from_secs(60);

/// The elements of a buffer: enough for the work to outlast the call.
pub(crate) const LENGTH: usize = 1 << 16;

/// Lists cases with their names.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        vec![$((stringify!($name), $name as fn())),*]
    };
}
pub(crate) use cases;

pub(crate) type Cases = Vec<(&'static str, fn())>;

/// The condition of a case, which is skipped elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// A device that the ranks can share.
    OneDevice,
    TwoDevices,
    Emulation,
}

/// Runs these cases and the common ones in a process that has the libraries: the dynamic linker reads its variable when a
/// process starts. On a machine with one GPU, the ranks share it.
pub(crate) fn main(own: &[(Needs, Cases)]) -> ExitCode {
    if let Some(code) = run_with_libraries() {
        return code;
    }
    let has = |needs| match needs {
        Needs::OneDevice => SHARES_A_DEVICE || devices() >= 2,
        Needs::TwoDevices => devices() >= 2,
        Needs::Emulation => is_emulated(),
    };
    let mut trials = Vec::new();
    for (needs, cases) in common_cases().iter().chain(own) {
        trials.extend(cases.iter().map(|&(name, case)| {
            let trial = Trial::test(name, move || {
                case();
                Ok(())
            });
            if has(*needs) { trial } else { trial.with_kind(format!("{needs:?}")).with_ignored_flag(true) }
        }));
    }
    // A case that waits for all work of a device must not meet the capture of another: CUDA forbids it, and ends the capture.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn common_cases() -> [(Needs, Cases); 3] {
    let one_device = cases![
        buffers_of_other_streams_are_summed,
        buffers_dropped_right_after_the_call_are_summed,
        buffers_of_a_group_may_be_dropped_after_it,
        memory_of_nccl_is_allocated_on_the_context,
        synchronize_returns_when_the_streams_work_is_done,
        synchronize_without_a_peer_times_out_and_aborts,
        communicator_whose_wait_is_over_can_be_shrunk,
    ];
    // The default stream of a device waits for all others of it.
    let two_devices = cases![
        buffers_on_the_default_stream_are_summed,
        buffer_of_another_device_is_invalid_argument,
        stream_of_another_device_is_invalid_argument,
        synchronize_in_the_context_of_another_device_is_invalid_usage,
        memory_of_nccl_on_another_device_is_invalid_argument,
    ];
    // NCCL on one host does not detect that a peer has exited.
    let emulated = cases![synchronize_ends_with_an_error_when_a_peer_aborts];
    [(Needs::OneDevice, one_device), (Needs::TwoDevices, two_devices), (Needs::Emulation, emulated)]
}

pub(crate) struct Rank {
    pub(crate) nccl: Nccl,
    pub(crate) comm: Communicator,
    pub(crate) context: Arc<CudaContext>,
    /// The stream of operations.
    pub(crate) stream: Arc<CudaStream>,
    /// The stream of buffers.
    pub(crate) other: Arc<CudaStream>,
}

impl Rank {
    /// Sleeps on rank 1, which lets the calls of rank 0 return before their operations can run.
    pub(crate) fn be_late(&self) {
        if self.comm.rank() == 1 {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns elements with the value rank + 1.
    pub(crate) fn values(&self, length: usize) -> Vec<f32> {
        vec![(self.comm.rank() + 1) as f32; length]
    }

    /// Writes new memory on the stream of buffers, where memory that was freed too early would be reused.
    pub(crate) fn overwrite_free_memory(&self) {
        for _ in 0..4 {
            drop(upload(&self.other, &[1000.0_f32; LENGTH]));
        }
    }
}

/// Runs two ranks on two devices from `first` on, and checks that no order was missing.
pub(crate) fn run_ranks(first: usize, body: impl Fn(&Rank) + Sync) {
    run_unchecked(first, |rank| {
        body(rank);
        rank.context.synchronize().expect("no two accesses lack an order");
    });
}

pub(crate) fn run_unchecked(first: usize, body: impl Fn(&Rank) + Sync) {
    // CUDA before NCCL, which has device memory then.
    let device = |rank| (first + rank) % devices();
    drop(context(device(0)));
    let nccl = Nccl::load().unwrap();
    assert_eq!(nccl.memory_space(), MemorySpace::Device);
    let id = nccl.unique_id().unwrap();
    // A rank that ends with an error aborts, which would fail the other one's start.
    let have_joined = Barrier::new(2);
    thread::scope(|scope| {
        for rank in 0..2 {
            let (body, nccl, have_joined) = (&body, nccl.clone(), &have_joined);
            scope.spawn(move || {
                let context = context(device(rank));
                let comm = nccl.communicator(2, rank, &id).device(&context).init();
                have_joined.wait();
                let comm = comm.unwrap();
                assert_eq!(comm.device(), device(rank) as i32);
                let (stream, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
                if !is_emulated() {
                    // NCCL connects ranks in the first operation, whose call waits for the other rank.
                    let mut buffer = zeros(&other, 1);
                    comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, &stream).unwrap();
                    context.synchronize().unwrap();
                    have_joined.wait();
                }
                body(&Rank { nccl, comm, context, stream, other });
            });
        }
    });
}

fn buffers_of_other_streams_are_summed() {
    run_ranks(0, |rank| {
        let third = rank.context.new_stream().unwrap();
        let send = upload(&rank.other, &rank.values(LENGTH));
        let mut recv = zeros(&third, LENGTH);
        rank.be_late();
        rank.comm.all_reduce(&send, &mut recv, ReduceOp::Sum, &rank.stream).unwrap();
        // Each on a stream that has to wait for the operation.
        assert_eq!(read(&third, &recv), [3.0; LENGTH]);
        assert_eq!(read(&rank.other, &recv), [3.0; LENGTH]);
        let tenfold = rank.comm.pre_mul_sum(10.0_f32).unwrap();
        rank.comm.all_reduce_in_place(&mut recv, &tenfold, &rank.stream).unwrap();
        assert_eq!(read(&rank.other, &recv), [60.0; LENGTH]);
    });
}

fn buffers_dropped_right_after_the_call_are_summed() {
    run_ranks(0, |rank| {
        let mut sums = zeros(&rank.stream, LENGTH);
        let mut unused = zeros(&rank.other, LENGTH);
        let send = upload(&rank.other, &rank.values(LENGTH));
        rank.be_late();
        rank.comm.all_reduce(&send, &mut sums, ReduceOp::Sum, &rank.stream).unwrap();
        rank.comm.all_reduce(&send, &mut unused, ReduceOp::Sum, &rank.stream).unwrap();
        drop((send, unused));
        rank.overwrite_free_memory();
        assert_eq!(read(&rank.stream, &sums), [3.0; LENGTH]);
    });
}

fn buffers_on_the_default_stream_are_summed() {
    run_ranks(0, |rank| {
        let default = rank.context.default_stream();
        let mut buffer = upload(&default, &rank.values(LENGTH));
        let mut other = upload(&rank.other, &rank.values(LENGTH));
        rank.be_late();
        rank.comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, &default).unwrap();
        rank.comm.all_reduce_in_place(&mut other, ReduceOp::Max, StreamRef::DEFAULT).unwrap();
        assert_eq!(read(&default, &buffer), [3.0; LENGTH]);
        assert_eq!(read(&rank.other, &other), [2.0; LENGTH]);
    });
}

fn buffers_of_a_group_may_be_dropped_after_it() {
    run_ranks(0, |rank| {
        let send = upload(&rank.other, &rank.values(LENGTH));
        let mut recv = zeros(&rank.other, LENGTH);
        let peer = 1 - rank.comm.rank();
        rank.be_late();
        rank.nccl
            .group(|g| {
                rank.comm.send(&send, peer, g.stream(&rank.stream))?;
                rank.comm.recv(&mut recv, peer, g.stream(&rank.stream))
            })
            .unwrap();
        drop(send);
        rank.overwrite_free_memory();
        assert_eq!(read(&rank.other, &recv), [(peer + 1) as f32; LENGTH]);
    });
}

/// Checks that an operation is refused with a text that names the devices and the argument on another one.
pub(crate) fn assert_other_device(result: libnccl::Result<()>, what: &str, found: usize, expected: usize) {
    match result {
        Err(error @ Error::InvalidArgument { .. }) => {
            let text = error.to_string();
            let end = format!(": the {what} is on device {found}; the communicator is on device {expected}");
            assert!(text.ends_with(&end), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

fn buffer_of_another_device_is_invalid_argument() {
    run_ranks(0, |rank| {
        let peer = 1 - rank.comm.rank();
        let foreign = context(peer).default_stream();
        let mut buffer = zeros(&foreign, 8);
        // Of the default streams, of all devices, the handle is the same.
        for stream in [StreamRef::DEFAULT, (&rank.stream).into()] {
            let result = rank.comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, stream);
            assert_other_device(result, "buffer", peer, rank.comm.rank());
        }
        let mut of_host = [0.0; 8];
        let result = rank.comm.all_reduce(&buffer, &mut of_host, ReduceOp::Sum, &rank.stream);
        assert_other_device(result, "send buffer", peer, rank.comm.rank());
        let result = rank.comm.all_reduce(&of_host, &mut buffer, ReduceOp::Sum, &rank.stream);
        assert_other_device(result, "receive buffer", peer, rank.comm.rank());
    });
}

fn stream_of_another_device_is_invalid_argument() {
    run_ranks(0, |rank| {
        let peer = 1 - rank.comm.rank();
        let foreign = context(peer);
        let mut buffer = zeros(&rank.stream, 8);
        for stream in [foreign.default_stream(), foreign.new_stream().unwrap()] {
            let result = rank.comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, &stream);
            assert_other_device(result, "stream", peer, rank.comm.rank());
        }
    });
}

/// The default streams of all devices have the same handle.
fn synchronize_in_the_context_of_another_device_is_invalid_usage() {
    run_ranks(0, |rank| {
        let (own, peer) = (rank.comm.rank(), 1 - rank.comm.rank());
        let default = rank.context.default_stream();
        let mut buffer = upload(&default, &rank.values(LENGTH));
        rank.be_late();
        rank.comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, StreamRef::DEFAULT).unwrap();
        context(peer).make_current().unwrap();
        let expected = format!(
            "synchronize: the stream cannot be queried: the current device is {peer}, but \
             this is the default stream of device {own}"
        );
        for stream in [StreamRef::DEFAULT, (&default).into()] {
            let error = rank.comm.synchronize(&stream, LONG).unwrap_err();
            assert!(matches!(error, Error::InvalidUsage { .. }), "{error}");
            assert_eq!(error.to_string(), expected);
        }
        // The crate makes the context current.
        rank.comm.synchronize(&default, LONG).unwrap();
        rank.comm.synchronize(&StreamRef::DEFAULT, LONG).unwrap();
        assert_eq!(read(&default, &buffer), [3.0; LENGTH]);
    });
}

fn memory_of_nccl_on_another_device_is_invalid_argument() {
    run_ranks(0, |rank| {
        let (own, peer) = (rank.comm.rank(), 1 - rank.comm.rank());
        // It has the memory as long as it exists.
        let foreign = context(peer);
        foreign.make_current().unwrap();
        let mut buffer = rank.nccl.alloc::<f32>(8).unwrap();
        let sum = |result| assert_other_device(result, "buffer", peer, own);
        sum(rank.comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, &rank.stream));
        let part = buffer.get_mut(1..).unwrap();
        sum(rank.comm.all_reduce_in_place(part, ReduceOp::Sum, &rank.stream));
        let view = SliceMut::from(&mut buffer);
        sum(rank.comm.all_reduce_in_place(view, ReduceOp::Sum, &rank.stream));
        sum(rank.comm.register(&buffer).map(drop));
        // SAFETY: no work was started.
        unsafe { buffer.assume_idle() };
        buffer.free().unwrap();
    });
}

fn memory_of_nccl_is_allocated_on_the_context() {
    run_ranks(0, |rank| {
        // Another device is current before, if there is one.
        context((1 - rank.comm.rank()) % devices()).make_current().unwrap();
        let send = upload(&rank.other, &rank.values(8));
        rank.context.make_current().unwrap();
        let mut sums = rank.nccl.alloc::<f32>(8).unwrap();
        rank.comm.all_reduce(&send, &mut sums, ReduceOp::Sum, &rank.stream).unwrap();
        rank.comm.barrier(&mut sums, &rank.stream).unwrap();
        rank.context.synchronize().unwrap();
        // SAFETY: the work has run.
        unsafe { sums.assume_idle() };
        sums.free().unwrap();
    });
}

fn synchronize_returns_when_the_streams_work_is_done() {
    run_ranks(0, |rank| {
        let default = rank.context.default_stream();
        let mut buffer = upload(&rank.stream, &rank.values(LENGTH));
        rank.be_late();
        rank.comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, &rank.stream).unwrap();
        // Another device is current when the stream is queried, if there is one.
        context((1 - rank.comm.rank()) % devices()).make_current().unwrap();
        rank.comm.synchronize(&rank.stream, LONG).unwrap();
        assert!(rank.stream.is_complete().unwrap());
        rank.comm.synchronize(&default, LONG).unwrap();
        rank.comm.synchronize(&StreamRef::from(&rank.stream), LONG).unwrap();
        assert_eq!(read(&rank.stream, &buffer), [3.0; LENGTH]);
    });
}

fn synchronize_ends_with_an_error_when_a_peer_aborts() {
    run_unchecked(4, |rank| {
        if rank.comm.rank() == 1 {
            rank.be_late();
            rank.comm.abort_handle().abort().unwrap();
            return;
        }
        let mut buffer = upload(&rank.stream, &rank.values(LENGTH));
        rank.comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, &rank.stream).unwrap();
        let lost = rank.comm.synchronize(&rank.stream, LONG);
        let Err(Error::Nccl { call: "synchronize", detail, .. }) = lost else { panic!("{lost:?}") };
        // Another rank may have noticed before, and failed.
        assert!(detail.contains("rank 1") || detail.contains(" failed"), "{detail}");
        rank.comm.abort_handle().abort().unwrap();
        let ended = rank.comm.synchronize(&rank.stream, LONG);
        assert!(matches!(ended, Err(Error::Aborted { call: "synchronize" })), "{ended:?}");
    });
}

fn synchronize_without_a_peer_times_out_and_aborts() {
    const TIMEOUT: Duration = Duration::from_millis(200);
    let is_over = Barrier::new(2);
    run_unchecked(2, |rank| {
        if rank.comm.rank() == 0 {
            let mut buffer = upload(&rank.stream, &rank.values(LENGTH));
            rank.comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, &rank.stream).unwrap();
            assert!(!rank.stream.is_complete().unwrap());
            let error = rank.comm.synchronize(&rank.stream, TIMEOUT).unwrap_err();
            let text = error.to_string();
            let Error::Timeout { call: "synchronize", elapsed, size: 2, rank: 0, detail, .. } = error else {
                panic!("{text}")
            };
            assert!(elapsed >= TIMEOUT, "{text}");
            assert!(!is_emulated() || detail.contains("for rank 1 (process "), "{text}");
            // The abort has ended the work.
            while !rank.stream.is_complete().unwrap_or(true) {
                thread::sleep(Duration::from_millis(1));
            }
        }
        is_over.wait();
    });
}

fn communicator_whose_wait_is_over_can_be_shrunk() {
    let is_over = Barrier::new(2);
    run_unchecked(2, |rank| {
        if rank.comm.rank() == 0 {
            let values = rank.values(LENGTH);
            let mut buffer = upload(&rank.stream, &values);
            rank.comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, &rank.stream).unwrap();
            for _ in 0..2 {
                assert!(!rank.comm.wait_for(&rank.stream, Duration::from_millis(100)).unwrap());
            }
            assert_eq!(rank.comm.async_error().unwrap(), ResultCode::SUCCESS);
            let alone = rank.comm.shrink(&[1], ShrinkMode::Abort).init().unwrap();
            let mut buffer = upload(&rank.stream, &values);
            alone.all_reduce_in_place(&mut buffer, ReduceOp::Sum, &rank.stream).unwrap();
            assert!(alone.wait_for(&rank.stream, LONG).unwrap());
            assert_eq!(read(&rank.stream, &buffer), values);
        }
        is_over.wait();
    });
}
