//! The objects that the dynamic linker has loaded: the program and its shared libraries.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

#[cfg(all(nccl_linked, not(nccl_archive)))]
use super::Scope;
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
    pub(crate) fn path(&self) -> Option<PathBuf> {
        let name = Path::new(OsStr::from_bytes(self.name.to_bytes()));
        if name.is_absolute() { std::fs::canonicalize(name).ok() } else { mapped::file_of(self.base) }
    }

    /// Returns the scope of this object, `None` if it is the program. The object is never unloaded from then on.
    #[cfg(all(nccl_linked, not(nccl_archive)))]
    pub(crate) fn scope(&self) -> Option<Scope> {
        Scope::loaded(&self.name)
    }
}
