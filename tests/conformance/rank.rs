//! A rank of a case: its library, memory, stream and communicators, and the files by which it exchanges data with the others.

use std::ffi::{CStr, c_int, c_void};
use std::fs;
use std::panic;
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{
    CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode, cuMemcpyAsync, cuStreamQuery,
};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, result};
use libnccl::Nccl;
use libnccl::sys::{
    Functions, cudaStream_t, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t,
    ncclUniqueId,
};

use crate::implementation::Implementation;

pub(crate) const OK: ncclResult_t = ncclResult_t::ncclSuccess;
pub(crate) const ARGUMENT: ncclResult_t = ncclResult_t::ncclInvalidArgument;
pub(crate) const USAGE: ncclResult_t = ncclResult_t::ncclInvalidUsage;
pub(crate) const PROGRESS: ncclResult_t = ncclResult_t::ncclInProgress;
pub(crate) const I32: ncclDataType_t = ncclDataType_t::ncclInt32;
pub(crate) const SUM: ncclRedOp_t = ncclRedOp_t::ncclSum;

/// A limit for what should happen immediately, on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// A time in which an operation that waits for no other rank has ended.
pub(crate) const MOMENT: Duration = Duration::from_millis(200);

/// The longest that enqueued work may take. Two processes share a GPU in turns of milliseconds.
const WORK_LIMIT: Duration = Duration::from_secs(30);

/// Calls a function, and returns its code. The case is skipped if the library is too old for the function.
macro_rules! call {
    ($rank:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let Some(function) = $rank.functions().$name else { $rank.skip(concat!(stringify!($name), " is missing")) };
        // SAFETY: the cases pass what the header requires, or what is checked before it is used.
        #[allow(unused_unsafe, clippy::macro_metavars_in_unsafe)]
        unsafe { function($($argument),*) }
    }};
}

/// Calls a function that must succeed or be in progress. The case is skipped if NCCL reports that it is not supported here.
macro_rules! check {
    ($rank:expr, $name:ident($($argument:expr),* $(,)?)) => {
        $rank.expect_success(stringify!($name), call!($rank, $name($($argument),*)))
    };
}

/// The file with the reason of a case that is skipped.
pub(crate) const SKIPPED: &str = "skipped";

pub(crate) struct Rank {
    pub(crate) number: usize,
    pub(crate) size: usize,
    pub(crate) implementation: Implementation,
    nccl: Nccl,
    /// The stream of all work, if the implementation has device memory.
    stream: Option<Arc<CudaStream>>,
    directory: PathBuf,
}

impl Rank {
    pub(crate) fn new(
        implementation: Implementation,
        nccl: Nccl,
        number: usize,
        size: usize,
        directory: PathBuf,
    ) -> Self {
        let context = |device| CudaContext::new(device).expect("the device can be used");
        let stream = implementation
            .has_device_memory()
            .then(|| context(implementation.device(number)).new_stream().expect("a stream"));
        Self { number, size, implementation, nccl, stream, directory }
    }

    pub(crate) fn functions(&self) -> &Functions {
        self.nccl.as_raw()
    }

    pub(crate) fn stream(&self) -> cudaStream_t {
        self.stream.as_ref().map_or(ptr::null_mut(), |stream| stream.cu_stream().cast())
    }

    /// Ends the case, because it cannot run here.
    pub(crate) fn skip(&self, reason: &str) -> ! {
        self.publish(SKIPPED, reason);
        exit(0)
    }

    #[track_caller]
    pub(crate) fn expect_success(&self, function: &str, code: ncclResult_t) {
        let text = if code == OK { String::new() } else { self.last_error() };
        if !self.implementation.is_cpu_backend() && text.to_lowercase().contains("not supported") {
            self.skip(&text);
        }
        assert!(code == OK || code == PROGRESS, "rank {}: {function}: {code:?}: {text}", self.number);
    }

    pub(crate) fn last_error(&self) -> String {
        let text = self.functions().ncclGetLastError.map_or(ptr::null(), |function| {
            // SAFETY: NULL is a valid argument.
            unsafe { function(ptr::null_mut()) }
        });
        if text.is_null() {
            return String::new();
        }
        // SAFETY: a NUL-terminated string, as the header promises.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// Asserts that the last error contains `part`, if its text is known.
    #[track_caller]
    pub(crate) fn assert_last_error(&self, part: &str) {
        let text = self.last_error();
        assert!(!self.implementation.is_cpu_backend() || text.contains(part), "no {part:?} in {text:?}");
    }

    // Data of the other ranks.

    /// Publishes bytes under a name, for the other ranks to [`receive`](Self::receive).
    pub(crate) fn publish(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let unfinished = self.directory.join(format!("unfinished{}", self.number));
        fs::write(&unfinished, bytes)
            .and_then(|()| fs::rename(&unfinished, self.directory.join(name)))
            .expect("a file for the other ranks");
    }

    /// Waits for bytes that another rank [publishes](Self::publish).
    pub(crate) fn receive(&self, name: &str) -> Vec<u8> {
        let mut bytes = None;
        let is_there = poll(WORK_LIMIT, || {
            bytes = fs::read(self.directory.join(name)).ok();
            if bytes.is_none() && self.directory.join(SKIPPED).exists() {
                exit(0);
            }
            bytes.is_some()
        });
        assert!(is_there, "no rank published {name:?} within {WORK_LIMIT:?}");
        bytes.unwrap_or_default()
    }

    /// Waits until all ranks have reached the barrier of this name.
    pub(crate) fn barrier(&self, name: &str) {
        self.barrier_of(self.size, name);
    }

    /// Waits until the first `size` ranks have reached the barrier of this name.
    pub(crate) fn barrier_of(&self, size: usize, name: &str) {
        self.publish(&format!("{} {name}", self.number), "");
        (0..size).for_each(|rank| drop(self.receive(&format!("{rank} {name}"))));
    }

    // Communicators.

    pub(crate) fn new_id(&self) -> ncclUniqueId {
        let mut id = ncclUniqueId::default();
        check!(self, ncclGetUniqueId(&mut id));
        id
    }

    /// Publishes an id under a name.
    pub(crate) fn publish_id(&self, name: &str, id: &ncclUniqueId) {
        self.publish(name, id.internal.map(|byte| byte as u8));
    }

    pub(crate) fn receive_id(&self, name: &str) -> ncclUniqueId {
        let mut id = ncclUniqueId::default();
        id.internal.iter_mut().zip(self.receive(name)).for_each(|(to, byte)| *to = byte as _);
        id
    }

    /// Returns an id that rank 0 creates.
    pub(crate) fn share_id(&self, name: &str) -> ncclUniqueId {
        if self.number == 0 {
            self.publish_id(name, &self.new_id());
        }
        self.receive_id(name)
    }

    /// Creates a communicator of all ranks.
    pub(crate) fn join(&self, name: &str) -> ncclComm_t {
        self.join_with(name, &mut ncclConfig_t::initializer())
    }

    pub(crate) fn join_nonblocking(&self, name: &str) -> ncclComm_t {
        self.join_with(name, &mut ncclConfig_t { blocking: 0, ..ncclConfig_t::initializer() })
    }

    pub(crate) fn join_with(&self, name: &str, config: &mut ncclConfig_t) -> ncclComm_t {
        let (id, mut comm) = (self.share_id(name), ptr::null_mut());
        check!(self, ncclCommInitRankConfig(&mut comm, self.size as c_int, id, self.number as c_int, config));
        self.finish(comm);
        comm
    }

    pub(crate) fn async_error(&self, comm: ncclComm_t) -> ncclResult_t {
        let mut code = OK;
        assert_eq!(call!(self, ncclCommGetAsyncError(comm, &mut code)), OK);
        code
    }

    /// Waits until a call of a nonblocking communicator has ended, and returns its result.
    pub(crate) fn wait(&self, comm: ncclComm_t) -> ncclResult_t {
        assert!(poll(WORK_LIMIT, || self.async_error(comm) != PROGRESS), "the call never ends");
        self.async_error(comm)
    }

    /// Returns whether the calls of a nonblocking communicator, and the work on the stream, end within `time`.
    pub(crate) fn is_done_within(&self, comm: ncclComm_t, time: Duration) -> bool {
        poll(time, || self.async_error(comm) != PROGRESS) && self.is_idle_within(time)
    }

    /// Waits until a call has succeeded.
    #[track_caller]
    pub(crate) fn finish(&self, comm: ncclComm_t) {
        let code = self.wait(comm);
        self.expect_success("the call in progress", code);
    }

    #[track_caller]
    pub(crate) fn destroy(&self, comm: ncclComm_t) {
        self.synchronize();
        self.soon(|| check!(self, ncclCommDestroy(comm)));
    }

    /// Calls a function that waits for no other rank.
    pub(crate) fn soon<T>(&self, function: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let value = function();
        assert!(start.elapsed() < SOON, "it took {:?}", start.elapsed());
        value
    }

    /// Returns the number of ranks and this rank in a communicator.
    pub(crate) fn place(&self, comm: ncclComm_t) -> (usize, usize) {
        let (mut count, mut rank) = (-1, -1);
        check!(self, ncclCommCount(comm, &mut count));
        check!(self, ncclCommUserRank(comm, &mut rank));
        (count as usize, rank as usize)
    }

    /// Asserts that the ranks of a communicator are `members`, in this order, and that its operations work.
    #[track_caller]
    pub(crate) fn assert_members(&self, comm: ncclComm_t, members: &[usize]) {
        let (size, rank) = self.place(comm);
        assert_eq!((size, members[rank]), (members.len(), self.number));
        let (own, all) = (self.upload(&[self.number as i32]), self.upload(&vec![-1_i32; size]));
        check!(self, ncclAllGather(own.at(0), all.at(0), 1, I32, comm, self.stream()));
        self.finish(comm);
        let expected: Vec<i32> = members.iter().map(|member| *member as i32).collect();
        assert_eq!(all.read::<i32>(), expected);
        let sum = self.upload(&[self.number as i32 + 1; 1000]);
        self.start_sum(comm, &sum);
        self.finish(comm);
        assert_eq!(sum.read::<i32>(), vec![expected.iter().map(|member| member + 1).sum::<i32>(); 1000]);
    }

    /// Asserts that a communicator of all ranks works.
    #[track_caller]
    pub(crate) fn assert_works(&self, comm: ncclComm_t) {
        self.assert_members(comm, &(0..self.size).collect::<Vec<_>>());
    }

    /// Starts an in-place sum of a buffer of `i32`.
    #[track_caller]
    pub(crate) fn start_sum(&self, comm: ncclComm_t, buffer: &Buffer<'_>) {
        let (place, count) = (buffer.at(0), buffer.bytes / 4);
        check!(self, ncclAllReduce(place, place, count, I32, SUM, comm, self.stream()));
    }

    /// Starts a send of a whole buffer of `i32`.
    #[track_caller]
    pub(crate) fn send(&self, buffer: &Buffer<'_>, peer: usize, comm: ncclComm_t) {
        check!(self, ncclSend(buffer.at(0), buffer.bytes / 4, I32, peer as c_int, comm, self.stream()));
    }

    #[track_caller]
    pub(crate) fn receive_into(&self, buffer: &Buffer<'_>, peer: usize, comm: ncclComm_t) {
        check!(self, ncclRecv(buffer.at(0), buffer.bytes / 4, I32, peer as c_int, comm, self.stream()));
    }

    /// Calls functions in a group.
    #[track_caller]
    pub(crate) fn group(&self, calls: impl FnOnce()) -> ncclResult_t {
        check!(self, ncclGroupStart());
        calls();
        call!(self, ncclGroupEnd())
    }

    // Memory.

    /// Returns memory that holds these elements. It is never freed: work on it may never end, and the process is a short one.
    pub(crate) fn upload<T: Copy>(&self, elements: &[T]) -> Buffer<'_> {
        let buffer = self.allocate(size_of_val(elements));
        buffer.write(elements);
        buffer
    }

    /// Allocates memory: of the device if the implementation has one.
    pub(crate) fn allocate(&self, bytes: usize) -> Buffer<'_> {
        let address = match &self.stream {
            None => vec![0_u64; bytes / 8 + 1].leak().as_mut_ptr().cast::<c_void>(),
            // SAFETY: the context is current; CUDA refuses only an empty buffer.
            Some(_) => unsafe { result::malloc_sync(bytes.max(1)) }.expect("device memory") as *mut c_void,
        };
        Buffer { rank: self, address, bytes }
    }

    /// Returns memory from `ncclMemAlloc` that holds these elements.
    pub(crate) fn upload_to_nccl<T: Copy>(&self, elements: &[T]) -> Buffer<'_> {
        let buffer = self.allocate_by_nccl(size_of_val(elements));
        buffer.write(elements);
        buffer
    }

    pub(crate) fn allocate_by_nccl(&self, bytes: usize) -> Buffer<'_> {
        let mut address = ptr::null_mut();
        check!(self, ncclMemAlloc(&mut address, bytes));
        Buffer { rank: self, address, bytes }
    }

    /// Makes the rank's device current on the calling thread.
    pub(crate) fn make_current(&self) {
        self.stream
            .iter()
            .for_each(|stream| stream.context().bind_to_thread().expect("the device becomes current"));
    }

    /// Returns whether all work on the stream ends within `time`.
    pub(crate) fn is_idle_within(&self, time: Duration) -> bool {
        let Some(stream) = &self.stream else { return true };
        // SAFETY: a live stream.
        poll(time, || match unsafe { cuStreamQuery(stream.cu_stream()) } {
            CUresult::CUDA_SUCCESS => true,
            CUresult::CUDA_ERROR_NOT_READY => false,
            error => panic!("the work on the device failed: {error:?}"),
        })
    }

    /// Copies bytes between the program's memory and memory for operations, after all work on the stream.
    fn copy(&self, to: *mut c_void, from: *const c_void, bytes: usize) {
        self.synchronize();
        match &self.stream {
            // SAFETY: both are that long, and no operation uses them.
            None => unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), bytes) },
            Some(stream) => {
                // SAFETY: as above, until the copy has been waited for.
                unsafe { cuMemcpyAsync(to as u64, from as u64, bytes, stream.cu_stream()) }
                    .result()
                    .expect("a copy");
                self.synchronize();
            }
        }
    }

    /// Captures the work that `start` starts on the stream, instead of running it. The case is skipped on host memory.
    pub(crate) fn capture(&self, start: impl FnOnce()) -> CudaGraph {
        let Some(stream) = &self.stream else { self.skip("there are no graphs on host memory") };
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        stream.begin_capture(mode).expect("a stream that captures");
        start();
        stream.end_capture(flags).expect("the end of a capture").expect("a graph with work")
    }

    pub(crate) fn synchronize(&self) {
        assert!(
            self.is_idle_within(WORK_LIMIT),
            "the work on the device has not ended within {WORK_LIMIT:?}"
        );
    }
}

/// Memory for operations. It is accessed by its address alone, as operations in progress use it too.
pub(crate) struct Buffer<'a> {
    rank: &'a Rank,
    pub(crate) address: *mut c_void,
    pub(crate) bytes: usize,
}

impl Buffer<'_> {
    /// Returns the address of a byte.
    pub(crate) fn at(&self, offset: usize) -> *mut c_void {
        self.address.wrapping_byte_add(offset)
    }

    /// Writes elements to the start, after all work on the stream.
    pub(crate) fn write<T: Copy>(&self, elements: &[T]) {
        self.write_at(0, elements);
    }

    /// Writes elements from a byte on.
    pub(crate) fn write_at<T: Copy>(&self, offset: usize, elements: &[T]) {
        assert!(offset + size_of_val(elements) <= self.bytes);
        self.rank.copy(self.at(offset), elements.as_ptr().cast(), size_of_val(elements));
    }

    /// Returns all elements, after all work on the stream.
    pub(crate) fn read<T: Copy + Default>(&self) -> Vec<T> {
        self.read_first(self.bytes / size_of::<T>())
    }

    /// Returns the first elements.
    pub(crate) fn read_first<T: Copy + Default>(&self, count: usize) -> Vec<T> {
        assert!(count * size_of::<T>() <= self.bytes);
        let mut elements = vec![T::default(); count];
        self.rank.copy(elements.as_mut_ptr().cast(), self.address, count * size_of::<T>());
        elements
    }
}

/// Returns whether something happens within `time`.
fn poll(time: Duration, mut has_happened: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !has_happened() {
        if start.elapsed() > time {
            return false;
        }
        thread::sleep(Duration::from_micros(100));
    }
    true
}

/// Makes a panic of any rank end the process: code that waits for the others or a GPU cannot be unwound.
pub(crate) fn exit_on_panic() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        report(panic);
        exit(101);
    }));
}

/// Ends the process without running exit handlers, which may wait for work that never ends.
pub(crate) fn exit(status: c_int) -> ! {
    unsafe extern "C" {
        safe fn _exit(status: c_int) -> !;
    }
    _exit(status)
}
