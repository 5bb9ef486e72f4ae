//! Helpers of the tests: calls of the table's functions, and ranks as threads or in one thread's group.

macro_rules! nccl {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        let function = libnccl_cpu::TABLE.$name.expect(stringify!($name));
        // SAFETY: the tests pass what the header requires, or what is checked before it is used.
        #[allow(unused_unsafe, clippy::macro_metavars_in_unsafe)]
        unsafe { function($($argument),*) }
    }};
}

#[macro_use]
pub(crate) mod processes;

use std::ffi::{CStr, c_char, c_void};
use std::io::Write;
use std::ptr;
use std::slice;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libnccl::sys::{
    cudaStream_t, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};

pub(crate) const OK: ncclResult_t = ncclResult_t::ncclSuccess;
pub(crate) const ARGUMENT: ncclResult_t = ncclResult_t::ncclInvalidArgument;
pub(crate) const USAGE: ncclResult_t = ncclResult_t::ncclInvalidUsage;
pub(crate) const SYSTEM: ncclResult_t = ncclResult_t::ncclSystemError;
pub(crate) const REMOTE: ncclResult_t = ncclResult_t::ncclRemoteError;
pub(crate) const PROGRESS: ncclResult_t = ncclResult_t::ncclInProgress;

pub(crate) const I32: ncclDataType_t = ncclDataType_t::ncclInt32;
pub(crate) const F32: ncclDataType_t = ncclDataType_t::ncclFloat32;
pub(crate) const SUM: ncclRedOp_t = ncclRedOp_t::ncclSum;
pub(crate) const STREAM: cudaStream_t = ptr::null_mut();

/// Limit for calls that do not wait, on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(5);

/// Limit for any wait.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A communicator that can be sent to another thread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Comm(pub ncclComm_t);

// SAFETY: handles are numbers.
unsafe impl Send for Comm {}
// SAFETY: handles are numbers.
unsafe impl Sync for Comm {}

impl Comm {
    pub(crate) fn destroy(self) {
        assert_eq!(nccl!(ncclCommDestroy(self.0)), OK);
    }
}

pub(crate) fn unique_id() -> ncclUniqueId {
    let mut id = ncclUniqueId::default();
    assert_eq!(nccl!(ncclGetUniqueId(&mut id)), OK);
    id
}

/// Serializes tests that read or cause errors, because the last error belongs to the whole process. Aborts the program if such a
/// test hangs.
pub(crate) fn alone() -> (MutexGuard<'static, ()>, Watchdog) {
    static ALONE: Mutex<()> = Mutex::new(());
    (ALONE.lock().unwrap_or_else(PoisonError::into_inner), Watchdog::new(Duration::from_secs(90)))
}

/// Serializes tests with more ranks than processors, which would slow each other down.
pub(crate) fn busy() -> MutexGuard<'static, ()> {
    static BUSY: Mutex<()> = Mutex::new(());
    BUSY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Aborts the program unless it is dropped before the limit: a thread that waits for another rank cannot be ended otherwise.
#[derive(Debug)]
pub(crate) struct Watchdog(#[allow(unused)] Sender<()>);

impl Watchdog {
    pub(crate) fn new(limit: Duration) -> Self {
        let (sender, receiver) = channel();
        let test = thread::current().name().unwrap_or("a test").to_owned();
        thread::spawn(move || {
            if receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                // Not captured with the test's output, which is lost.
                let _ = writeln!(std::io::stderr(), "{test} hangs");
                std::process::abort();
            }
        });
        Self(sender)
    }
}

pub(crate) fn last_error() -> String {
    let text = nccl!(ncclGetLastError(ptr::null_mut()));
    // SAFETY: a NUL-terminated string, as the header promises.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

#[track_caller]
pub(crate) fn assert_last_error(part: &str) {
    assert!(last_error().contains(part), "{}", last_error());
}

fn result(code: ncclResult_t) -> Result<(), ncclResult_t> {
    if code == OK { Ok(()) } else { Err(code) }
}

pub(crate) fn init_rank(id: ncclUniqueId, ranks: usize, rank: usize) -> Result<Comm, ncclResult_t> {
    let mut comm = ptr::null_mut();
    result(nccl!(ncclCommInitRank(&mut comm, ranks as i32, id, rank as i32))).map(|()| Comm(comm))
}

#[track_caller]
pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns the name of the socket at which the ranks of an id rendezvous.
pub(crate) fn rendezvous_name(id: &ncclUniqueId) -> String {
    format!("libnccl-cpu-{}", hex(&id.internal[8..24]))
}

pub(crate) fn hex(bytes: &[c_char]) -> String {
    bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect()
}

/// Waits until a rendezvous has its root and `peers` connections, one per process, by counting the kernel's sockets with
/// that name.
pub(crate) fn wait_for_peers(id: &ncclUniqueId, peers: usize) {
    let name = rendezvous_name(id);
    let sockets = || std::fs::read_to_string("/proc/net/unix").unwrap().matches(&name).count();
    wait_until("the root and its peers", || sockets() > peers);
    // Time for the root to accept them and for them to send their hello.
    thread::sleep(Duration::from_millis(100));
}

pub(crate) fn init(ranks: usize) -> Vec<Comm> {
    let mut comms = vec![ptr::null_mut(); ranks];
    assert_eq!(nccl!(ncclCommInitAll(comms.as_mut_ptr(), ranks as i32, ptr::null())), OK);
    comms.into_iter().map(Comm).collect()
}

pub(crate) trait Element {
    const RAW: ncclDataType_t;
}

impl Element for i32 {
    const RAW: ncclDataType_t = I32;
}

impl Element for f32 {
    const RAW: ncclDataType_t = F32;
}

impl Element for f64 {
    const RAW: ncclDataType_t = ncclDataType_t::ncclFloat64;
}

/// Memory from `ncclMemAlloc`, as elements. It is freed when it is dropped.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) start: *mut i32,
    pub(crate) count: usize,
}

// SAFETY: every rank uses its own memory, or synchronizes with the others.
unsafe impl Send for Memory {}
// SAFETY: as for Send.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new(count: usize) -> Self {
        let mut memory = ptr::null_mut();
        let code = nccl!(ncclMemAlloc(&mut memory, count * size_of::<i32>()));
        assert_eq!(code, OK, "{}", last_error());
        Self { start: memory.cast(), count }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.count * size_of::<i32>()
    }

    /// Returns the elements, which no one else may use meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub(crate) fn elements(&self) -> &mut [i32] {
        // SAFETY: `count` initialized elements; the tests ensure that no one else uses them.
        unsafe { slice::from_raw_parts_mut(self.start, self.count) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        assert_eq!(nccl!(ncclMemFree(self.start.cast())), OK, "{}", last_error());
    }
}

/// Sums the ranks' buffers, in place.
pub(crate) fn all_reduce<T: Element>(buffer: &mut [T], comm: ncclComm_t) -> ncclResult_t {
    let place = buffer.as_mut_ptr().cast();
    nccl!(ncclAllReduce(place, place, buffer.len(), T::RAW, SUM, comm, STREAM))
}

pub(crate) fn broadcast<T: Element>(buffer: &mut [T], root: usize, comm: ncclComm_t) -> ncclResult_t {
    let place = buffer.as_mut_ptr().cast();
    nccl!(ncclBroadcast(place, place, buffer.len(), T::RAW, root as i32, comm, STREAM))
}

pub(crate) fn send<T: Element>(buffer: &[T], peer: usize, comm: ncclComm_t) -> ncclResult_t {
    nccl!(ncclSend(buffer.as_ptr().cast(), buffer.len(), T::RAW, peer as i32, comm, STREAM))
}

pub(crate) fn receive<T: Element>(buffer: &mut [T], peer: usize, comm: ncclComm_t) -> ncclResult_t {
    nccl!(ncclRecv(buffer.as_mut_ptr().cast(), buffer.len(), T::RAW, peer as i32, comm, STREAM))
}

pub(crate) fn split(comm: ncclComm_t, color: i32, key: i32) -> Result<Comm, ncclResult_t> {
    let mut child = ptr::dangling_mut();
    result(nccl!(ncclCommSplit(comm, color, key, &mut child, ptr::null_mut()))).map(|()| Comm(child))
}

pub(crate) fn sum(comm: ncclComm_t, number: i32) -> Result<i32, ncclResult_t> {
    let mut place = [number];
    result(all_reduce(&mut place, comm)).map(|()| place[0])
}

pub(crate) fn shrink(comm: ncclComm_t, exclude: &[i32], flags: i32) -> Result<Comm, ncclResult_t> {
    let (mut list, mut child) = (exclude.to_vec(), ptr::null_mut());
    let (start, number) = (list.as_mut_ptr(), list.len() as i32);
    result(nccl!(ncclCommShrink(comm, start, number, &mut child, ptr::null_mut(), flags)))
        .map(|()| Comm(child))
}

pub(crate) fn grow(
    comm: ncclComm_t,
    ranks: usize,
    id: Option<&ncclUniqueId>,
    rank: i32,
) -> Result<Comm, ncclResult_t> {
    let (id, mut child) = (id.map_or(ptr::null(), ptr::from_ref), ptr::null_mut());
    result(nccl!(ncclCommGrow(comm, ranks as i32, id, rank, &mut child, ptr::null_mut())))
        .map(|()| Comm(child))
}

/// Creates a communicator with a config that differs from the initializer. Its handle may be NULL.
pub(crate) fn init_with(
    id: ncclUniqueId,
    ranks: usize,
    rank: usize,
    change: impl FnOnce(&mut ncclConfig_t),
) -> (ncclResult_t, Comm) {
    let (mut comm, mut config) = (ptr::null_mut(), ncclConfig_t::initializer());
    change(&mut config);
    let code = nccl!(ncclCommInitRankConfig(&mut comm, ranks as i32, id, rank as i32, &mut config));
    (code, Comm(comm))
}

/// Makes calls in a group, and returns the code of its end.
pub(crate) fn in_group(calls: impl FnOnce()) -> ncclResult_t {
    assert_eq!(nccl!(ncclGroupStart()), OK);
    calls();
    nccl!(ncclGroupEnd())
}

/// The arguments of a collective, apart from its buffers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arguments {
    pub(crate) count: usize,
    pub(crate) data: ncclDataType_t,
    pub(crate) op: ncclRedOp_t,
    pub(crate) root: i32,
}

pub(crate) type Collective = fn(Arguments, *const c_void, *mut c_void, ncclComm_t) -> ncclResult_t;

/// The collectives by name.
pub(crate) const COLLECTIVES: [(&str, Collective); 8] = [
    ("ncclAllReduce", |a, s, r, c| nccl!(ncclAllReduce(s, r, a.count, a.data, a.op, c, STREAM))),
    ("ncclBroadcast", |a, s, r, c| nccl!(ncclBroadcast(s, r, a.count, a.data, a.root, c, STREAM))),
    ("ncclReduce", |a, s, r, c| nccl!(ncclReduce(s, r, a.count, a.data, a.op, a.root, c, STREAM))),
    ("ncclAllGather", |a, s, r, c| nccl!(ncclAllGather(s, r, a.count, a.data, c, STREAM))),
    ("ncclReduceScatter", |a, s, r, c| nccl!(ncclReduceScatter(s, r, a.count, a.data, a.op, c, STREAM))),
    ("ncclAlltoAll", |a, s, r, c| nccl!(ncclAlltoAll(s, r, a.count, a.data, c, STREAM))),
    ("ncclGather", |a, s, r, c| nccl!(ncclGather(s, r, a.count, a.data, a.root, c, STREAM))),
    ("ncclScatter", |a, s, r, c| nccl!(ncclScatter(s, r, a.count, a.data, a.root, c, STREAM))),
];

pub(crate) fn has_root(collective: &str) -> bool {
    matches!(collective, "ncclBroadcast" | "ncclReduce" | "ncclGather" | "ncclScatter")
}

/// Sums a 1 from each rank.
#[track_caller]
pub(crate) fn assert_sum(comm: ncclComm_t, ranks: usize) {
    let mut number = [1];
    assert_eq!((all_reduce(&mut number, comm), number), (OK, [ranks as i32]), "{}", last_error());
}

pub(crate) fn async_error(comm: ncclComm_t) -> ncclResult_t {
    let mut code = OK;
    assert_eq!(nccl!(ncclCommGetAsyncError(comm, &mut code)), OK);
    code
}

/// Waits until a nonblocking call has ended, and returns its result.
#[track_caller]
pub(crate) fn wait_async(comm: ncclComm_t) -> ncclResult_t {
    let start = Instant::now();
    loop {
        match async_error(comm) {
            PROGRESS => assert!(start.elapsed() < LIMIT, "the call never ends"),
            code => return code,
        }
        thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn nonblocking() -> ncclConfig_t {
    ncclConfig_t { blocking: 0, ..ncclConfig_t::initializer() }
}

pub(crate) fn init_nonblocking(id: ncclUniqueId, ranks: usize, rank: usize) -> Comm {
    let (code, comm) = init_with(id, ranks, rank, |config| config.blocking = 0);
    assert_eq!(code, PROGRESS);
    assert!(!comm.0.is_null(), "no communicator to query");
    comm
}

/// Runs `body` for each rank on a separate thread.
pub(crate) fn on_threads<T: Send>(ranks: usize, body: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let body = &body;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
