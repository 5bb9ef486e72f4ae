//! The library that does the work.

use std::cell::Cell;
use std::ffi::CString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use libnccl::Version;
use libnccl::internal::{Forwarded, forwarded};
use libnccl::sys::ncclResult_t;
use libnccl_observe::variables;

static LIBRARY: OnceLock<Option<Forwarded>> = OnceLock::new();

thread_local! {
    /// Set while this thread loads the library, whose constructors may call what is here.
    static IS_LOADING: Cell<bool> = const { Cell::new(false) };
}

/// Returns the library, `None` if none was found.
#[inline]
pub(crate) fn library() -> Option<&'static Forwarded> {
    LIBRARY.get().map_or_else(load, Option::as_ref)
}

#[cold]
fn load() -> Option<&'static Forwarded> {
    if IS_LOADING.replace(true) {
        return None;
    }
    let library = LIBRARY.get_or_init(|| {
        // SAFETY: a file with NCCL's name and functions is taken for NCCL, as the program's dynamic linker does; whoever
        // controls the environment controls that too.
        let found = unsafe { forwarded(variables::TRACE_LIBRARY) };
        // Once. A single write, as other processes may print too; without stderr nobody could be told.
        let say = |error| drop(std::io::stderr().write_all(format!("libnccl-trace: {error}\n").as_bytes()));
        found.map_err(say).ok()
    });
    IS_LOADING.set(false);
    library.as_ref()
}

/// Returns the release of the library, 0.0.0 if it does not say.
pub(crate) fn version() -> Version {
    static VERSION: OnceLock<Version> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let mut version = 0;
        let code: ncclResult_t = forward!(functions.ncclGetVersion(&raw mut version));
        Version::from_code(if code == ncclResult_t::ncclSuccess { version.unsigned_abs() } else { 0 })
    })
}

/// Calls `ncclResetDebugInit` of the library, if it has that, as from 2.24.3 on.
pub(crate) fn reset_debug() {
    let Some(library) = library() else { return };
    let Ok(path) = CString::new(library.path.as_os_str().as_bytes()) else { return };
    // SAFETY: a C string; the library is loaded, and stays so. Its function with this name takes and returns nothing.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return;
        }
        let function = libc::dlsym(handle, c"ncclResetDebugInit".as_ptr());
        if !function.is_null() {
            std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn()>(function)();
        }
        libc::dlclose(handle);
    }
}

/// Returns whether a function is one of those that one thread at a time calls.
pub(crate) const fn is_of_parameters(name: &str) -> bool {
    const PREFIX: &[u8] = b"ncclParam";
    match name.as_bytes().split_at_checked(PREFIX.len()) {
        Some((prefix, _)) => matches!(prefix, PREFIX),
        None => false,
    }
}

/// Calls a function of the library; returns an error if there is none.
macro_rules! forward {
    ($table:ident.$name:ident($($argument:expr),* $(,)?)) => {
        match $crate::library::library() {
            Some(library) => match library.$table.$name {
                Some(function) => {
                    // SAFETY: the caller of the function with this name has given the arguments that it takes.
                    let call = || unsafe { function($($argument),*) };
                    library.call(const { $crate::library::is_of_parameters(stringify!($name)) }, call)
                }
                None => $crate::returned::Returned::function($crate::returned::message!($name)),
            },
            None => $crate::returned::Returned::library(),
        }
    };
}
pub(crate) use forward;
