//! Finds the real NCCL, and forwards calls to it.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_void};
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

use libnccl::Version;
use libnccl::buffer::MemorySpace;
use libnccl::internal::environment::variable;
use libnccl::internal::{PATH_VARIABLE, interposer};
use libnccl::observer::CommunicatorId;
use libnccl::sys::device::DeviceFunctions;
use libnccl::sys::{Functions, ncclComm_t, ncclResult_t};
use libnccl_observe::variables::TRACE_LIBRARY;

static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();

thread_local! {
    /// Set while this thread loads the library, whose constructors may call functions of this interposer.
    static IS_LOADING: Cell<bool> = const { Cell::new(false) };
}

pub(crate) struct Library {
    pub(crate) functions: Functions,
    pub(crate) device_functions: DeviceFunctions,
    pub(crate) path: PathBuf,
}

/// Returns the library, or `None` if none was found.
#[inline]
pub(crate) fn library() -> Option<&'static Library> {
    LIBRARY.get().map_or_else(load_once, Option::as_ref)
}

#[cold]
fn load_once() -> Option<&'static Library> {
    if IS_LOADING.replace(true) {
        return None;
    }
    let library = LIBRARY.get_or_init(|| {
        // One write, as other processes may print too. Without stderr, there is nowhere to report the error.
        let print = |error| drop(std::io::stderr().write_all(format!("libnccl-trace: {error}\n").as_bytes()));
        find().map_err(print).ok()
    });
    IS_LOADING.set(false);
    library.as_ref()
}

/// Returns the NCCL that this process would use without interposers. If `LIBNCCL_TRACE_LIBRARY` is set, returns this file.
/// Otherwise, returns the first of:
///
/// - an NCCL that is loaded in the process;
/// - a file on the run-time path of a loaded object;
/// - a file that libnccl's search finds.
///
/// An error lists all candidates.
fn find() -> Result<Library, String> {
    let mut error = "no NCCL library could be loaded".to_owned();
    let mut try_load = |source, path: Result<PathBuf, &str>| {
        let problem = match path {
            Ok(path) => match load(&path) {
                Ok(library) => return Some(library),
                Err(problem) => format!("{} ({source}): {problem}", path.display()),
            },
            Err(problem) => format!("{source}: {problem}"),
        };
        let _ = write!(error, "\n  {problem}");
        None
    };
    let found = match variable(TRACE_LIBRARY).filter(|value| !value.is_empty()) {
        Some(given) => try_load(TRACE_LIBRARY, Ok(Path::new(".").join(given))),
        None => in_process().or_else(|| places().find_map(|(source, path)| try_load(source, path))),
    };
    found.ok_or(error)
}

/// Loads a file, unless it is an interposer.
fn load(path: &Path) -> Result<Library, String> {
    // SAFETY: a file with NCCL's name and functions is taken for NCCL, as the program's dynamic linker does. The files belong
    // to the system, or to the user who controls the environment and thus the dynamic linker. NCCL may call its own
    // functions through this library, which forwards them.
    let found = unsafe { interposer::load_functions(path, check_mark) }?;
    let interposer::Found { functions, device_functions, .. } = found;
    Ok(Library { functions, device_functions, path: path.into() })
}

/// Fails if the file with this function is an interposer like this one. Two interposers could forward calls to each other.
fn check_mark(function: *const c_void) -> Result<(), String> {
    let file = interposer::file_of_code(function).ok_or("has code that belongs to no file")?;
    let is_marked = !symbol(&file, c"libnccl_trace").is_null();
    if is_marked { Err("is an interposer that records calls, not NCCL".into()) } else { Ok(()) }
}

/// Returns the NCCL that is loaded in the process: linked under another name, preloaded, or opened by its path.
fn in_process() -> Option<Library> {
    interposer::mapped_files().into_iter().find_map(|file| {
        let function = symbol(&file, c"ncclGetVersion");
        // A library that is linked with NCCL gives access to NCCL's functions too.
        let is_own = !function.is_null() && interposer::file_of_code(function).as_ref() == Some(&file);
        if is_own { load(&file).ok() } else { None }
    })
}

/// Returns the files that may be NCCL, in search order. For a source that names no file, returns the reason.
fn places() -> impl Iterator<Item = (&'static str, Result<PathBuf, &'static str>)> {
    const NAME: &str = "libnccl.so.2";
    let general: Vec<_> = interposer::files(Path::new(NAME), None).collect();
    let of_objects = interposer::mapped_files().into_iter().flat_map(move |object| {
        let files = interposer::files(Path::new(NAME), Some(&object));
        files.filter(|file| !general.contains(file) && file.is_file()).collect::<Vec<_>>()
    });
    let value = |name: &str| match variable(name).filter(|value| !value.is_empty()) {
        // The variable would name the only candidate, and if the program uses libnccl, it names this library.
        Some(value) if name != PATH_VARIABLE => Ok(value.into()),
        _ => Err("not set"),
    };
    let others =
        interposer::candidates(value).flat_map(|interposer::Candidate { source, path }| match path {
            Ok(name) if name.components().count() == 1 => {
                let files = interposer::files(&name, None).filter(|file| file.is_file());
                files.map(|file| (source, Ok(file))).collect()
            }
            path => vec![(source, path)],
        });
    of_objects.map(|file| ("run-time path", Ok(file))).chain(others.collect::<Vec<_>>())
}

/// Returns the address of a symbol in a loaded file or in its dependencies; null if the file is not loaded.
fn symbol(file: &Path, name: &CStr) -> *const c_void {
    let Ok(file) = CString::new(file.as_os_str().as_bytes()) else { return ptr::null() };
    // SAFETY: C strings. The flags load nothing, and the handle is closed once, after its use.
    unsafe {
        let handle = libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return ptr::null();
        }
        let address = libc::dlsym(handle, name.as_ptr());
        libc::dlclose(handle);
        address
    }
}

/// Returns the memory space of the library's buffers.
pub(crate) fn memory_space() -> MemorySpace {
    // SAFETY: the functions of `load`, which are NCCL's.
    library().map_or(MemorySpace::Device, |library| unsafe { interposer::memory_space(&library.functions) })
}

/// Returns the id that the CPU backend assigns to a communicator.
pub(crate) fn comm_hash(comm: ncclComm_t) -> Option<CommunicatorId> {
    let Library { functions, device_functions, .. } = library()?;
    // SAFETY: as above, and the handle is live.
    unsafe { interposer::comm_hash(functions, device_functions, comm) }.map(CommunicatorId::of_hash)
}

/// Returns the version of the library, or 0.0.0 if it is unknown.
pub(crate) fn version() -> Version {
    static VERSION: OnceLock<Version> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let mut version = 0;
        let code: ncclResult_t = forward!(functions.ncclGetVersion(&raw mut version));
        Version::from_code(if code == ncclResult_t::ncclSuccess { version.unsigned_abs() } else { 0 })
    })
}

/// Calls the library's `ncclResetDebugInit`, which exists since NCCL 2.24.3.
pub(crate) fn reset_debug() {
    let function = library().map_or(ptr::null(), |library| symbol(&library.path, c"ncclResetDebugInit"));
    if !function.is_null() {
        // SAFETY: NCCL's function of this name takes and returns nothing; the library is never unloaded.
        unsafe { std::mem::transmute::<*const c_void, extern "C" fn()>(function)() };
    }
}

/// Returns whether only one thread at a time may call the function: its name begins with `ncclParam`.
pub(crate) const fn is_of_parameters(name: &str) -> bool {
    const PREFIX: &[u8] = b"ncclParam";
    match name.as_bytes().split_at_checked(PREFIX.len()) {
        Some((prefix, _)) => matches!(prefix, PREFIX),
        None => false,
    }
}

/// Calls a function of the library; returns an error if the function or the library is missing.
macro_rules! forward {
    ($table:ident.$name:ident($($argument:expr),* $(,)?)) => {
        match $crate::library::library() {
            Some(library) => match library.$table.$name {
                Some(function) => {
                    let _one_at_a_time = const { $crate::library::is_of_parameters(stringify!($name)) }
                        .then(|| ::libnccl::internal::interposer::lock_parameters(&library.functions));
                    // SAFETY: the caller of the function with this name has given the arguments that it takes.
                    unsafe { function($($argument),*) }
                }
                None => $crate::returned::Returned::function($crate::returned::message!($name)),
            },
            None => $crate::returned::Returned::library(),
        }
    };
}
pub(crate) use forward;
