//! The objects that the dynamic linker has loaded, and the libraries that they need.

use std::env;
use std::ffi::{CStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

const SONAME: &CStr = if cfg!(feature = "cuda-13") { c"libcudart.so.13" } else { c"libcudart.so.12" };

/// The first fields of `struct link_map` in `<link.h>`.
#[repr(C)]
struct Object {
    address: usize,
    name: *const c_char,
    dynamic: *const Entry,
    next: *const Object,
}

/// An entry of an object's dynamic section: `ElfW(Dyn)`.
#[repr(C)]
struct Entry {
    tag: isize,
    value: usize,
}

const END: isize = 0;
const NEEDED: isize = 1;
const STRING_TABLE: isize = 5;

/// Returns whether this library is in the process only because it is preloaded: no loaded object needs it.
pub(crate) fn is_only_preloaded() -> bool {
    let preloaded = env::var_os("LD_PRELOAD").unwrap_or_default();
    let mut files = preloaded.as_bytes().split(|byte| b": ".contains(byte));
    let is_own = |file: &[u8]| file.rsplit(|byte| *byte == b'/').next() == Some(SONAME.to_bytes());
    files.any(is_own) && !is_needed()
}

/// Returns whether a loaded object needs this library.
///
/// Must be called by an initializer, during which the dynamic linker does not change its list.
fn is_needed() -> bool {
    let mut object: *const Object = ptr::null();
    // SAFETY: the handle of the program, whose link map, the first one, is stored.
    unsafe {
        let program = libc::dlopen(ptr::null(), libc::RTLD_LAZY);
        if program.is_null()
            || libc::dlinfo(program, libc::RTLD_DI_LINKMAP, (&raw mut object).cast::<c_void>()) != 0
        {
            return true;
        }
    }
    // SAFETY: the list of the dynamic linker, which ends with null.
    while let Some(Object { address, dynamic, next, .. }) = unsafe { object.as_ref() } {
        // SAFETY: a loaded object's dynamic section.
        if unsafe { needs(*address, *dynamic) } {
            return true;
        }
        object = *next;
    }
    false
}

/// # Safety
/// `dynamic` must be null, or the dynamic section of an object that is loaded at `address`.
unsafe fn needs(address: usize, dynamic: *const Entry) -> bool {
    let entries = || {
        let mut next = dynamic;
        std::iter::from_fn(move || {
            // SAFETY: entries up to the terminating entry.
            let entry = unsafe { next.as_ref() }.filter(|entry| entry.tag != END)?;
            next = next.wrapping_add(1);
            Some(entry)
        })
    };
    let Some(strings) = entries().find(|entry| entry.tag == STRING_TABLE) else { return false };
    // The dynamic linker has replaced the offset by an address, except in the kernel's object, which it cannot write.
    let strings = if strings.value < address { address + strings.value } else { strings.value };
    // SAFETY: an offset in the object's table of strings.
    let name = |entry: &Entry| unsafe { CStr::from_ptr(ptr::with_exposed_provenance(strings + entry.value)) };
    entries().any(|entry| entry.tag == NEEDED && name(entry) == SONAME)
}
