//! NCCL linked at build time.

use super::{Backend, Found};
use crate::error::LoadError;
use crate::sys::Functions;
use crate::sys::device::DeviceFunctions;

/// Returns the functions of the archive, which are part of this program.
///
/// They come from a table in C, not from the `extern` block: a program cannot look up its own functions by name, so the
/// newer functions must be weak references, which Rust lacks.
#[cfg(nccl_archive)]
pub(super) fn library() -> Result<(Found, Backend), LoadError> {
    use crate::dynamic_linker::mapped_file_at;

    unsafe extern "C" {
        /// The table that the build script compiles from C. Functions newer than NCCL 2.13.4 are weak references, which are
        /// null if the archive lacks them.
        #[link_name = env!("LIBNCCL_FUNCTIONS")]
        static FUNCTIONS: Functions;
        #[link_name = env!("LIBNCCL_DEVICE_FUNCTIONS")]
        static DEVICE_FUNCTIONS: DeviceFunctions;
    }
    // SAFETY: constant arrays of function pointers, as many and in the same order as the tables' fields: both are
    // generated from the same list, whose hash is in the names, and a null pointer is `None`. Nothing writes to them.
    let (functions, device_functions) = unsafe { (FUNCTIONS, DEVICE_FUNCTIONS) };
    let found = Found::new(functions, device_functions, true);
    let path = mapped_file_at(found.own[0]);
    Ok((found, Backend::Linked { path }))
}

/// Returns the functions of the shared library that the dynamic linker loaded for this program.
///
/// The functions of NCCL 2.13.4 come from the `extern` block: the linker and the dynamic linker ensure that the program has them.
/// Newer ones are looked up in the same library. Weak references would depend on the program's linker. Many linkers drop a weak
/// reference that the library at build time lacks. With some, calling a function that the library at run time lacks jumps to
/// address 0.
#[cfg(not(nccl_archive))]
pub(super) fn library() -> Result<(Found, Backend), LoadError> {
    use std::ffi::{CString, c_void};

    use super::OF_OTHERS;
    use crate::dynamic_linker::{Object, Scope};
    use crate::error::Attempt;
    use crate::sys::{device_functions_by_release, functions_by_release, linked};

    let this = Object::at(library as *const c_void);
    let mut object = Object::at(linked::ncclGetVersion as *const c_void);
    if object == this {
        // A program that is not position-independent may have a stub for a function whose address it uses. The
        // library's own function comes next.
        object = Object::at(Scope::NEXT.address(c"ncclGetVersion"));
    }
    let path = object.as_ref().and_then(Object::path);
    let Some(scope) = object.as_ref().and_then(Object::scope) else {
        let problem =
            "has ncclGetVersion and is not a shared library: it is a program with a stub of the function, \
                       which a position-independent program does not have"
                .into();
        let attempt = Attempt { source: "linked library", path: path.unwrap_or_default(), problem };
        return Err(LoadError::NotFound { attempts: [attempt].into() });
    };
    let look_up = |name: &str| {
        let name = CString::new(name).unwrap_or_default();
        let own = scope.address(&name);
        // A profiler that is loaded before the library may have functions of the same names, which call the library's. It
        // is used as the dynamic linker would use it, unless the library lacks the function: then its origin is unknown.
        let first = Scope::OWN.address(&name);
        if own.is_null() || first == own || Object::at(first) == this { own } else { first }
    };

    /// Returns the function at an address, `None` for null.
    ///
    /// # Safety
    /// `F` must be a function pointer with the function's signature. `address` must be null or the function's address.
    unsafe fn function<F>(address: *const c_void) -> Option<F> {
        const { assert!(size_of::<Option<F>>() == size_of::<*const c_void>()) };
        // SAFETY: the caller guarantees the signature; a null pointer is `None`.
        unsafe { std::mem::transmute_copy(&address) }
    }

    macro_rules! table {
        ($table:ident; oldest: $($oldest:ident)*; newer: $($newer:ident)*;) => {
            $table {
                $($oldest: Some(linked::$oldest),)*
                // SAFETY: a function with a name that the header declares, of the library that the program is linked
                // with, or of an interposer. `scope` keeps the library loaded.
                $($newer: unsafe { function(look_up(stringify!($newer))) },)*
            }
        };
    }
    let mut found = Found::new(
        functions_by_release!(table, Functions),
        device_functions_by_release!(table, DeviceFunctions),
        OF_OTHERS.iter().all(|name| scope.address(name).is_null()),
    );
    // The table may have others: stubs in a program at a fixed address, or a profiler's functions.
    found.own = [c"ncclGroupStart", c"ncclGetUniqueId"].map(|name| scope.address(name) as usize);
    Ok((found, Backend::Linked { path }))
}
