//! The objects in which symbols are looked up.

use std::ffi::{CStr, c_char, c_int, c_void};

const RTLD_LAZY: c_int = 1;
const RTLD_NOLOAD: c_int = 4;
const RTLD_NODELETE: c_int = 0x1000;

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(scope: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The objects in which a symbol is looked up, in order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope(*mut c_void);

impl Scope {
    /// The objects in which the dynamic linker looks up what this code refers to.
    #[cfg(all(nccl_linked, not(nccl_archive)))]
    pub(crate) const OWN: Self = Self(std::ptr::null_mut());
    /// The objects of [`OWN`](Self::OWN) that come after the one with this code.
    #[cfg(all(nccl_linked, not(nccl_archive)))]
    pub(crate) const NEXT: Self = Self(std::ptr::without_provenance_mut(usize::MAX));

    /// Returns the objects in which the dynamic linker looks up what any object refers to, before its own: the program,
    /// what it is linked with, and what was loaded with `RTLD_GLOBAL`.
    #[cfg(feature = "dlopen")]
    pub(crate) fn global() -> Self {
        // SAFETY: null is the program, which is loaded.
        Self(unsafe { dlopen(std::ptr::null(), RTLD_LAZY) })
    }

    /// Returns the scope of a shared library that is loaded, itself and what it needs; `None` if it is not. It is never
    /// unloaded from then on.
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
