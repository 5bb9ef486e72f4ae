//! Functions and arguments that are not supported.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use cuda_common::advice;
use cudarc::driver::sys::CUresult as Status;

use crate::message;

/// Reports on stderr, once for each function or argument, that it is not supported.
pub(super) fn say(what: &'static str) {
    static REPORTED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    if REPORTED.lock().unwrap_or_else(PoisonError::into_inner).insert(what) {
        message::write(&format!(
            "libnccl: the CPU stand-in for CUDA does not support {what}{}\n",
            advice(what)
        ));
    }
}

fn not_supported(function: &'static str) -> Status {
    say(function);
    Status::CUDA_ERROR_NOT_SUPPORTED
}

// The unsupported functions of functions.txt.
include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
