//! Finding the driver, for the runtime library and the management library.

#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

const LIBRARY: &str = "libcuda.so.1";

/// Opens the driver that is in the process already, else the one beside this library, else the dynamic linker's.
#[must_use]
pub fn open() -> Option<Library> {
    let open = |file: &OsStr, flags| {
        // SAFETY: the initialisers of a libcuda.so.1 keep Rust's rules, as those of any library that programs use.
        unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL | flags) }.ok()
    };
    open(LIBRARY.as_ref(), libc::RTLD_NOLOAD)
        .or_else(|| open(beside()?.as_os_str(), 0))
        .or_else(|| open(LIBRARY.as_ref(), 0))
}

/// Returns the path of the driver beside this library.
fn beside() -> Option<PathBuf> {
    let mut information = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let own: fn() -> Option<PathBuf> = beside;
    // SAFETY: `information` is valid for a write, and any address may be asked for.
    let found = unsafe { libc::dladdr(own as *const c_void, &raw mut information) };
    if found == 0 || information.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr found a file, whose name is a C string that lives as long as the library is loaded.
    let file = unsafe { CStr::from_ptr(information.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(file.to_bytes())).with_file_name(LIBRARY))
}
