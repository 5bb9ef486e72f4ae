//! `CUDA_LAUNCH_BLOCKING`, and advice about kernels.

use std::ffi::{CString, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult, CUstream};
use cudarc::driver::{DriverError, result};

use crate::extension;
use crate::work;

crate::tests! {
    blocking_launches_return_after_their_work { CUDA_LAUNCH_BLOCKING = "1" }
    launches_return_before_their_work { CUDA_LAUNCH_BLOCKING = "0" }
    refused_kernel_in_a_process_with_pytorch_names_the_remedy = kernels_with_pytorch [
        "does not support cuLaunchKernel; PyTorch's operators are kernels, and run on the CPU with `python3 -m libnccl_cpu.torch",
        "does not support cuModuleLoadData; PyTorch",
        "does not support cuGraphAddKernelNode_v2; PyTorch",
        "does not support cuProfilerStart\n",
    ]
    refused_kernel_where_operators_run_on_the_cpu_names_no_remedy = kernels_with_pytorch [
        "does not support cuLaunchKernel\n"
    ] { _LIBNCCL_CPU_PROGRAM = "/program.py" }
    refused_kernel_without_pytorch_names_no_remedy = refuse_kernels ["does not support cuLaunchKernel\n"]
}

static HAS_RETURNED: AtomicBool = AtomicBool::new(false);
static SAW_RETURN: AtomicBool = AtomicBool::new(false);

/// Waits on a stream until the call that enqueues work after this has returned.
fn watch(limit: Duration) {
    let start = Instant::now();
    while !HAS_RETURNED.load(Ordering::SeqCst) && start.elapsed() < limit {
        thread::sleep(Duration::from_millis(1));
    }
    SAW_RETURN.store(HAS_RETURNED.load(Ordering::SeqCst), Ordering::SeqCst);
}

/// Returns whether a call returns before the work on its stream is complete.
fn returns_early(stream: CUstream, limit: u64, call: impl FnOnce()) -> bool {
    HAS_RETURNED.store(false, Ordering::SeqCst);
    work::call(stream, move || watch(Duration::from_millis(limit)));
    call();
    HAS_RETURNED.store(true, Ordering::SeqCst);
    // SAFETY: the stream lives.
    unsafe { result::stream::synchronize(stream) }.expect("no error");
    SAW_RETURN.load(Ordering::SeqCst)
}

fn blocking_launches_return_after_their_work() {
    check_launches(true);
}

fn launches_return_before_their_work() {
    check_launches(false);
}

fn check_launches(block: bool) {
    // If the call blocks, this wait times out.
    let limit = if block { 100 } else { 20_000 };
    let context = work::context(0);
    let owner = context.new_stream().expect("a stream");
    let stream = owner.cu_stream();
    let [one, two] = [(); 2].map(|()| work::memory());
    let memset = || work::try_fill(one, 1, stream).expect("a memset");
    assert_eq!(returns_early(stream, limit, memset), !block, "memset");
    let copy = || work::copy(two, one, stream);
    assert_eq!(returns_early(stream, limit, copy), !block, "copy");

    owner.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("a capture");
    memset();
    copy();
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = owner.end_capture(flags).expect("a graph").expect("nodes");
    let launch = || graph.launch().expect("a launch");
    assert_eq!(returns_early(stream, limit, launch), !block, "graph");

    unsafe extern "C" fn nothing(_data: *mut c_void) {}
    let operation = || {
        let access = extension::writes(one, work::LENGTH);
        extension::enqueue(stream, access, c"operation", [Some(nothing), None], ptr::null_mut())
            .expect("an operation");
    };
    assert!(returns_early(stream, 20_000, operation), "an operation of NCCL may wait for the next one");
    let whole_call = || {
        operation();
        extension::launched(stream).expect("no error");
    };
    assert_eq!(returns_early(stream, limit, whole_call), !block, "call of NCCL");
}

fn refuse_kernels() {
    result::init().expect("no error");
    let refused = Err(DriverError(CUresult::CUDA_ERROR_NOT_SUPPORTED));
    for name in [c"cuLaunchKernel", c"cuModuleLoadData", c"cuGraphAddKernelNode_v2", c"cuProfilerStart"] {
        assert_eq!(extension::function::<extern "C" fn() -> CUresult>(name)().result(), refused);
    }
}

fn kernels_with_pytorch() {
    // Any library with the name of a PyTorch library.
    let maps = fs::read_to_string("/proc/self/maps").expect("this process's libraries");
    let some = maps.split_whitespace().find(|word| word.contains("/libgcc_s.so")).expect("a library");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("libtorch_cpu.so");
    fs::copy(some, &path).expect("a copy");
    let path = CString::new(path.as_os_str().as_bytes()).expect("no null byte");
    // SAFETY: the initializers of a library that is there already.
    assert!(!unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) }.is_null());
    refuse_kernels();
}
