use std::fmt;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::debug_as_display;
use crate::error::{InvalidArgumentKind, ResultCode};
use crate::version::Version;

/// A `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of an operation.
///
/// [`Debug`](fmt::Debug) writes the same text as [`Display`](fmt::Display), as this is what a `main` that returns an
/// error prints, and `unwrap`; the text names the call and the values.
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
        /// The C function; if it returned while the call was in progress, the method, which then waited.
        call: &'static str,
        /// The code that it returned.
        code: ResultCode,
        /// The text of `ncclGetErrorString` for the code.
        #[doc(alias = "ncclGetErrorString")]
        message: Box<str>,
        /// The text of `ncclGetLastError`, copied right after the call; may be empty. NCCL keeps one text for the whole
        /// process, so that it may be that of a failure in another thread at the same time; the CPU implementation
        /// keeps one per thread. If it is about `NCCL_SOCKET_IFNAME` or `NCCL_COMM_ID`, their values are added.
        #[doc(alias = "ncclGetLastError")]
        detail: Box<str>,
    },

    /// The loaded library lacks the function.
    #[error(fmt = fmt_unsupported)]
    Unsupported {
        /// The C function.
        function: &'static str,
        /// The first release that has it.
        since: Version,
        /// The release of the loaded library.
        found: Version,
        /// The file, or the name, of the loaded library.
        library: Box<str>,
    },

    /// An argument is invalid; found before NCCL was called.
    #[error("{call}: {problem}")]
    InvalidArgument {
        /// The method.
        call: &'static str,
        /// The kind of argument.
        kind: InvalidArgumentKind,
        /// The value, and the expected values.
        problem: Box<str>,
    },

    /// A wait took longer than the communicator's [timeout](crate::config::Config::timeout), or that of the call; the communicator
    /// is aborted.
    #[error(fmt = fmt_timeout)]
    #[non_exhaustive]
    Timeout {
        /// The method.
        call: &'static str,
        /// The duration of the wait.
        elapsed: Duration,
        /// The number of ranks; 0 if it is not known, as of a communicator that other code has created.
        size: u32,
        /// The number of the rank that waited.
        rank: u32,
        /// The number of the last operation, if the communicator is [observed](crate::observer::Observer), as by a recorder.
        sequence: Option<NonZeroU64>,
        /// The ranks for which it waited, if they are known: the CPU backend names them. Empty with NCCL, whose text of
        /// `ncclGetLastError` may be of another communicator.
        detail: Box<str>,
    },

    /// The communicator has been aborted: by an [`AbortHandle`](crate::communicator::AbortHandle), or after a timeout.
    #[error("{call}: the communicator is aborted")]
    Aborted {
        /// The method.
        call: &'static str,
    },

    /// The call is not allowed in the state of the communicator or the thread; found before NCCL was called.
    #[error("{call}: {problem}")]
    InvalidUsage {
        /// The method.
        call: &'static str,
        /// The reason.
        problem: Box<str>,
    },
}

impl Error {
    /// Returns the code of [`Error::Nccl`].
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

debug_as_display!(Error);

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

/// The error returned when no NCCL library could be loaded, as by [`Nccl::load`](crate::nccl::Nccl::load). Like that of
/// [`Error`], its [`Debug`](fmt::Debug) text is that of [`Display`](fmt::Display).
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The crate was built with neither `dlopen` nor `link`, or `LIBNCCL_NO_LINK` has disabled linking.
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

    /// The program has a C library of its own, linked statically (`crt-static`, the default for musl), in which NCCL
    /// crashes. [`Nccl::from_table`](crate::nccl::Nccl::from_table) still works.
    #[error(
        "NCCL cannot be loaded into a program whose C library is linked statically: build the program with \
         `-C target-feature=-crt-static`"
    )]
    StaticProgram,

    /// No candidate is a library that works.
    #[error(fmt = fmt_not_found)]
    NotFound {
        /// The places that were searched, in order: the candidates there, or the reason why there are none.
        attempts: Arc<[Attempt]>,
    },

    /// The library's `ncclGetVersion` failed or is absent.
    #[error("cannot query the version of {library} with ncclGetVersion: {problem}")]
    VersionQuery {
        /// The file, or the name, of the library.
        library: Box<str>,
        /// The reason.
        problem: Box<str>,
    },
}

debug_as_display!(LoadError);

fn fmt_not_found(attempts: &[Attempt], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("no NCCL library could be loaded")?;
    attempts.iter().try_for_each(|attempt| write!(f, "\n  {attempt}"))
}

/// An attempt to load a library; see [`LoadError::NotFound`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The place in the search that named the candidate, such as an environment variable or `dynamic linker`.
    pub source: &'static str,
    /// The file, or the bare name that was passed to the dynamic linker; a pattern if a Python environment or the HPC
    /// SDK has no such file; empty if the source named none.
    pub path: PathBuf,
    /// The reason for the rejection, such as "not set"; the message of the dynamic linker if it reported one.
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

#[cfg(test)]
mod tests {
    use super::{Attempt, Error, LoadError};
    use crate::error::ResultCode;
    use crate::version::Version;

    #[test]
    fn error_is_send_sync_and_at_most_72_bytes() {
        fn check<T: Send + Sync + 'static>() {}
        check::<Error>();
        assert!(size_of::<Error>() <= 72, "{}", size_of::<Error>());
    }

    // Regression: cudarc's error does not implement std::error::Error, and has no text.
    #[test]
    fn display_names_the_call_and_the_values() {
        let mut error = Error::Nccl {
            call: "ncclCommInitRank",
            code: ResultCode::UNHANDLED_CUDA_ERROR,
            message: "unhandled cuda error".into(),
            detail: "Cuda failure 'no device'".into(),
        };
        let text = "ncclCommInitRank failed: unhandled cuda error (code 1)";
        assert_eq!(error.to_string(), format!("{text}: Cuda failure 'no device'"));
        if let Error::Nccl { detail, .. } = &mut error {
            *detail = "".into();
        }
        assert_eq!(error.to_string(), text);

        let unsupported = |found| Error::Unsupported {
            function: "ncclCommShrink",
            since: Version::new(2, 27, 3),
            found,
            library: "/opt/libnccl.so.2".into(),
        };
        assert_eq!(
            unsupported(Version::new(2, 22, 3)).to_string(),
            "ncclCommShrink needs NCCL 2.27.3 or newer; the loaded library is 2.22.3 (/opt/libnccl.so.2)"
        );
        assert_eq!(
            unsupported(Version::new(2, 27, 7)).to_string(),
            "ncclCommShrink, in NCCL since 2.27.3, is missing from the loaded library, 2.27.7 (/opt/libnccl.so.2)"
        );

        assert_eq!(
            LoadError::UnsupportedPlatform { system: "macos" }.to_string(),
            "there is no NCCL for macos: NVIDIA's NCCL and AMD's RCCL are libraries for Linux"
        );

        let attempt = |path: &str, problem: &str| Attempt {
            source: "test",
            path: path.into(),
            problem: problem.into(),
        };
        let attempts = [attempt("", "not set"), attempt("libnccl.so.2", "no such file")].into();
        assert_eq!(
            LoadError::NotFound { attempts }.to_string(),
            "no NCCL library could be loaded\n  test: not set\n  libnccl.so.2 (test): no such file"
        );
    }
}
