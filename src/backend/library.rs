use std::ffi::{CStr, OsString, c_char};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

#[cfg(feature = "dlopen")]
use super::dlopen;
use super::kind::{Backend, MemorySpace};
#[cfg(nccl_linked)]
use super::linked;
use super::parameter_lock::lock_parameters;
use crate::dynamic_linker::{keep_loaded, mapped};
use crate::environment::variable;
use crate::error::{Error, LoadError, Result, ResultCode};
use crate::sys;
use crate::sys::Functions;
use crate::sys::device::DeviceFunctions;
use crate::unique_id::UniqueId;
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

/// The functions of an implementation that a backend has found.
pub(crate) struct Found {
    pub(crate) functions: Functions,
    pub(crate) device_functions: DeviceFunctions,
    /// Set if a null communicator is an error, as it is to NCCL. Others' implementations may dereference it.
    pub(crate) refuses_null: bool,
}

/// One implementation of NCCL: its functions and properties.
pub(crate) struct Library {
    pub(crate) functions: Functions,
    pub(crate) device_functions: DeviceFunctions,
    pub(crate) backend: Backend,
    pub(crate) version: Version,
    /// Set once it is device memory, for good: the CPU implementation has that from when CUDA is loaded, and a program may
    /// load CUDA after NCCL.
    has_device_memory: OnceLock<()>,
    /// The addresses of the implementation's own `ncclGroupStart` and `ncclGetUniqueId`, which tell implementations apart:
    /// one file may have been opened twice, or linked and opened.
    own: [usize; 2],
    pub(crate) refuses_null: bool,
    /// Set if the implementation returns the number of open groups.
    pub(super) has_open_groups: OnceLock<bool>,
    /// The last error message of a cleanup by this crate, and the message before it, which users get instead.
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
            } else if #[cfg(feature = "dlopen")] {
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
    pub(crate) unsafe fn open(path: &Path) -> Result<Arc<Self>, LoadError> {
        check_platform()?;
        // SAFETY: the caller guarantees that the file, if it has NCCL's functions, is NCCL; it is never unloaded.
        unsafe {
            let (found, backend) = dlopen::open(path)?;
            Self::new(found, backend)
        }
    }

    #[cfg(nccl_linked)]
    pub(crate) fn linked() -> Result<Arc<Self>, LoadError> {
        let linked::Linked { found, own, path } = linked::library()?;
        // SAFETY: the functions are those of the linked library that have the names that the header declares.
        let mut library = unsafe { Self::new(found, Backend::Linked { path }) }?;
        if let Some(library) = Arc::get_mut(&mut library) {
            library.own = own;
        }
        Ok(library)
    }

    /// # Safety
    /// Every function of the tables has the signature and the contract that NCCL's header gives the name, and
    /// stays callable until the process ends.
    pub(crate) unsafe fn new(found: Found, backend: Backend) -> Result<Arc<Self>, LoadError> {
        let Found { functions, device_functions, refuses_null } = found;
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
            own: [
                functions.ncclGroupStart.map_or(0, |function| function as usize),
                functions.ncclGetUniqueId.map_or(0, |function| function as usize),
            ],
            functions,
            device_functions,
            backend,
            version,
            has_device_memory: OnceLock::new(),
            refuses_null,
            has_open_groups: OnceLock::new(),
            replaced_error: Mutex::default(),
        }))
    }

    /// Returns the memory space of buffers of communicators that are used from now on.
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

    /// Returns the function, or the error that names the first release that has it.
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

    /// Returns success and `ncclInProgress` of a nonblocking communicator as they are; any other code is an error.
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

    /// Returns the error for a code, with the texts that the library now has for it.
    pub(crate) fn error(&self, call: &'static str, code: ResultCode) -> Error {
        let text = self.functions.ncclGetErrorString.map_or(std::ptr::null(), |error_string| {
            // SAFETY: accepts any code, and returns a string that lives as long as the library.
            unsafe { error_string(code.as_raw()) }
        });
        // SAFETY: null or a string, as above.
        let message = unsafe { copy(text) };
        let detail = with_variables(self.last_error(), variable);
        Error::Nccl { call, code, message, detail }
    }

    /// Returns the most recent error message, or an empty string: that of the user's call, not of the cleanup after it.
    pub(crate) fn last_error(&self) -> Box<str> {
        let text = self.raw_last_error();
        match &*self.replaced_error.lock().unwrap_or_else(PoisonError::into_inner) {
            Some([after, before]) if *after == text => before.clone(),
            _ => text,
        }
    }

    /// Runs calls that are meant to fail, whose error message [`last_error`](Self::last_error) does not return.
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

    /// Returns what a communicator that is live and in progress waits for; an empty text if the library does not say.
    ///
    /// The CPU backend returns such a text at a separate address. NCCL ignores the communicator: its text is the last error
    /// of any communicator, perhaps a long time ago, and says nothing about this one.
    pub(crate) fn wait_of(&self, communicator: sys::ncclComm_t) -> Box<str> {
        let [of_any, own] = [std::ptr::null_mut(), communicator].map(|it| self.last_error_pointer(it));
        if own == of_any {
            return Box::default();
        }
        // SAFETY: null or a string of at most this length.
        unsafe { copy_shared(own) }
    }

    /// Returns the text for a communicator that is null or live.
    fn last_error_pointer(&self, communicator: sys::ncclComm_t) -> *const c_char {
        self.functions.ncclGetLastError.map_or(std::ptr::null(), |last_error| {
            // SAFETY: null or live, and returns a text of the process or the thread.
            unsafe { last_error(communicator) }
        })
    }

    /// Calls `ncclGetUniqueId`; after a failure, returns the same error forever.
    ///
    /// In NCCL up to 2.21.5, a failed first call leaves a mutex locked, so that a second call would never return.
    /// Later releases return the same error forever by themselves.
    pub(crate) fn unique_id(&self) -> Result<UniqueId> {
        /// The failures, by the address of the function.
        static FAILURES: Mutex<Vec<(usize, Error)>> = Mutex::new(Vec::new());
        let mut failures = FAILURES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, error)) = failures.iter().find(|(failed, _)| *failed == self.own[1]) {
            return Err(error.clone());
        }
        // Zeroed: 2.16.5 to 2.22.3 write only the first 40 bytes.
        let mut id = sys::ncclUniqueId::default();
        // SAFETY: `id` is a valid out-parameter.
        let created = unsafe { call!(self, ncclGetUniqueId(&raw mut id)) };
        let created = created.and_then(|code| match code {
            // There is no communicator to wait for, and no id.
            ResultCode::IN_PROGRESS => Err(self.error("ncclGetUniqueId", code)),
            _ => Ok(()),
        });
        created.inspect_err(|error| failures.push((self.own[1], error.clone())))?;
        Ok(UniqueId::from_raw(id))
    }

    /// Returns `true` if both are the same implementation with the same state.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.own[0] == other.own[0]
    }

    /// Ends the groups that a failed call left open on the calling thread.
    ///
    /// `ncclCommInitRankConfig`, its scalable form and `ncclCommDestroy` have error paths that return between
    /// their own group start and end (measured on all releases from 2.23.4 to 2.32.3). `ncclGroupEnd` returns
    /// `ncclInvalidUsage` once no group is open.
    pub(crate) fn end_leaked_groups(&self) {
        const MAX_DEPTH: usize = 4;
        if let Some(end) = self.functions.ncclGroupEnd {
            // SAFETY: has no arguments. The facade has no group of its own open on this thread when it calls this.
            let ended = || ResultCode::from_raw(unsafe { end() }) != ResultCode::INVALID_USAGE;
            self.keeping_last_error(|| {
                let _ = (0..MAX_DEPTH).take_while(|_| ended()).count();
            });
        }
    }

    /// Returns the other libraries named like NCCL that are mapped into the process.
    pub(crate) fn other_loaded_libraries(&self) -> Vec<PathBuf> {
        let own = mapped::file_of(self.own[0]);
        mapped::files().into_iter().filter(|path| is_nccl(path) && Some(path) != own.as_ref()).collect()
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

/// Returns an error on systems for which there is no NCCL, and in programs that cannot have it.
fn check_platform() -> Result<(), LoadError> {
    if !cfg!(target_os = "linux") {
        return Err(LoadError::UnsupportedPlatform { system: std::env::consts::OS });
    }
    if cfg!(target_feature = "crt-static") {
        return Err(LoadError::StaticProgram);
    }
    Ok(())
}

fn is_nccl(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("libnccl.so") || name.starts_with("librccl.so")
}

/// Returns the memory space of an implementation. NCCL's is device memory; the CPU implementation reports host memory
/// through NCCL's parameter interface, under a key that NCCL does not have.
///
/// # Safety
/// As for [`Library::new`].
pub(crate) unsafe fn memory_space(functions: &Functions) -> MemorySpace {
    // SAFETY: the same contract. A parameter, and no variable.
    let value = unsafe { parameter(functions, c"LIBNCCL_MEMORY_SPACE") };
    if value.as_deref() == Some("host") { MemorySpace::Host } else { MemorySpace::Device }
}

/// Returns a parameter of an implementation as text, or `None` if the implementation has no such parameter.
///
/// # Safety
/// As for [`Library::new`].
pub(super) unsafe fn parameter(functions: &Functions, key: &CStr) -> Option<Box<str>> {
    let get_parameter = functions.ncclParamGetParameter?;
    let (mut value, mut length) = (std::ptr::null(), 0);
    let _one_at_a_time = lock_parameters(functions);
    // SAFETY: a C string and two valid out-parameters; the caller guarantees that this is NCCL's function. The lock keeps
    // other threads out of it.
    let code = ResultCode::from_raw(unsafe { get_parameter(key.as_ptr(), &raw mut value, &raw mut length) });
    // SAFETY: null or a string that is valid until this thread queries another parameter.
    code.is_success().then(|| unsafe { copy(value) })
}

/// Copies a C string; null becomes an empty one.
///
/// # Safety
/// `text` is null or a C string.
unsafe fn copy(text: *const c_char) -> Box<str> {
    if text.is_null() {
        return Box::default();
    }
    // SAFETY: the caller guarantees that it is a C string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().into()
}

/// Copies a C string that another thread may overwrite meanwhile; null becomes an empty one.
///
/// NCCL has one buffer of 1024 bytes for the errors of all threads, and writes it without regard to readers. So the
/// bytes are copied before anything looks at them, and the end may be that of another text.
///
/// # Safety
/// `text` is null, or has a zero byte, or 1024 bytes.
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

/// Adds the values of the variables that a text of NCCL is about and does not name, or without their values. NCCL reads its
/// configuration files into the environment too.
fn with_variables(text: Box<str>, value: impl Fn(&str) -> Option<OsString>) -> Box<str> {
    let variables: &[&str] = match &*text {
        text if text.to_ascii_lowercase().contains("interface found") => {
            &["NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY"]
        }
        text if text.starts_with("Invalid NCCL_COMM_ID") => &["NCCL_COMM_ID"],
        _ => return text,
    };
    let describe = |name: &&str| match value(name) {
        Some(value) => format!("{name} is {value:?}"),
        None => format!("{name} is not set"),
    };
    format!("{text} ({})", variables.iter().map(describe).collect::<Vec<_>>().join(", ")).into()
}

#[cfg(test)]
mod tests {
    use std::ptr;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::{copy_shared, with_variables};

    /// The texts are those of NCCL 2.13.4 to 2.32.3.
    #[test]
    fn text_about_variables_of_nccl_has_their_values() {
        let set = |name: &str| match name {
            "NCCL_SOCKET_IFNAME" => Some("\"eth0\" ".into()),
            "NCCL_COMM_ID" => Some("nohost:99".into()),
            _ => None,
        };
        let interfaces = r#" (NCCL_SOCKET_IFNAME is "\"eth0\" ", NCCL_SOCKET_FAMILY is not set)"#;
        for (text, added) in [
            ("Bootstrap : no socket interface found", interfaces),
            ("NET/Socket : No usable listening interface found", interfaces),
            ("NET/Socket : no interface found", interfaces),
            ("NET/IB : No IP interface found.", interfaces),
            (
                "Invalid NCCL_COMM_ID, please use format: <ipv4>:<port> or [<ipv6>]:<port> or <hostname>:<port>",
                r#" (NCCL_COMM_ID is "nohost:99")"#,
            ),
            // That of the CPU implementation has the value.
            (r#"invalid NCCL_COMM_ID "nohost:99": expected <ipv4>:<port>"#, ""),
            ("Cuda failure 'no device'", ""),
            ("", ""),
        ] {
            assert_eq!(&*with_variables(text.into(), set), format!("{text}{added}"));
        }
        assert_eq!(
            &*with_variables("Bootstrap : no socket interface found".into(), |_| None),
            "Bootstrap : no socket interface found (NCCL_SOCKET_IFNAME is not set, NCCL_SOCKET_FAMILY is not set)"
        );
    }

    /// Another thread changes the text meanwhile, between characters of one and of three bytes.
    #[test]
    fn shared_text_that_changes_is_valid_utf8() {
        const LENGTH: usize = 999;
        let buffer = Box::into_raw(Box::new([0_u8; LENGTH + 1]));
        let (address, is_over) = (buffer.expose_provenance(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let texts = ["x".repeat(LENGTH), "\u{20ac}".repeat(LENGTH / 3)];
                let to: *mut u8 = ptr::with_exposed_provenance_mut(address);
                for text in texts.iter().cycle().take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    for (index, byte) in text.bytes().enumerate() {
                        // SAFETY: inside the buffer, whose last byte stays zero.
                        unsafe { to.add(index).write_volatile(byte) };
                    }
                }
            });
            let mut texts = (0..2000).map(|_| {
                // SAFETY: the buffer has a zero byte.
                unsafe { copy_shared(buffer.cast()) }
            });
            let is_valid = texts.all(|text| std::str::from_utf8(text.as_bytes()).is_ok());
            is_over.store(true, Ordering::Relaxed);
            assert!(is_valid);
        });
        // SAFETY: from `into_raw`, and the thread is over.
        drop(unsafe { Box::from_raw(buffer) });
    }
}
