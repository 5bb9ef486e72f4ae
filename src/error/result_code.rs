use std::fmt;

use crate::sys::ncclResult_t;

/// The result of a C function of NCCL.
///
/// It is not an enum, as libraries newer than this crate may return codes that it does not know; their numbers are
/// kept. Two codes are equal if their numbers are.
///
/// ```
/// use libnccl::error::ResultCode;
/// use libnccl::sys::ncclResult_t;
///
/// let code = ResultCode::from_raw(ncclResult_t(5));
/// assert_eq!((code, code.name()), (ResultCode::INVALID_USAGE, Some("ncclInvalidUsage")));
/// assert_eq!(ResultCode::from_raw(ncclResult_t(1000)).name(), None);
/// ```
#[doc(alias = "ncclResult_t")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResultCode(u32);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $raw:ident;)*) => {
        impl ResultCode {
            $($(#[$doc])* pub const $name: Self = Self(ncclResult_t::$raw.0);)*

            /// Returns the name in C; `None` for a code that the vendored header does not know.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($raw)),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// Success.
    #[doc(alias = "ncclSuccess")]
    SUCCESS = ncclSuccess;
    /// A CUDA call failed; also returned by every initialisation without a GPU.
    #[doc(alias = "ncclUnhandledCudaError")]
    UNHANDLED_CUDA_ERROR = ncclUnhandledCudaError;
    /// A system call failed.
    #[doc(alias = "ncclSystemError")]
    SYSTEM_ERROR = ncclSystemError;
    /// An internal error of NCCL; memory corruption can cause it too.
    #[doc(alias = "ncclInternalError")]
    INTERNAL_ERROR = ncclInternalError;
    /// An argument is out of its range.
    #[doc(alias = "ncclInvalidArgument")]
    INVALID_ARGUMENT = ncclInvalidArgument;
    /// The call is invalid in the current state, or does not match those of the other ranks.
    #[doc(alias = "ncclInvalidUsage")]
    INVALID_USAGE = ncclInvalidUsage;
    /// A peer has failed or cannot be reached.
    #[doc(alias = "ncclRemoteError")]
    REMOTE_ERROR = ncclRemoteError;
    /// A call on a nonblocking communicator is in progress. Since NCCL 2.14.3.
    #[doc(alias = "ncclInProgress")]
    IN_PROGRESS = ncclInProgress;
    /// The operation ran out of time. Since NCCL 2.30.3.
    #[doc(alias = "ncclTimeout")]
    TIMEOUT = ncclTimeout;
}

impl ResultCode {
    /// Creates a code from C's.
    #[must_use]
    pub const fn from_raw(raw: ncclResult_t) -> Self {
        Self(raw.0)
    }

    /// Returns the code in C.
    #[must_use]
    pub const fn as_raw(self) -> ncclResult_t {
        ncclResult_t(self.0)
    }

    pub(crate) fn is_success(self) -> bool {
        self == Self::SUCCESS
    }
}

impl fmt::Display for ResultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name().unwrap_or("a code unknown to this crate"), self.0)
    }
}

impl fmt::Debug for ResultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::ResultCode;
    use crate::sys::ncclResult_t;

    // Regression: cudarc takes an unknown result code for success, or is undefined.
    // Regression: ferrotorch's result codes are a closed enum.
    #[test]
    fn unknown_code_keeps_its_number() {
        assert_eq!(ResultCode::TIMEOUT.to_string(), "ncclTimeout (8)");
        for number in 0..ncclResult_t::ncclNumResults.0 {
            assert!(ResultCode::from_raw(ncclResult_t(number)).name().is_some(), "{number}");
        }
        let unknown = ResultCode::from_raw(ncclResult_t(77));
        assert_eq!((unknown.name(), unknown.as_raw().0), (None, 77));
        assert_eq!(format!("{unknown:?}"), "a code unknown to this crate (77)");
    }
}
