//! Reports of functions and features that the CUDA emulation does not support.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int, c_void};
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

/// Reports on stderr, once for each function or feature, that it is not supported.
pub fn report_unsupported(what: &'static str) {
    report_as(what, &format!("libnccl: the CUDA emulation does not support {what}"));
}

/// Writes a report to stderr, once for each `what`: `text`, and the remedy for a program that uses PyTorch.
pub fn report_as(what: &'static str, text: &str) {
    static REPORTED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    if REPORTED.lock().unwrap_or_else(PoisonError::into_inner).insert(what) {
        // In one piece, so that the reports of several processes do not mix; if stderr is closed, it is lost.
        let _ = io::stderr().write_all(format!("{text}{}\n", advice(what)).as_bytes());
    }
}

/// Returns how PyTorch's operators can run on the CPU, if the process has PyTorch and the function is one for kernels.
fn advice(function: &str) -> &'static str {
    if is_for_kernels(function) && is_loaded() && !has_operators() {
        "; PyTorch's operators are kernels, and run on the CPU with `python3 -m libnccl_cpu.torch PROGRAM`"
    } else {
        ""
    }
}

/// Returns whether a function of a CUDA library loads, describes, captures or launches kernels.
fn is_for_kernels(function: &str) -> bool {
    const PARTS: &str =
        "Launch Kernel kernel Module Func Library Occupancy Link Symbol GraphAddNode cublas curand";
    PARTS.split(' ').any(|part| function.contains(part)) && !function.contains("HostFunc")
}

/// Returns whether the program was started with `python3 -m libnccl_cpu.torch`, which computes the operators that it supports.
fn has_operators() -> bool {
    // SAFETY: a C string.
    !unsafe { libc::getenv(c"_LIBNCCL_CPU_PROGRAM".as_ptr()) }.is_null()
}

/// Returns whether the process has loaded PyTorch.
fn is_loaded() -> bool {
    unsafe extern "C" fn is_torch(
        object: *mut libc::dl_phdr_info,
        _size: usize,
        found: *mut c_void,
    ) -> c_int {
        // SAFETY: the linker's description of an object.
        let name = unsafe { (*object).dlpi_name };
        // SAFETY: null or a C string.
        let name = unsafe { name.as_ref().map(|name| CStr::from_ptr(name)) }.unwrap_or_default();
        let file = name.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let is_torch = file.starts_with(b"libtorch");
        // SAFETY: the caller's variable.
        unsafe { *found.cast::<bool>() |= is_torch };
        c_int::from(is_torch)
    }
    let mut found = false;
    // SAFETY: the function stores in the variable alone.
    unsafe { libc::dl_iterate_phdr(Some(is_torch), (&raw mut found).cast()) };
    found
}

#[cfg(test)]
mod tests {
    use super::is_for_kernels;

    #[test]
    fn functions_for_kernels_are_told_from_others() {
        const FOR_KERNELS: &str = "cudaLaunchKernelExC_ptsz __cudaLaunchKernel cuLibraryLoadData cuModuleGetFunction \
            cudaFuncGetAttributes cudaGraphAddKernelNode cuGraphExecKernelNodeSetParams_v2 cuOccupancyMaxActiveClusters \
            cuLinkCreate_v2 cublasSgemm_v2";
        const OTHERS: &str =
            "cudaLaunchHostFunc_v2 cuProfilerStart cuTexObjectCreate cuGraphAddHostNode cuMemcpy3D_v2";
        for name in FOR_KERNELS.split(' ').chain(["launching a kernel"]) {
            assert!(is_for_kernels(name), "{name}");
        }
        for name in OTHERS.split(' ') {
            assert!(!is_for_kernels(name), "{name}");
        }
    }
}
