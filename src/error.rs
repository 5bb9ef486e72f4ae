use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::{ResultCode, Version};

/// A `Result` whose error is this crate's.
///
/// ```
/// fn ranks(n: i32) -> libnccl::Result<usize> {
///     let comms = libnccl_cpu::nccl().init_all(&(0..n).collect::<Vec<_>>())?;
///     Ok(comms.len())
/// }
/// assert_eq!(ranks(2).ok(), Some(2));
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation could not be done.
///
/// ```
/// use libnccl::{Error, ReduceOp, StreamRef};
///
/// # fn main() -> libnccl::Result<()> {
/// # let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
/// let mut short = [0; 1];
/// match comm.all_reduce(&[1, 2], &mut short, ReduceOp::Sum, StreamRef::DEFAULT) {
///     Err(Error::InvalidArgument { call, problem }) => println!("{call}: {problem}"),
///     Err(Error::Nccl { call, code, detail, .. }) => println!("{call} answered {code}: {detail}"),
///     other => other?,
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no library to call.
    #[error(transparent)]
    Load(#[from] LoadError),

    /// NCCL was called and answered an error.
    #[error("{call} failed: {message} (code {}){}{detail}", code.as_raw().0, if detail.is_empty() { "" } else { ": " })]
    Nccl {
        /// The C function.
        call: &'static str,
        /// What it answered.
        code: ResultCode,
        /// `ncclGetErrorString` of the code.
        #[doc(alias = "ncclGetErrorString")]
        message: Box<str>,
        /// `ncclGetLastError`, copied right after the call; may be empty. NCCL keeps one text for the whole
        /// process, so that the failure of another thread in the same instant may show up here; the CPU
        /// implementation keeps one for each thread.
        #[doc(alias = "ncclGetLastError")]
        detail: Box<str>,
    },

    /// The loaded library lacks the function.
    #[error("{}", unsupported(function, *since, *found, library))]
    Unsupported {
        /// The C function.
        function: &'static str,
        /// The first release that has it.
        since: Version,
        /// The release of the loaded library.
        found: Version,
        /// Where the loaded library is.
        library: Box<str>,
    },

    /// An argument cannot be right; found before NCCL was called.
    #[error("{call}: {problem}")]
    InvalidArgument {
        /// The method.
        call: &'static str,
        /// The values, and what was expected.
        problem: Box<str>,
    },

    /// The wait took longer than the communicator's [timeout](crate::Config::timeout); it is aborted.
    #[error("{call}: not done after {elapsed:?}; the communicator is aborted")]
    Timeout {
        /// The method, or the C function.
        call: &'static str,
        /// How long it took.
        elapsed: Duration,
    },

    /// The communicator is aborted: by an [`AbortHandle`](crate::AbortHandle), or after a timeout.
    #[error("{call}: the communicator is aborted")]
    Aborted {
        /// The method, or the C function.
        call: &'static str,
    },

    /// The call does not fit the state that the communicator or the thread is in; found before NCCL was called.
    #[error("{call}: {problem}")]
    InvalidUsage {
        /// The method.
        call: &'static str,
        /// What stands in the way.
        problem: Box<str>,
    },
}

impl Error {
    /// The code that NCCL answered, where it was NCCL that failed.
    ///
    /// ```
    /// use libnccl::{Error, ResultCode};
    ///
    /// fn is_lost(error: &Error) -> bool {
    ///     error.code() == Some(ResultCode::REMOTE_ERROR)
    /// }
    /// # let error = libnccl_cpu::nccl().require("ncclFrobnicate").unwrap_err();
    /// # assert!(!is_lost(&error));
    /// ```
    #[must_use]
    pub fn code(&self) -> Option<ResultCode> {
        match self {
            Self::Nccl { code, .. } => Some(*code),
            _ => None,
        }
    }

    pub(crate) fn argument(call: &'static str, problem: impl Into<Box<str>>) -> Self {
        Self::InvalidArgument { call, problem: problem.into() }
    }

    pub(crate) fn usage(call: &'static str, problem: impl Into<Box<str>>) -> Self {
        Self::InvalidUsage { call, problem: problem.into() }
    }
}

fn unsupported(function: &str, since: Version, found: Version, library: &str) -> String {
    if found < since {
        format!("{function} needs NCCL {since} or newer; the loaded library is {found} ({library})")
    } else {
        format!("{function}, in NCCL since {since}, is missing from the loaded library, {found} ({library})")
    }
}

/// Why no library could be had.
///
/// ```
/// use libnccl::{LoadError, Nccl};
///
/// if let Err(LoadError::NotLoaded { attempts }) = Nccl::load() {
///     for attempt in attempts.iter() {
///         eprintln!("{}, {}: {}", attempt.source, attempt.path.display(), attempt.problem);
///     }
/// }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The crate was built with neither `dlopen` nor `link`, or linking was vetoed by `LIBNCCL_NO_LINK`.
    #[error(
        "libnccl was built without a backend: switch on its feature `dlopen` (run time) or `link` (build time)"
    )]
    NoBackend,

    /// There is no NCCL for this operating system. What is in the process already works all the same:
    /// [`Nccl::from_table`](crate::Nccl::from_table).
    #[error("there is no NCCL for {system}: NVIDIA's NCCL and AMD's RCCL are libraries for Linux")]
    NoPlatform {
        /// Its name, as in [`std::env::consts::OS`].
        system: &'static str,
    },

    /// None of the places that were tried has a library that works.
    #[error("no NCCL library could be loaded{}", list(attempts))]
    NotLoaded {
        /// What was tried, in order.
        attempts: Arc<[Attempt]>,
    },

    /// `ncclGetVersion` itself failed or is absent.
    #[error("{library} does not answer ncclGetVersion: {problem}")]
    NoVersion {
        /// Where the library is.
        library: Box<str>,
        /// What happened instead.
        problem: Box<str>,
    },
}

/// One place where a library was looked for; see [`LoadError::NotLoaded`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// What led there: an environment variable, the loader's own search, ...
    pub source: &'static str,
    /// The file, or the bare name given to the loader; empty where the source named none.
    pub path: PathBuf,
    /// Why it did not serve; the loader's own words where it was asked.
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

fn list(attempts: &[Attempt]) -> String {
    attempts.iter().map(|attempt| format!("\n  {attempt}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{Attempt, Error, LoadError};
    use crate::{ResultCode, Version};

    #[test]
    fn errors_can_be_sent_and_are_small() {
        fn check<T: Send + Sync + 'static>() {}
        check::<Error>();
        assert!(size_of::<Error>() <= 72, "{}", size_of::<Error>());
    }

    // Regression: cudarc's error does not implement std::error::Error, and has no text.
    #[test]
    fn texts() {
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
            LoadError::NoPlatform { system: "macos" }.to_string(),
            "there is no NCCL for macos: NVIDIA's NCCL and AMD's RCCL are libraries for Linux"
        );

        let attempt = |path: &str, problem: &str| Attempt {
            source: "test",
            path: path.into(),
            problem: problem.into(),
        };
        let attempts = [attempt("", "not set"), attempt("libnccl.so.2", "no such file")].into();
        assert_eq!(
            LoadError::NotLoaded { attempts }.to_string(),
            "no NCCL library could be loaded\n  test: not set\n  libnccl.so.2 (test): no such file"
        );
    }
}
