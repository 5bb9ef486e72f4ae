//! The objects that the dynamic linker has loaded: the program and its shared libraries.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::Once;

use super::Scope;

#[repr(C)]
struct Info {
    file: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    symbol_address: *mut c_void,
}

unsafe extern "C" {
    fn dladdr(address: *const c_void, info: *mut Info) -> c_int;
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Object {
    base: usize,
    /// The file's name as the dynamic linker has it, which may be relative to the current directory of an earlier time.
    name: CString,
}

impl Object {
    /// Returns the object with the code or data at `address`.
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

    /// Returns the object's file. Asking the dynamic linker, as [`at`](Self::at) does, takes a microsecond; reading
    /// /proc/self/maps takes 30 to 60.
    #[cfg(any(feature = "dlopen", all(nccl_linked, not(nccl_archive))))]
    pub(crate) fn path(&self) -> Option<std::path::PathBuf> {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        use std::path::Path;

        let name = Path::new(OsStr::from_bytes(self.name.to_bytes()));
        if name.is_absolute() { std::fs::canonicalize(name).ok() } else { super::mapped::file_of(self.base) }
    }

    /// Returns the scope of this object, `None` if it is the program. The object is never unloaded from then on.
    pub(crate) fn scope(&self) -> Option<Scope> {
        Scope::loaded(&self.name)
    }
}

/// Keeps the object with this code, and what it is linked with, loaded until the process ends.
///
/// A plugin that contains this crate can be closed by the program while a thread, a signal handler or another library still
/// calls it. The linker flag `-z nodelete` would prevent the unloading, but only the plugin's author can set it.
pub fn keep_loaded() {
    static KEPT: Once = Once::new();
    KEPT.call_once(|| {
        let own: fn() = keep_loaded;
        // Without an object, as in a static program, nothing can be unloaded.
        let _ = Object::at(own as *const c_void).and_then(|object| object.scope());
    });
}
