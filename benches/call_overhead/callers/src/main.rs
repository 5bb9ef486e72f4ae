//! `callers <path> <calls>` calls all_reduce that many times by that call path, and prints the number of allocations;
//! `callers load` and `callers bare-dlopen` print the nanoseconds that it takes to load the library.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::hint::black_box;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use libnccl::sys::{cudaStream_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};
use libnccl::{Communicator, Slice, SliceMut, Nccl, ReduceOp, StreamRef};
use libnccl_observe::RecordExt;

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes every call on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The arguments, in cells. The compiler must assume that the library changes them, so they are read, and checked, for each
/// call.
struct Arguments {
    send: Cell<*const f32>,
    recv: Cell<*mut f32>,
    send_length: Cell<usize>,
    recv_length: Cell<usize>,
    stream: Cell<cudaStream_t>,
}

impl Arguments {
    fn views(&self) -> (Slice<'_, f32>, SliceMut<'_, f32>, StreamRef<'_>) {
        // SAFETY: `main` put arrays of these lengths there, and the null stream; the no-op library, which takes
        // them for device memory, does not access them.
        unsafe {
            (
                Slice::from_device_ptr(self.send.get(), self.send_length.get()),
                SliceMut::from_device_ptr(self.recv.get(), self.recv_length.get()),
                StreamRef::from_raw(self.stream.get()),
            )
        }
    }
}

/// The entries of a recorder.
const ENTRIES: usize = 1024;

fn main() -> Result {
    let mut words = std::env::args().skip(1);
    let path = words.next().ok_or("the call path is missing")?;
    match path.as_str() {
        "load" => return timed(|| Nccl::load().map_err(Into::into)),
        "bare-dlopen" => return timed(bare_dlopen),
        _ => {}
    }
    let calls = words.next().ok_or("the number of calls is missing")?.parse()?;
    let (send, mut recv) = ([1.0; 4], [0.0; 4]);
    let arguments = Arguments {
        send: Cell::new(send.as_ptr()),
        recv: Cell::new(recv.as_mut_ptr()),
        send_length: Cell::new(send.len()),
        recv_length: Cell::new(recv.len()),
        stream: Cell::new(std::ptr::null_mut()),
    };
    let arguments = black_box(&arguments);
    #[cfg(feature = "tracing")]
    libnccl_observe::tracing();
    let loaded = Nccl::load()?;
    let nccl = if path.ends_with("-in-process") {
        // SAFETY: the functions of a library that is never unloaded.
        unsafe { Nccl::from_table("no-op", *loaded.as_raw()) }?
    } else {
        loaded
    };
    let comm = nccl.init_all(&[0])?.remove(0);
    // A second call site: a function with a single one might be inlined, which would not happen in a real program.
    let (send, recv, stream) = arguments.views();
    comm.all_reduce(send, recv, ReduceOp::Sum, stream)?;
    let (send, recv, stream) = arguments.views();
    nccl.group(|group| comm.all_reduce(send, recv, ReduceOp::Sum, group.stream(stream)))?;
    if path.ends_with("-recorded") {
        comm.record(ENTRIES);
    }
    let before = ALLOCATIONS.load(Relaxed);
    match path.as_str() {
        #[cfg(feature = "link")]
        "extern" => raw_extern(comm.as_raw(), arguments, calls),
        "table" => raw_table(&nccl, comm.as_raw(), arguments, calls),
        "facade" | "facade-in-process" | "facade-recorded" => facade(&comm, arguments, calls),
        // Not dropped, which allocates.
        "mutex" => locked_facade(&ManuallyDrop::new(Mutex::new(comm)), arguments, calls),
        "group" | "group-in-process" | "group-recorded" => group(&nccl, &comm, arguments, calls),
        _ => Err(format!("unknown call path {path}").into()),
    }?;
    println!("{}", ALLOCATIONS.load(Relaxed) - before);
    Ok(())
}

#[cfg(feature = "link")]
fn raw_extern(comm: ncclComm_t, arguments: &Arguments, calls: usize) -> Result {
    use libnccl::sys::linked::ncclAllReduce;

    let Arguments { send, recv, send_length: count, stream, .. } = arguments;
    let (send_type, op) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);
    for _ in 0..calls {
        let (send, recv) = (send.get().cast(), recv.get().cast());
        // SAFETY: as in `Arguments::views`.
        check(unsafe { ncclAllReduce(send, recv, count.get(), send_type, op, comm, stream.get()) })?;
    }
    Ok(())
}

fn raw_table(nccl: &Nccl, comm: ncclComm_t, arguments: &Arguments, calls: usize) -> Result {
    let Arguments { send, recv, send_length: count, stream, .. } = arguments;
    let (send_type, op) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);
    for _ in 0..calls {
        let all_reduce = nccl.as_raw().ncclAllReduce.ok_or("ncclAllReduce is absent")?;
        let (send, recv) = (send.get().cast(), recv.get().cast());
        // SAFETY: as in `Arguments::views`.
        check(unsafe { all_reduce(send, recv, count.get(), send_type, op, comm, stream.get()) })?;
    }
    Ok(())
}

fn facade(comm: &Communicator, arguments: &Arguments, calls: usize) -> Result {
    for _ in 0..calls {
        let (send, recv, stream) = arguments.views();
        comm.all_reduce(send, recv, ReduceOp::Sum, stream)?;
    }
    Ok(())
}

fn locked_facade(comm: &Mutex<Communicator>, arguments: &Arguments, calls: usize) -> Result {
    for _ in 0..calls {
        let (send, recv, stream) = arguments.views();
        comm.lock().unwrap_or_else(PoisonError::into_inner).all_reduce(send, recv, ReduceOp::Sum, stream)?;
    }
    Ok(())
}

fn group(nccl: &Nccl, comm: &Communicator, arguments: &Arguments, calls: usize) -> Result {
    for _ in 0..calls {
        let (send, recv, stream) = arguments.views();
        nccl.group(|group| comm.all_reduce(send, recv, ReduceOp::Sum, group.stream(stream)))?;
    }
    Ok(())
}

fn check(code: ncclResult_t) -> Result {
    if code == ncclResult_t::ncclSuccess { Ok(()) } else { Err(format!("NCCL returned {}", code.0).into()) }
}

fn timed<T>(load: impl FnOnce() -> Result<T>) -> Result {
    let start = Instant::now();
    let loaded = load()?;
    let elapsed = start.elapsed();
    black_box(loaded);
    println!("{}", elapsed.as_nanos());
    Ok(())
}

/// Loads the library as any program must, and as `Nccl::load` does in the end.
fn bare_dlopen() -> Result<*mut c_void> {
    unsafe extern "C" {
        fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    }
    const NAME: &CStr = c"libnccl.so.2";
    const RTLD_NOW: c_int = 2;
    // SAFETY: a C string; the library is the one that `Nccl::load` loads.
    let library = unsafe { dlopen(NAME.as_ptr(), RTLD_NOW) };
    if library.is_null() { Err(format!("{NAME:?} cannot be loaded").into()) } else { Ok(library) }
}
