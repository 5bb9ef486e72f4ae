//! Functions and arguments that are not supported.

use cuda_common::report_unsupported;
use cudarc::driver::sys::CUresult as Status;

/// Reports on stderr, once for each function or argument, that it is not supported.
pub(super) fn say(what: &'static str) {
    report_unsupported(what, &format!("libnccl: the CPU stand-in for CUDA does not support {what}"));
}

fn not_supported(function: &'static str) -> Status {
    say(function);
    Status::CUDA_ERROR_NOT_SUPPORTED
}

// The unsupported functions of functions.txt.
include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
