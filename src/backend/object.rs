//! The objects that the dynamic linker has loaded: the program and its shared libraries.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use super::mapped;

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

/// A loaded object.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Object {
    base: usize,
    /// The file's name as the dynamic linker has it, which may be relative to the current directory of an earlier time.
    name: CString,
}

impl Object {
    /// Returns the object with the code or data at `address`.
    pub(super) fn at(address: *const c_void) -> Option<Self> {
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
    pub(super) fn path(&self) -> Option<PathBuf> {
        let name = Path::new(OsStr::from_bytes(self.name.to_bytes()));
        if name.is_absolute() { std::fs::canonicalize(name).ok() } else { mapped::file_of(self.base) }
    }

    /// Returns the scope of this object, a shared library: itself and what it needs. It is never unloaded from then on.
    #[cfg(all(nccl_linked, not(nccl_archive)))]
    pub(super) fn scope(&self) -> Option<Scope> {
        const RTLD_LAZY: c_int = 1;
        const RTLD_NOLOAD: c_int = 4;
        // SAFETY: a C string; the flag says that nothing is to be loaded.
        let handle = unsafe { dlopen(self.name.as_ptr(), RTLD_LAZY | RTLD_NOLOAD) };
        (!handle.is_null()).then_some(Scope(handle))
    }
}

/// The objects in which a symbol is looked up, in order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scope(*mut c_void);

impl Scope {
    /// The objects in which the dynamic linker looks up what this code refers to.
    #[cfg(all(nccl_linked, not(nccl_archive)))]
    pub(super) const OWN: Self = Self(ptr::null_mut());
    /// The objects of [`OWN`](Self::OWN) that come after the one with this code.
    #[cfg(all(nccl_linked, not(nccl_archive)))]
    pub(super) const NEXT: Self = Self(ptr::without_provenance_mut(usize::MAX));

    /// Returns the objects in which the dynamic linker looks up what any object refers to, before its own: the program, what it is linked with, and what was loaded with `RTLD_GLOBAL`.
    #[cfg(feature = "dlopen")]
    pub(super) fn global() -> Self {
        const RTLD_LAZY: c_int = 1;
        // SAFETY: null is the program, which is loaded.
        Self(unsafe { dlopen(ptr::null(), RTLD_LAZY) })
    }

    /// Returns the address of a symbol, null if no object of the scope defines it.
    pub(super) fn address(self, name: &CStr) -> *const c_void {
        // SAFETY: a handle that is never closed, or one of the constants of <dlfcn.h>; the name is a C string.
        unsafe { dlsym(self.0, name.as_ptr()) }
    }
}
