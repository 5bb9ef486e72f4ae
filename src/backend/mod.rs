//! The only place that knows whether NCCL is linked, loaded or in this process.
//!
//! Whatever the backend, what comes out is a [`Library`]: a function table and what is known about it. From
//! there on all code is the same.
#![allow(unsafe_code)]

#[cfg(feature = "dlopen")]
mod dlopen;
#[cfg(feature = "dlopen")]
mod elf;
#[cfg(nccl_linked)]
mod linked;
mod mapped;
#[cfg(all(feature = "dlopen", not(nccl_linked)))]
mod search;

use std::ffi::{CStr, c_char};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::sys::Functions;
use crate::sys::device::DeviceFunctions;
use crate::{Attempt, Error, LoadError, MemorySpace, Result, ResultCode, UniqueId, Version, sys};

/// Calls a C function of a [`Library`] and checks what it answers; to be used in `unsafe`.
macro_rules! call {
    ($library:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $library.function(stringify!($function), $library.functions.$function) {
            Ok(function) => $library.check(stringify!($function), function($($argument),*)),
            Err(error) => Err(error),
        }
    };
}
pub(crate) use call;

/// How an implementation of NCCL came into the process.
///
/// ```
/// use libnccl::Backend;
///
/// let nccl = libnccl_cpu::nccl();
/// match nccl.backend() {
///     Backend::Loaded { path, source, .. } => println!("{}, by {source}", path.display()),
///     backend => println!("{backend}"),
/// }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Backend {
    /// Linked at build time.
    Linked {
        /// The file that the dynamic linker chose; `None` where the system does not say.
        path: Option<PathBuf>,
    },
    /// Loaded at run time.
    Loaded {
        /// The file.
        path: PathBuf,
        /// What led there.
        source: &'static str,
        /// What was tried before, without success.
        passed_over: Vec<Attempt>,
    },
    /// A function table of this process.
    InProcess {
        /// What it calls itself.
        name: &'static str,
    },
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

/// One implementation of NCCL: its functions, and what it says of itself.
pub(crate) struct Library {
    pub(crate) functions: Functions,
    pub(crate) device_functions: DeviceFunctions,
    pub(crate) backend: Backend,
    pub(crate) version: Version,
    pub(crate) memory_space: MemorySpace,
    /// AMD's implementation, which takes no null communicator for an error but reads from it.
    pub(crate) is_rccl: bool,
}

impl Library {
    /// What `Nccl::load` means in this build.
    pub(crate) fn load() -> Result<Arc<Self>, LoadError> {
        static LOADED: OnceLock<Arc<Library>> = OnceLock::new();
        require_linux()?;
        if let Some(library) = LOADED.get() {
            return Ok(Arc::clone(library));
        }
        cfg_if::cfg_if! {
            if #[cfg(nccl_linked)] {
                let library = Self::linked()?;
            } else if #[cfg(feature = "dlopen")] {
                let library = dlopen::search()?;
            } else {
                let library: Arc<Self> = Err(LoadError::NoBackend)?;
            }
        }
        Ok(Arc::clone(LOADED.get_or_init(|| library)))
    }

    /// # Safety
    /// As for [`crate::Nccl::open`].
    #[cfg(feature = "dlopen")]
    pub(crate) unsafe fn open(path: &Path) -> Result<Arc<Self>, LoadError> {
        require_linux()?;
        // SAFETY: the caller promises what `dlopen::open` asks for.
        unsafe { dlopen::open(path) }
    }

    #[cfg(nccl_linked)]
    pub(crate) fn linked() -> Result<Arc<Self>, LoadError> {
        let functions = linked::functions();
        let path = functions.ncclGetVersion.and_then(|function| mapped::file_of(function as usize));
        // Known by its file's name alone: that of a symbol that NCCL lacks could not be linked.
        let is_rccl = path.as_deref().is_some_and(|path| path.to_string_lossy().contains("librccl.so"));
        let backend = Backend::Linked { path };
        // SAFETY: the pointers are those that the linker resolved for the names that the header declares.
        unsafe { Self::new(functions, linked::device_functions(), backend, is_rccl) }
    }

    /// # Safety
    /// Every function of the tables has the signature and the contract that NCCL's header gives the name, and
    /// stays callable until the process ends.
    pub(crate) unsafe fn new(
        functions: Functions,
        device_functions: DeviceFunctions,
        backend: Backend,
        is_rccl: bool,
    ) -> Result<Arc<Self>, LoadError> {
        let no_version = |problem: String| LoadError::NoVersion {
            library: backend.to_string().into(),
            problem: problem.into(),
        };
        let get_version =
            functions.ncclGetVersion.ok_or_else(|| no_version("the function is absent".into()))?;
        let mut version = 0;
        // SAFETY: a function of NCCL by the caller's promise; `version` is where it writes an int.
        let code = ResultCode::from_raw(unsafe { get_version(&raw mut version) });
        let version = match u32::try_from(version) {
            Ok(version) if code.is_success() && version > 0 => Version::from_code(version),
            _ => return Err(no_version(format!("it answered {code} and the version {version}"))),
        };
        // SAFETY: as above.
        let memory_space = unsafe { memory_space(&functions) };
        Ok(Arc::new(Self { functions, device_functions, backend, version, memory_space, is_rccl }))
    }

    /// The function, or the error that says which release has it.
    #[inline]
    pub(crate) fn function<F>(&self, name: &'static str, function: Option<F>) -> Result<F> {
        function.ok_or_else(|| self.unsupported(name))
    }

    #[cold]
    fn unsupported(&self, name: &'static str) -> Error {
        Error::Unsupported {
            function: name,
            since: Version::since(name),
            found: self.version,
            library: self.backend.to_string().into(),
        }
    }

    /// Success, or work of a nonblocking communicator still in progress; anything else is an error.
    #[inline]
    pub(crate) fn check(&self, call: &'static str, code: sys::ncclResult_t) -> Result<ResultCode> {
        match ResultCode::from_raw(code) {
            ResultCode::SUCCESS => Ok(ResultCode::SUCCESS),
            code => self.check_other(call, code),
        }
    }

    #[cold]
    fn check_other(&self, call: &'static str, code: ResultCode) -> Result<ResultCode> {
        if code == ResultCode::IN_PROGRESS { Ok(code) } else { Err(self.error(call, code)) }
    }

    /// The error for a code, with the texts that the library has for it right now.
    pub(crate) fn error(&self, call: &'static str, code: ResultCode) -> Error {
        let text = self.functions.ncclGetErrorString.map_or(std::ptr::null(), |error_string| {
            // SAFETY: takes any code, and answers a string that lives as long as the library.
            unsafe { error_string(code.as_raw()) }
        });
        // SAFETY: null or a string, as above.
        let message = unsafe { copy(text) };
        let detail = self.last_error();
        Error::Nccl { call, code, message, detail }
    }

    /// NCCL's words on the last failure.
    pub(crate) fn last_error(&self) -> Box<str> {
        let text = self.functions.ncclGetLastError.map_or(std::ptr::null(), |last_error| {
            // SAFETY: takes any communicator including null, and answers a text of the process or the thread.
            unsafe { last_error(std::ptr::null_mut()) }
        });
        // SAFETY: null or a string; another failure overwrites it in place, so that it is copied at once.
        unsafe { copy(text) }
    }

    /// `ncclGetUniqueId`; after a failure the same error forever.
    ///
    /// A failed first call leaves a mutex locked in NCCL up to 2.21.5, and the second call would never return;
    /// later releases answer the same error forever by themselves.
    pub(crate) fn unique_id(&self) -> Result<UniqueId> {
        /// By the function's address: several `Library` may stand for one loaded file.
        static FAILURES: Mutex<Vec<(usize, Error)>> = Mutex::new(Vec::new());
        let address = self.functions.ncclGetUniqueId.map_or(0, |function| function as usize);
        let mut failures = FAILURES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, error)) = failures.iter().find(|(failed, _)| *failed == address) {
            return Err(error.clone());
        }
        // Zeroed: 2.16.5 to 2.22.3 write only the first 40 bytes.
        let mut id = sys::ncclUniqueId::default();
        // SAFETY: `id` is where NCCL writes an id.
        let made = unsafe { call!(self, ncclGetUniqueId(&raw mut id)) };
        let made = made.and_then(|code| match code {
            // There is nothing to wait on, and no id.
            ResultCode::IN_PROGRESS => Err(self.error("ncclGetUniqueId", code)),
            _ => Ok(()),
        });
        made.inspect_err(|error| failures.push((address, error.clone())))?;
        Ok(UniqueId::from_raw(id))
    }

    /// Whether both are the same implementation, with one state: a file may have been opened twice.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let address = |library: &Self| library.functions.ncclGroupStart.map(|function| function as usize);
        address(self) == address(other)
    }

    /// Takes the calling thread out of a group that a failed call left open.
    ///
    /// `ncclCommInitRankConfig`, its scalable form and `ncclCommDestroy` have error paths that return between
    /// their own group start and end (measured on all releases from 2.23.4 to 2.32.3). Outside a group the end answers
    /// `ncclInvalidUsage`, which is how one can tell.
    pub(crate) fn leave_leaked_group(&self) {
        const DEEPEST: usize = 4;
        if let Some(end) = self.functions.ncclGroupEnd {
            // SAFETY: takes nothing; the facade has no group open on this thread when it calls this.
            let ended = || ResultCode::from_raw(unsafe { end() }) != ResultCode::INVALID_USAGE;
            let _ = (0..DEEPEST).take_while(|_| ended()).count();
        }
    }

    /// Other libraries named like NCCL that are mapped into the process.
    pub(crate) fn others_mapped(&self) -> Vec<PathBuf> {
        let own = self.functions.ncclGetVersion.and_then(|function| mapped::file_of(function as usize));
        mapped::files().into_iter().filter(|path| is_nccl(path) && Some(path) != own.as_ref()).collect()
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, version, memory_space, .. } = self;
        f.debug_struct("Nccl")
            .field("version", version)
            .field("backend", backend)
            .field("memory_space", memory_space)
            .finish_non_exhaustive()
    }
}

/// An error wherever there is no NCCL to be had.
fn require_linux() -> Result<(), LoadError> {
    if cfg!(target_os = "linux") {
        return Ok(());
    }
    Err(LoadError::NoPlatform { system: std::env::consts::OS })
}

fn is_nccl(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("libnccl.so") || name.starts_with("librccl.so")
}

/// NCCL's memory is a device's. The CPU implementation says otherwise through NCCL's own parameter interface,
/// under a key that NCCL does not have.
///
/// # Safety
/// As for [`Library::new`].
unsafe fn memory_space(functions: &Functions) -> MemorySpace {
    const KEY: &CStr = c"LIBNCCL_MEMORY_SPACE";
    let Some(get_parameter) = functions.ncclParamGetParameter else { return MemorySpace::Device };
    let (mut value, mut length) = (std::ptr::null(), 0);
    // SAFETY: a string and two places to write to; the function is NCCL's by the caller's promise.
    let code = ResultCode::from_raw(unsafe { get_parameter(KEY.as_ptr(), &raw mut value, &raw mut length) });
    // SAFETY: null or a string that is valid until this thread asks for another parameter.
    let value = unsafe { copy(value) };
    if code.is_success() && &*value == "host" { MemorySpace::Host } else { MemorySpace::Device }
}

/// # Safety
/// `text` is null or a C string.
unsafe fn copy(text: *const c_char) -> Box<str> {
    if text.is_null() {
        return Box::default();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().into()
}
