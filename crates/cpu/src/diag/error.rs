//! The error of a call: NCCL's result code and a sentence.

use libnccl::sys::ncclResult_t;

pub(crate) type Result<T = (), E = Error> = std::result::Result<T, E>;

/// The progress of a call that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Done,
    /// The call continues in the background.
    Running,
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

    /// Creates an error about a call that does not match the state or the other ranks' calls.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { code: ncclResult_t::ncclInvalidUsage, text: text.into() }
    }

    /// Creates an error about another rank that died, aborted, left, or sent invalid data.
    pub(crate) fn remote(text: impl Into<String>) -> Self {
        Self { code: ncclResult_t::ncclRemoteError, text: text.into() }
    }

    /// Creates an error about a bug in this library.
    pub(crate) fn internal(text: impl Into<String>) -> Self {
        Self { code: ncclResult_t::ncclInternalError, text: text.into() }
    }

    pub(crate) fn panic() -> Self {
        Self::internal("a panic inside the CPU backend, which is a bug in it")
    }

    /// Creates an error about a system call.
    pub(crate) fn system(what: &str, error: impl Into<std::io::Error>) -> Self {
        Self { code: ncclResult_t::ncclSystemError, text: format!("{what}: {}", error.into()) }
    }
}
