//! The errors of calls, of loading and of parsing, and NCCL's result codes.

use std::fmt;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::sys::ncclResult_t;
use crate::version::Version;

pub use crate::version::ParseError;

/// A `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a call.
///
/// [`Debug`](fmt::Debug) writes the same text as [`Display`](fmt::Display), because `unwrap` and a `main` that returns an
/// error print the `Debug` form. The text names the call and the values.
///
/// ```
/// use libnccl::{Error, ReduceOp, StreamRef};
///
/// # let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
/// let mut short = [0; 1];
/// match comm.all_reduce(&[1, 2], &mut short, ReduceOp::Sum, StreamRef::DEFAULT) {
///     Err(Error::InvalidArgument { call, kind, problem }) => println!("{call}, {kind:?}: {problem}"),
///     Err(Error::Nccl { call, code, detail, .. }) => println!("{call} returned {code}: {detail}"),
///     other => other?,
/// }
/// # Ok::<(), libnccl::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No library could be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),

    /// NCCL returned an error.
    #[error(
        "{call} failed: {message} (code {}){}{detail}",
        code.as_raw().0,
        if detail.is_empty() { "" } else { ": " }
    )]
    Nccl {
        /// The name of the C function that failed. If NCCL reported the failure asynchronously, the name of the method that
        /// detected it.
        call: &'static str,
        /// The returned code.
        code: ResultCode,
        /// The text of `ncclGetErrorString` for the code.
        #[doc(alias = "ncclGetErrorString")]
        message: Box<str>,
        /// The text of `ncclGetLastError`, copied right after the call; may be empty. NCCL keeps one text for the whole process,
        /// so the text may describe a concurrent failure in another thread; the CPU backend keeps one per thread. If
        /// `NCCL_COMM_ID` is invalid or no network interface is found, the text also contains the values of the related
        /// environment variables.
        #[doc(alias = "ncclGetLastError")]
        detail: Box<str>,
    },

    /// The loaded library lacks a function, an enum value or an option.
    #[error(fmt = fmt_unsupported)]
    Unsupported {
        /// The C name of the function, enum value or option that the library lacks.
        function: &'static str,
        /// The first NCCL version that has `function`.
        since: Version,
        /// The version of the loaded library.
        found: Version,
        /// The path of the loaded library, or a name if the path is not known.
        library: Box<str>,
    },

    /// An argument is invalid. This was detected before NCCL was called.
    #[error("{call}: {problem}")]
    InvalidArgument {
        /// The method.
        call: &'static str,
        /// The kind of argument.
        kind: InvalidArgumentKind,
        /// The invalid value, and what was expected.
        problem: Box<str>,
    },

    /// A wait exceeded the [timeout](crate::config::Config::timeout) of the communicator, group or call, and the communicator was
    /// aborted. Also returned if a teardown exceeds its limit; the teardown then continues in the background.
    #[error(fmt = fmt_timeout)]
    #[non_exhaustive]
    Timeout {
        /// The method.
        call: &'static str,
        /// The duration of the wait.
        elapsed: Duration,
        /// The number of ranks; 0 if it is not known yet, for example during the creation of a child communicator.
        size: u32,
        /// The rank that waited. Has no meaning if `size` is 0.
        rank: u32,
        /// The number of the most recent operation; `None` if no [observer](crate::observer::Observer) was notified of an
        /// operation.
        sequence: Option<NonZeroU64>,
        /// With the CPU backend, the ranks that the call waited for. If a teardown continues in the background, a note that says
        /// so. Otherwise empty.
        detail: Box<str>,
    },

    /// The communicator has been aborted: by an [`AbortHandle`](crate::communicator::AbortHandle), or after a timeout.
    #[error("{call}: the communicator is aborted")]
    Aborted {
        /// The method.
        call: &'static str,
    },

    /// The call is not allowed in the current state of the communicator or the thread, or NCCL returned an unexpected result.
    #[error("{call}: {problem}")]
    InvalidUsage {
        /// The method.
        call: &'static str,
        /// The reason.
        problem: Box<str>,
    },
}

impl Error {
    /// Returns the code of an [`Error::Nccl`]; `None` for other errors.
    #[must_use]
    pub fn code(&self) -> Option<ResultCode> {
        match self {
            Self::Nccl { code, .. } => Some(*code),
            _ => None,
        }
    }

    pub(crate) fn argument(
        call: &'static str,
        kind: InvalidArgumentKind,
        problem: impl Into<Box<str>>,
    ) -> Self {
        Self::InvalidArgument { call, kind, problem: problem.into() }
    }

    pub(crate) fn usage(call: &'static str, problem: impl Into<Box<str>>) -> Self {
        Self::InvalidUsage { call, problem: problem.into() }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn fmt_unsupported(
    function: &str,
    since: &Version,
    found: &Version,
    library: &str,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    if found < since {
        write!(f, "{function} needs NCCL {since} or newer; the loaded library is {found} ({library})")
    } else {
        write!(
            f,
            "{function}, in NCCL since {since}, is missing from the loaded library, {found} ({library})"
        )
    }
}

fn fmt_timeout(
    call: &str,
    elapsed: &Duration,
    size: &u32,
    rank: &u32,
    sequence: &Option<NonZeroU64>,
    detail: &str,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    f.write_str(call)?;
    if let Some(sequence) = sequence {
        write!(f, ", operation {sequence}")?;
    }
    if *size > 0 {
        write!(f, " on rank {rank} of {size}")?;
    }
    let separator = if detail.is_empty() { "" } else { ": " };
    let elapsed = elapsed.as_millis();
    write!(f, ": not done after {elapsed} ms; the communicator is aborted{separator}{detail}")
}

/// The error returned when no NCCL library could be loaded, for example by [`Nccl::load`](crate::nccl::Nccl::load). As with
/// [`Error`], `Debug` writes the same text as `Display`.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// This crate was built without the features `dlopen` and `link`. `LIBNCCL_NO_LINK` disables `link` at build time:
    /// `Nccl::linked` then returns this error even if `dlopen` is enabled.
    #[error(
        "libnccl was built without a backend: enable its feature `dlopen` (run time) or `link` (build time)"
    )]
    NoBackend,

    /// There is no NCCL for this operating system. [`Nccl::from_table`](crate::nccl::Nccl::from_table) still works for an
    /// implementation in the process.
    #[error("there is no NCCL for {system}: NVIDIA's NCCL and AMD's RCCL are libraries for Linux")]
    UnsupportedPlatform {
        /// The name of the system, as in [`std::env::consts::OS`].
        system: &'static str,
    },

    /// The program links its C library statically (`crt-static`, the default for musl); NCCL crashes in such programs.
    /// [`Nccl::from_table`](crate::nccl::Nccl::from_table) still works.
    #[error(
        "NCCL cannot be loaded into a program whose C library is linked statically: build the program with \
         `-C target-feature=-crt-static`"
    )]
    StaticProgram,

    /// No working library was found.
    #[error(fmt = fmt_not_found)]
    NotFound {
        /// The failed attempts, in order: one for each file that was tried, and one for each [source](Attempt::source) that named
        /// no file.
        attempts: Arc<[Attempt]>,
    },

    /// The library's `ncclGetVersion` failed or is absent.
    #[error("cannot query the version of {library} with ncclGetVersion: {problem}")]
    VersionQuery {
        /// The path of the library, or a name if the path is not known.
        library: Box<str>,
        /// The reason.
        problem: Box<str>,
    },
}

impl fmt::Debug for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn fmt_not_found(attempts: &[Attempt], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("no NCCL library could be loaded")?;
    attempts.iter().try_for_each(|attempt| write!(f, "\n  {attempt}"))
}

/// An attempt to load a library; see [`LoadError::NotFound`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The source of the file, such as an environment variable or `dynamic linker`.
    pub source: &'static str,
    /// The file, or the bare name that was passed to the dynamic linker. If a Python environment or the HPC SDK contains no
    /// library, this is the pattern of the searched paths. If the source named no file, this is empty.
    pub path: PathBuf,
    /// The reason for the failure: the message of the dynamic linker if it reported one, otherwise a text such as "not set".
    pub problem: String,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, path, problem } = self;
        if path.as_os_str().is_empty() {
            write!(f, "{source}: {problem}")
        } else {
            write!(f, "{} ({source}): {problem}", path.display())
        }
    }
}

/// The kind of the invalid argument in an [`Error::InvalidArgument`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InvalidArgumentKind {
    /// The length of a buffer or a list: too short, too long, empty, or not a multiple of the number of ranks.
    Length,
    /// The memory space of a buffer: it differs from the communicator's.
    MemorySpace,
    /// A CUDA device: the device of a buffer or stream differs from the communicator's, or a device number is negative.
    Device,
    /// The element types of two buffers: they must be equal.
    DataType,
    /// An address or a handle that is null or misaligned, or the handle of the per-thread default stream.
    Address,
    /// A buffer that is not ready for the operation: [`Buffer::into_slice`](crate::buffer::Buffer::into_slice) returned an error.
    NotReady,
    /// A rank, root or peer out of range, or an invalid number of ranks.
    Rank,
    /// A communicator of another library, or an operator or window of another communicator.
    Communicator,
    /// Any other argument, such as an option or a name.
    Value,
}

/// The result of a C function of NCCL.
///
/// Not an enum: a library newer than this crate may return codes that the crate does not define. Such codes keep their numbers.
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

            /// Returns the C name of the code, such as `ncclSuccess`; `None` for a code that the vendored header does not define.
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
    /// A CUDA call failed. On a machine without a GPU, every initialization returns this code.
    #[doc(alias = "ncclUnhandledCudaError")]
    UNHANDLED_CUDA_ERROR = ncclUnhandledCudaError;
    /// A system call failed.
    #[doc(alias = "ncclSystemError")]
    SYSTEM_ERROR = ncclSystemError;
    /// An internal error of NCCL; memory corruption can cause it too.
    #[doc(alias = "ncclInternalError")]
    INTERNAL_ERROR = ncclInternalError;
    /// An argument is invalid, for example null or out of range.
    #[doc(alias = "ncclInvalidArgument")]
    INVALID_ARGUMENT = ncclInvalidArgument;
    /// The call is invalid in the current state, or does not match the calls of the other ranks.
    #[doc(alias = "ncclInvalidUsage")]
    INVALID_USAGE = ncclInvalidUsage;
    /// A peer has failed or cannot be reached.
    #[doc(alias = "ncclRemoteError")]
    REMOTE_ERROR = ncclRemoteError;
    /// A call on a nonblocking communicator is in progress. Since NCCL 2.14.3.
    #[doc(alias = "ncclInProgress")]
    IN_PROGRESS = ncclInProgress;
    /// A wait inside NCCL exceeded its time limit. Since NCCL 2.30.3.
    #[doc(alias = "ncclTimeout")]
    TIMEOUT = ncclTimeout;
}

impl ResultCode {
    /// Creates a code from its C value.
    #[must_use]
    pub const fn from_raw(raw: ncclResult_t) -> Self {
        Self(raw.0)
    }

    /// Converts the code to the C type.
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
