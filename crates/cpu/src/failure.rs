//! Why a call failed: NCCL's result code and one sentence.

use libnccl::sys::ncclResult_t;

pub(crate) type Result<T = (), E = Failure> = std::result::Result<T, E>;

/// How far a call without a failure got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Done,
    /// The rest happens in the background.
    Running,
}

#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) code: ncclResult_t,
    pub(crate) text: String,
}

impl Failure {
    /// One argument is wrong in itself.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self { code: ncclResult_t::ncclInvalidArgument, text: text.into() }
    }

    /// The call does not fit its circumstances, such as what the other ranks called.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { code: ncclResult_t::ncclInvalidUsage, text: text.into() }
    }

    /// Another rank died, aborted, left, or sent what no rank sends.
    pub(crate) fn remote(text: impl Into<String>) -> Self {
        Self { code: ncclResult_t::ncclRemoteError, text: text.into() }
    }

    pub(crate) fn internal(text: impl Into<String>) -> Self {
        Self { code: ncclResult_t::ncclInternalError, text: text.into() }
    }

    pub(crate) fn panic() -> Self {
        Self::internal("a panic inside the CPU implementation, which is a bug in it")
    }

    /// The operating system refused `what`.
    pub(crate) fn system(what: &str, error: impl Into<std::io::Error>) -> Self {
        Self { code: ncclResult_t::ncclSystemError, text: format!("{what}: {}", error.into()) }
    }
}
