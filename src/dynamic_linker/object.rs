//! The objects that the dynamic linker has loaded, the program and its shared libraries, and the search for their symbols.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::Once;

const RTLD_LAZY: c_int = 1;
const RTLD_NOLOAD: c_int = 4;
const RTLD_NODELETE: c_int = 0x1000;

#[repr(C)]
struct Info {
    file: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    symbol_address: *mut c_void,
}

unsafe extern "C" {
    fn dladdr(address: *const c_void, info: *mut Info) -> c_int;
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(scope: *mut c_void, name: *const c_char) -> *mut c_void;
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Object {
    base: usize,
    /// The file's path as the dynamic linker stores it. May be relative to an earlier current directory.
    name: CString,
}

impl Object {
    /// Returns the object that contains the code or data at `address`.
    pub(crate) fn at(address: *const c_void) -> Option<Self> {
        let mut info = Info {
            file: ptr::null(),
            base: ptr::null_mut(),
            symbol: ptr::null(),
            symbol_address: ptr::null_mut(),
        };
        // SAFETY: any address is allowed; `info` has the layout that <dlfcn.h> declares.
        if unsafe { dladdr(address, &raw mut info) } == 0 || info.file.is_null() {
            return None;
        }
        // SAFETY: a C string that lives as long as the object, which the caller is about to call or has just found.
        let name = unsafe { CStr::from_ptr(info.file) }.into();
        Some(Self { base: info.base as usize, name })
    }

    /// Returns the object's file. `dladdr` takes 1 µs; reading /proc/self/maps takes 30 to 60 µs.
    #[cfg(any(feature = "dlopen", all(nccl_linked, not(nccl_archive))))]
    pub(crate) fn path(&self) -> Option<std::path::PathBuf> {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        use std::path::Path;

        let name = Path::new(OsStr::from_bytes(self.name.to_bytes()));
        if name.is_absolute() { std::fs::canonicalize(name).ok() } else { super::mapped_file_at(self.base) }
    }

    /// Returns the scope of this object, or `None` if it is the program. The object is never unloaded afterwards.
    pub(crate) fn scope(&self) -> Option<Scope> {
        Scope::loaded(&self.name)
    }
}

/// The objects in which a symbol is looked up, in order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope(*mut c_void);

impl Scope {
    /// The objects in which the dynamic linker looks up the symbols that this code refers to.
    #[cfg(all(nccl_linked, not(nccl_archive)))]
    pub(crate) const OWN: Self = Self(ptr::null_mut());
    /// The objects of [`OWN`](Self::OWN) after the object that contains this code.
    #[cfg(all(nccl_linked, not(nccl_archive)))]
    pub(crate) const NEXT: Self = Self(ptr::without_provenance_mut(usize::MAX));

    /// Returns the objects that come first in every lookup: the program, the libraries that it is linked with, and those
    /// loaded with `RTLD_GLOBAL`.
    #[cfg(feature = "dlopen")]
    pub(crate) fn global() -> Self {
        // SAFETY: null is the program, which is loaded.
        Self(unsafe { dlopen(ptr::null(), RTLD_LAZY) })
    }

    /// Returns the scope of a loaded shared library: the library and its dependencies. Returns `None` if it is not loaded. The
    /// library is never unloaded afterwards.
    pub(crate) fn loaded(name: &CStr) -> Option<Self> {
        // SAFETY: a C string; the flags load nothing, and unload nothing.
        let handle = unsafe { dlopen(name.as_ptr(), RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) };
        (!handle.is_null()).then_some(Self(handle))
    }

    /// Returns the address of a symbol, null if no object of the scope defines it.
    pub(crate) fn address(self, name: &CStr) -> *const c_void {
        // SAFETY: a handle that is never closed, or one of the constants of <dlfcn.h>; the name is a C string.
        unsafe { dlsym(self.0, name.as_ptr()) }
    }
}

/// Keeps the shared library that contains this crate, and its dependencies, loaded until the process exits.
///
/// A program can close a plugin that contains this crate while a thread, a signal handler or another library still
/// calls it. The linker flag `-z nodelete` would prevent the unloading, but only the plugin's author can set it.
pub fn keep_loaded() {
    static KEPT: Once = Once::new();
    KEPT.call_once(|| {
        let own: fn() = keep_loaded;
        // In a static program, there is no shared library that could be unloaded.
        let _ = Object::at(own as *const c_void).and_then(|object| object.scope());
    });
}
