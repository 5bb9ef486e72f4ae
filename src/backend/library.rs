//! An implementation of NCCL: its functions, version, errors and memory space.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

#[cfg(all(feature = "dlopen", target_os = "linux"))]
use super::dlopen;
#[cfg(nccl_linked)]
use super::linked;
use super::parameters::MemorySpace;
use super::{Backend, Found, memory_space};
use crate::dynamic_linker::keep_loaded;
use crate::environment::variable;
use crate::error::{Error, LoadError, Result, ResultCode};
use crate::sys;
use crate::sys::Functions;
use crate::sys::device::DeviceFunctions;
use crate::version::Version;

/// Calls a C function of a [`Library`] and checks its result; for use in an `unsafe` block.
macro_rules! call {
    ($library:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $library.function(stringify!($function), $library.functions.$function) {
            Ok(function) => $library.check(stringify!($function), function($($argument),*)),
            Err(error) => Err(error),
        }
    };
}
pub(crate) use call;

pub(crate) struct Library {
    pub(crate) functions: Functions,
    pub(crate) device_functions: DeviceFunctions,
    pub(crate) backend: Backend,
    pub(crate) version: Version,
    /// Set permanently once the memory space is device memory. The CPU backend has device memory as soon as CUDA is loaded, and a
    /// program may load CUDA after NCCL.
    has_device_memory: OnceLock<()>,
    /// As in [`Found`].
    pub(crate) own: [usize; 2],
    pub(crate) refuses_null: bool,
    /// Caches whether the implementation reports the number of open groups.
    pub(super) has_open_groups: OnceLock<bool>,
    /// The error message of this crate's last cleanup, and the message before it, which `last_error` returns instead.
    replaced_error: Mutex<Option<[Box<str>; 2]>>,
}

impl Library {
    /// Returns the library of `Nccl::load`: the linked one, or the first that the search finds.
    pub(crate) fn load() -> Result<Arc<Self>, LoadError> {
        static LOADED: OnceLock<Arc<Library>> = OnceLock::new();
        check_platform()?;
        if let Some(library) = LOADED.get() {
            return Ok(Arc::clone(library));
        }
        cfg_if::cfg_if! {
            if #[cfg(nccl_linked)] {
                let library = Self::linked()?;
            } else if #[cfg(all(feature = "dlopen", target_os = "linux"))] {
                let (found, backend) = dlopen::search()?;
                // SAFETY: the search takes a library with NCCL's name and functions for NCCL, as a linked program
                // does.
                let library = unsafe { Self::new(found, backend) }?;
            } else {
                let library: Arc<Self> = Err(LoadError::NoBackend)?;
            }
        }
        Ok(Arc::clone(LOADED.get_or_init(|| library)))
    }

    /// # Safety
    /// As for [`crate::nccl::Nccl::open`].
    #[cfg(feature = "dlopen")]
    pub(crate) unsafe fn open(path: &std::path::Path) -> Result<Arc<Self>, LoadError> {
        check_platform()?;
        cfg_if::cfg_if! {
            if #[cfg(target_os = "linux")] {
                // SAFETY: the caller guarantees that the file, if it has NCCL's functions, is NCCL; it is never unloaded.
                unsafe {
                    let (found, backend) = dlopen::open(path)?;
                    Self::new(found, backend)
                }
            } else {
                let _ = path;
                Err(LoadError::NoBackend)
            }
        }
    }

    #[cfg(nccl_linked)]
    pub(crate) fn linked() -> Result<Arc<Self>, LoadError> {
        let (found, backend) = linked::library()?;
        // SAFETY: the functions are the linked library's, with the names that the header declares.
        unsafe { Self::new(found, backend) }
    }

    /// # Safety
    /// Every function of the tables must have the signature and the contract that NCCL's header declares for its name, and must
    /// stay callable until the process ends.
    pub(crate) unsafe fn new(found: Found, backend: Backend) -> Result<Arc<Self>, LoadError> {
        let Found { functions, device_functions, own, refuses_null } = found;
        let version_error = |problem: String| LoadError::VersionQuery {
            library: backend.to_string().into(),
            problem: problem.into(),
        };
        let get_version =
            functions.ncclGetVersion.ok_or_else(|| version_error("the function is absent".into()))?;
        let mut version = 0;
        // SAFETY: the caller guarantees that this is NCCL's function; `version` is a valid out-parameter.
        let code = ResultCode::from_raw(unsafe { get_version(&raw mut version) });
        let version = match u32::try_from(version) {
            Ok(version) if code.is_success() && version > 0 => Version::from_code(version),
            _ => return Err(version_error(format!("it returned {code} and the version {version}"))),
        };
        keep_loaded();
        Ok(Arc::new(Self {
            functions,
            device_functions,
            backend,
            version,
            has_device_memory: OnceLock::new(),
            own,
            refuses_null,
            has_open_groups: OnceLock::new(),
            replaced_error: Mutex::default(),
        }))
    }

    /// Returns the memory space. It may change once, from host to device memory.
    #[inline]
    pub(crate) fn memory_space(&self) -> MemorySpace {
        if self.has_device_memory.get().is_some() {
            return MemorySpace::Device;
        }
        // SAFETY: the functions are NCCL's, as the caller of `new` guaranteed.
        let memory_space = unsafe { memory_space(&self.functions) };
        if memory_space == MemorySpace::Device {
            self.has_device_memory.get_or_init(|| ());
        }
        memory_space
    }

    /// Returns the function or, if the library lacks it, an error with the first version that has it.
    #[inline]
    pub(crate) fn function<F>(&self, name: &'static str, function: Option<F>) -> Result<F> {
        function.ok_or_else(|| self.unsupported(name))
    }

    /// Returns an error if the library is older than `item`, a function or an enum value.
    #[cold]
    pub(crate) fn require(&self, item: &'static str) -> Result<()> {
        self.function(item, (Version::since(item) <= self.version).then_some(()))
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

    /// Converts a result code. Success, and `ncclInProgress` of a nonblocking communicator, are `Ok`; any other code is an error.
    #[inline]
    pub(crate) fn check(&self, call: &'static str, code: sys::ncclResult_t) -> Result<ResultCode> {
        match ResultCode::from_raw(code) {
            ResultCode::SUCCESS => Ok(ResultCode::SUCCESS),
            code => self.check_not_success(call, code),
        }
    }

    #[cold]
    fn check_not_success(&self, call: &'static str, code: ResultCode) -> Result<ResultCode> {
        if code == ResultCode::IN_PROGRESS { Ok(code) } else { Err(self.error(call, code)) }
    }

    /// Returns the error for a code, with the library's texts.
    pub(crate) fn error(&self, call: &'static str, code: ResultCode) -> Error {
        let text = self.functions.ncclGetErrorString.map_or(std::ptr::null(), |error_string| {
            // SAFETY: accepts any code, and returns a string that lives as long as the library.
            unsafe { error_string(code.as_raw()) }
        });
        // SAFETY: null or a string, as above.
        let message = unsafe { copy(text) };
        let detail = with_variables(self.last_error());
        Error::Nccl { call, code, message, detail }
    }

    /// Returns the most recent error message, or an empty string. Ignores messages from this crate's own cleanup.
    pub(crate) fn last_error(&self) -> Box<str> {
        let text = self.raw_last_error();
        match &*self.replaced_error.lock().unwrap_or_else(PoisonError::into_inner) {
            Some([after, before]) if *after == text => before.clone(),
            _ => text,
        }
    }

    /// Runs calls that are meant to fail. [`last_error`](Self::last_error) does not return their error message.
    pub(crate) fn keeping_last_error(&self, calls: impl FnOnce()) {
        let before = self.last_error();
        calls();
        let after = self.raw_last_error();
        *self.replaced_error.lock().unwrap_or_else(PoisonError::into_inner) = Some([after, before]);
    }

    fn raw_last_error(&self) -> Box<str> {
        // SAFETY: null or a string of at most this length: NCCL's buffer.
        unsafe { copy_shared(self.last_error_pointer(std::ptr::null_mut())) }
    }

    /// Returns a description of what a live communicator is waiting for; empty if the library has none.
    ///
    /// `ncclGetLastError` of the CPU backend returns it at a separate address. NCCL's ignores the communicator, and returns the
    /// last error of any communicator.
    pub(crate) fn wait_of(&self, communicator: sys::ncclComm_t) -> Box<str> {
        let [of_any, own] = [std::ptr::null_mut(), communicator].map(|it| self.last_error_pointer(it));
        if own == of_any {
            return Box::default();
        }
        // SAFETY: null or a string of at most this length.
        unsafe { copy_shared(own) }
    }

    /// Returns NCCL's last error text. `communicator` must be null or live.
    fn last_error_pointer(&self, communicator: sys::ncclComm_t) -> *const c_char {
        self.functions.ncclGetLastError.map_or(std::ptr::null(), |last_error| {
            // SAFETY: null or live, and returns a text of the process or the thread.
            unsafe { last_error(communicator) }
        })
    }

    /// Returns whether both are the same implementation with the same state.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.own[0] == other.own[0]
    }

    /// Ends the groups that a failed call left open on the calling thread.
    ///
    /// `ncclCommInitRankConfig`, its scalable form and `ncclCommDestroy` have error paths that return after `ncclGroupStart`
    /// without `ncclGroupEnd` (measured on all versions from 2.23.4 to 2.32.3). `ncclGroupEnd` returns `ncclInvalidUsage` once no
    /// group is open.
    pub(crate) fn end_leaked_groups(&self) {
        const MAX_DEPTH: usize = 4;
        if let Some(end) = self.functions.ncclGroupEnd {
            // SAFETY: has no arguments. The facade has no open group on this thread when it calls this.
            let ended = || ResultCode::from_raw(unsafe { end() }) != ResultCode::INVALID_USAGE;
            self.keeping_last_error(|| {
                let _ = (0..MAX_DEPTH).take_while(|_| ended()).count();
            });
        }
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, version, .. } = self;
        f.debug_struct("Nccl")
            .field("version", version)
            .field("backend", backend)
            .field("memory_space", &self.memory_space())
            .finish_non_exhaustive()
    }
}

fn check_platform() -> Result<(), LoadError> {
    if !cfg!(target_os = "linux") {
        return Err(LoadError::UnsupportedPlatform { system: std::env::consts::OS });
    }
    if cfg!(target_feature = "crt-static") {
        return Err(LoadError::StaticProgram);
    }
    Ok(())
}

/// Copies a C string; null becomes an empty string.
///
/// # Safety
/// `text` must be null or a C string.
pub(super) unsafe fn copy(text: *const c_char) -> Box<str> {
    if text.is_null() {
        return Box::default();
    }
    // SAFETY: the caller guarantees that it is a C string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().into()
}

/// Copies a C string that another thread may overwrite meanwhile; null becomes an empty string.
///
/// NCCL has one buffer of 1024 bytes for the errors of all threads, and writes it without synchronization. The bytes are copied
/// before they are examined; the text may end with the tail of another text.
///
/// # Safety
/// `text` must be null, or point to a C string or to 1024 bytes.
unsafe fn copy_shared(text: *const c_char) -> Box<str> {
    const BUFFER: usize = 1024;
    if text.is_null() {
        return Box::default();
    }
    // SAFETY: the caller guarantees that the bytes up to the first zero, or 1024, are there. The CPU backend writes them
    // atomically. NCCL is C and does not: no read of its buffer can be free of a race, and this one reads each byte once.
    let byte = |index| unsafe { AtomicU8::from_ptr(text.cast_mut().cast::<u8>().add(index)) }.load(Relaxed);
    let bytes: Vec<u8> = (0..BUFFER).map(byte).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).trim().into()
}

/// Adds the values of the environment variables that cause an error, which NCCL's text omits. NCCL copies its configuration files
/// into the environment too.
fn with_variables(text: Box<str>) -> Box<str> {
    let variables: &[&str] = match &*text {
        text if text.to_ascii_lowercase().contains("interface found") => {
            &["NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY"]
        }
        text if text.starts_with("Invalid NCCL_COMM_ID") => &["NCCL_COMM_ID"],
        _ => return text,
    };
    let describe = |name: &&str| match variable(name) {
        Some(value) => format!("{name} is {value:?}"),
        None => format!("{name} is not set"),
    };
    format!("{text} ({})", variables.iter().map(describe).collect::<Vec<_>>().join(", ")).into()
}
