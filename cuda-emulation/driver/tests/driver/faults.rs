//! Device memory that the host touches.

use std::hint::black_box;
use std::ptr;

use cudarc::driver::sys::CUdeviceptr;

use crate::work;

crate::tests! {
    host_access_to_device_memory_is_a_segfault = touch_device_memory => SIGSEGV
    host_access_to_device_memory_is_reported_if_enabled = touch_device_memory [
        "the host touched byte 16 of allocation 200, 100 bytes of device 1; copy it with", " [device-memory-touched]\n"
    ] { LIBNCCL_CPU_FAULTS = "report" } => SIGSEGV
    host_access_to_device_memory_is_recorded_in_the_file = touch_device_memory [
        "\n{\"count\":1,\"finding\":\"device-memory-touched\",\"process\":", "cuMemAllocManaged or cuMemAllocHost\"}\n"
    ] { LIBNCCL_CPU_FAULTS = "report", LIBNCCL_CPU_REPORT = "/dev/stderr" } => SIGSEGV
    host_access_to_freed_memory_is_reported_if_enabled = touch_freed_memory [
        "the host touched byte 16 of allocation 200, 100 bytes of device 1, which was freed; "
    ] { LIBNCCL_CPU_FAULTS = "report" } => SIGSEGV
    earlier_handler_is_called_after_a_report = touch_with_a_handler [
        "the host touched byte 16 of allocation 200", "an earlier handler"
    ] { LIBNCCL_CPU_FAULTS = "report" }
    fault_outside_device_memory_is_not_reported = touch_nothing { LIBNCCL_CPU_FAULTS = "report" } => SIGSEGV
}

/// Allocates device memory more often than one segment of the list can hold.
fn allocate() -> CUdeviceptr {
    work::enter(1);
    [(); 200].map(|()| work::allocate(100))[199]
}

fn touch(address: CUdeviceptr) {
    let byte = ptr::with_exposed_provenance::<u8>(address as usize + 16);
    // SAFETY: none; the mistake is what is tested.
    black_box(unsafe { byte.read_volatile() });
}

fn touch_device_memory() {
    touch(allocate());
}

fn touch_freed_memory() {
    let address = allocate();
    work::free(address);
    touch(address);
}

fn touch_nothing() {
    allocate();
    // SAFETY: new pages, without access.
    let pages = unsafe {
        libc::mmap(ptr::null_mut(), 4096, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    touch(pages.expose_provenance() as CUdeviceptr);
}

fn touch_with_a_handler() {
    extern "C" fn handle(_signal: libc::c_int) {
        const TEXT: &str = "an earlier handler\n";
        // SAFETY: the text is as long.
        unsafe {
            libc::write(libc::STDERR_FILENO, TEXT.as_ptr().cast(), TEXT.len());
            libc::_exit(0);
        }
    }
    // SAFETY: the handler does only what a handler may.
    unsafe { libc::signal(libc::SIGSEGV, handle as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    touch(allocate());
}
