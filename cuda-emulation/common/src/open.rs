//! Finding the driver, for the runtime library and the management library.

#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

const LIBRARY: &str = "libcuda.so.1";

/// Opens the driver that the process has loaded, or else the driver in this library's directory, or else the one that the dynamic
/// linker finds.
pub fn open() -> Option<Library> {
    let open = |file: &OsStr, flags| {
        // SAFETY: the initializers of a libcuda.so.1 keep Rust's rules, as for any library that programs use.
        unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL | flags) }.ok()
    };
    open(LIBRARY.as_ref(), libc::RTLD_NOLOAD)
        .or_else(|| {
            open(object_of(object_of as fn(usize) -> _ as usize)?.with_file_name(LIBRARY).as_ref(), 0)
        })
        .or_else(|| open(LIBRARY.as_ref(), 0))
}

/// Returns the path of the library or program that contains an address.
pub fn object_of(address: usize) -> Option<PathBuf> {
    let mut information = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address is permitted. All pointers of the result may be null, and its name is a C string that lives as long as
    // the object.
    let name = unsafe {
        libc::dladdr(ptr::without_provenance(address), information.as_mut_ptr());
        information.assume_init().dli_fname.as_ref().map(|name| CStr::from_ptr(name))
    };
    name.map(|name| PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}
