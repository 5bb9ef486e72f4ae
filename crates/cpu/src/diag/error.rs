//! The error of a call (NCCL's result code and a sentence), and the text that `ncclGetLastError` returns.
//!
//! Each thread has its own text. In NCCL, ranks that are threads of one process overwrite each other's text. A thread without an
//! error gets the latest error of all threads, as a copy, because C reads the text without a lock.

use std::ffi::c_char;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use libnccl::sys::ncclResult_t;

use crate::diag::{debug, report};
use cuda_common::finding::Finding;

pub(crate) type Result<T = (), E = Error> = std::result::Result<T, E>;

/// The progress of a call that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Done,
    /// The call continues in the background.
    Running,
}

impl From<()> for Progress {
    fn from((): ()) -> Self {
        Self::Done
    }
}

#[derive(Debug, Clone, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Error {
    pub(crate) code: ncclResult_t,
    pub(crate) text: String,
}

impl Error {
    /// Creates an error about an argument that is invalid in itself.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self { code: ncclResult_t::ncclInvalidArgument, text: text.into() }
    }

    /// Creates an error about a call that does not match the communicator's state or the other ranks' calls.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { code: ncclResult_t::ncclInvalidUsage, text: text.into() }
    }

    /// Creates an error about another rank that died, aborted, left, or sent invalid data.
    pub(crate) fn remote(text: impl Into<String>) -> Self {
        Self { code: ncclResult_t::ncclRemoteError, text: text.into() }
    }

    pub(crate) fn internal(text: impl Into<String>) -> Self {
        Self { code: ncclResult_t::ncclInternalError, text: text.into() }
    }

    pub(crate) fn panic() -> Self {
        Self::internal("a panic inside the CPU backend, which is a bug in it")
    }

    pub(crate) fn system(what: &str, error: impl Into<std::io::Error>) -> Self {
        Self { code: ncclResult_t::ncclSystemError, text: format!("{what}: {}", error.into()) }
    }
}

const SIZE: usize = 1024;

struct Text([AtomicU8; SIZE]);

thread_local! {
    static OWN: Text = const { Text::new() };
    /// The latest error of all threads at the time this thread read it.
    static COPY: Text = const { Text::new() };
    /// The description of a communicator's wait. Not an error.
    static WAIT: Text = const { Text::new() };
}

static LATEST: Mutex<String> = Mutex::new(String::new());

/// Logs a warning and sets the thread's last error.
#[track_caller]
pub(crate) fn set_last(text: &str) {
    debug::warn(|| text.to_owned());
    report::record(Finding::FailedCall, None, text);
    record_last(text);
}

/// Sets the thread's last error without a warning. The text is truncated if necessary.
pub(crate) fn record_last(text: &str) {
    OWN.with(|own| own.write(text));
    text.clone_into(&mut LATEST.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Returns the thread's text as a C string, valid until the thread ends.
pub(crate) fn last_pointer() -> *const c_char {
    if OWN.with(|own| !own.is_empty()) {
        return OWN.with(Text::pointer);
    }
    COPY.with(|copy| {
        copy.write(&LATEST.lock().unwrap_or_else(PoisonError::into_inner));
        copy.pointer()
    })
}

/// Returns the description of a communicator's wait as a C string, valid until this thread's next call of this function. Does not
/// change the last error.
pub(crate) fn wait_pointer(text: &str) -> *const c_char {
    WAIT.with(|wait| {
        wait.write(text);
        wait.pointer()
    })
}

impl Text {
    const fn new() -> Self {
        Self([const { AtomicU8::new(0) }; SIZE])
    }

    fn is_empty(&self) -> bool {
        self.0[0].load(Relaxed) == 0
    }

    fn pointer(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }

    fn write(&self, text: &str) {
        let end = (0..SIZE).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0).min(text.len());
        for (cell, byte) in self.0.iter().zip(text.as_bytes()[..end].iter().chain([&0])) {
            cell.store(*byte, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_at_a_character_and_terminated() {
        let text = Text::new();
        text.write(&"ä".repeat(SIZE));
        let bytes: Vec<u8> = text.0.iter().map(|cell| cell.load(Relaxed)).collect();
        assert_eq!(bytes, ["ä".repeat((SIZE - 1) / 2).as_bytes(), &[0; 2]].concat());
    }
}
