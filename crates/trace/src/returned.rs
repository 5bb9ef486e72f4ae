//! The types that functions return, with the values for calls without a library or of a missing function.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

use libnccl::sys::device::ncclTeam_t;
use libnccl::sys::ncclResult_t;

const NO_LIBRARY: &CStr = c"libnccl-trace has found no NCCL library to forward calls to";

/// The message about the last call of a missing function, until it is read.
static MESSAGE: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

/// Returns the message and removes it; null if there is none.
pub(crate) fn take_message() -> *const c_char {
    MESSAGE.swap(ptr::null_mut(), Relaxed)
}

/// The message about a missing function, as a C string.
macro_rules! message {
    ($name:ident) => {
        concat!(stringify!($name), " is not in the NCCL library to which libnccl-trace forwards calls\0")
    };
}
pub(crate) use message;

/// A type that functions return.
pub(crate) trait Returned: Sized {
    /// Returns the value for a call without a library.
    fn library() -> Self;

    /// Returns the result code; success for values of other types.
    fn code(&self) -> ncclResult_t {
        ncclResult_t::ncclSuccess
    }

    /// Returns the value for a call of a function that the library lacks. The message ends with a NUL.
    fn function(message: &'static str) -> Self {
        MESSAGE.store(message.as_ptr().cast_mut().cast(), Relaxed);
        Self::library()
    }
}

impl Returned for ncclResult_t {
    fn code(&self) -> ncclResult_t {
        *self
    }

    fn library() -> Self {
        MESSAGE.store(NO_LIBRARY.as_ptr().cast_mut(), Relaxed);
        Self::ncclSystemError
    }

    fn function(message: &'static str) -> Self {
        MESSAGE.store(message.as_ptr().cast_mut().cast(), Relaxed);
        Self::ncclInvalidUsage
    }
}

impl Returned for *const c_char {
    fn library() -> Self {
        NO_LIBRARY.as_ptr()
    }
}

impl Returned for () {
    fn library() -> Self {}
}

impl Returned for c_int {
    fn library() -> Self {
        0
    }
}

impl Returned for ncclTeam_t {
    fn library() -> Self {
        Self::default()
    }
}
