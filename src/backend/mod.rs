//! The only module that distinguishes linked NCCL, loaded NCCL, and an implementation in this process.
//!
//! Each backend fills one table, [`Functions`], and all other code calls NCCL through the table:
//!
//! | backend | source of its functions |
//! |---|---|
//! | linked (`linked.rs`) | bindgen's `extern` block, [`sys::linked`](crate::sys), for functions of NCCL 2.13.4; newer ones are looked up in the same library, which may lack them |
//! | loaded (`dlopen.rs`) | the fields of bindgen's struct, `sys::dynamic::NcclLibrary`; `search.rs` finds the file |
//! | in process | the implementation's own table: [`Nccl::from_table`](crate::nccl::Nccl::from_table) |
//!
//! The result is a [`Library`]: the table and the properties of the implementation.
#![allow(unsafe_code)]

#[cfg(all(feature = "dlopen", target_os = "linux"))]
pub(crate) mod dlopen;
mod library;
#[cfg(nccl_linked)]
mod linked;
mod parameters;
#[cfg(all(feature = "dlopen", target_os = "linux"))]
pub(crate) mod search;

use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::Attempt;
use crate::sys::Functions;
use crate::sys::device::DeviceFunctions;

pub(crate) use library::{Library, call};
pub(crate) use parameters::ParameterGuard;
pub use parameters::{MemorySpace, comm_hash, lock_parameters, memory_space};

/// The environment variable that names the library file to load. If it is not set, this crate searches for the library.
pub const PATH_VARIABLE: &str = "LIBNCCL_PATH";

/// Functions that mark implementations which dereference a null communicator. The first is HIP's, which AMD's RCCL needs. The
/// second is in Meta's NCCLX and the shim of MSCCL++, but not in NCCL.
#[cfg(any(all(feature = "dlopen", target_os = "linux"), all(nccl_linked, not(nccl_archive))))]
const OF_OTHERS: [&std::ffi::CStr; 2] = [c"hipGetDeviceCount", c"ncclAllToAllv"];

/// The functions of an NCCL implementation.
#[derive(Debug)]
pub struct Found {
    /// The functions of `nccl.h`.
    pub functions: Functions,
    /// The functions of the device API.
    pub device_functions: DeviceFunctions,
    /// The addresses of the implementation's own `ncclGroupStart` and `ncclGetUniqueId`, which identify it: one file may have
    /// been opened twice, or both linked and opened.
    own: [usize; 2],
    /// Set if a null communicator is an error, as in NCCL. Other implementations may dereference it.
    refuses_null: bool,
}

impl Found {
    pub(crate) fn new(functions: Functions, device_functions: DeviceFunctions, refuses_null: bool) -> Self {
        let own = [
            functions.ncclGroupStart.map_or(0, |function| function as usize),
            functions.ncclGetUniqueId.map_or(0, |function| function as usize),
        ];
        Self { functions, device_functions, own, refuses_null }
    }
}

/// The origin of an NCCL implementation.
///
/// ```
/// use libnccl::Backend;
///
/// let nccl = libnccl_cpu::nccl();
/// match nccl.backend() {
///     Backend::Loaded { path, source, .. } => println!("{}, from {source}", path.display()),
///     backend => println!("{backend}"),
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// Linked at build time.
    Linked {
        /// The file that contains NCCL's functions: a shared library, or the program if it contains a static NCCL. `None` if the
        /// file is unknown.
        path: Option<PathBuf>,
    },
    /// Loaded at run time.
    Loaded {
        /// The file from which NCCL was loaded.
        path: PathBuf,
        /// The source of the path, such as the name of an environment variable.
        source: &'static str,
        /// The failed attempts to load other files, which the search tried first.
        rejected: Vec<Attempt>,
    },
    /// A function table in this process; see [`Nccl::from_table`](crate::nccl::Nccl::from_table).
    InProcess {
        /// The name that was passed to `from_table`.
        name: &'static str,
    },
}

impl Backend {
    /// Returns the file that contains NCCL's functions; `None` for a function table, or if the file is unknown.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Linked { path } => path.as_deref(),
            Self::Loaded { path, .. } => Some(path),
            Self::InProcess { .. } => None,
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linked { path: Some(path) } | Self::Loaded { path, .. } => path.display().fmt(f),
            Self::Linked { path: None } => f.write_str("the linked library"),
            Self::InProcess { name } => f.write_str(name),
        }
    }
}
