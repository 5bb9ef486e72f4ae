//! Linking at build time.

use std::path::PathBuf;

use crate::LoadError;
use crate::sys::Functions;
use crate::sys::device::DeviceFunctions;

/// The linked library.
pub(super) struct Linked {
    pub(super) functions: Functions,
    pub(super) device_functions: DeviceFunctions,
    /// The file with the functions; `None` if the system does not tell.
    pub(super) path: Option<PathBuf>,
}

/// Returns the functions of the archive, which are part of this program.
#[cfg(nccl_archive)]
#[allow(clippy::unnecessary_wraps)]
pub(super) fn library() -> Result<Linked, LoadError> {
    unsafe extern "C" {
        /// The table that `build.rs` compiles from C. It has weak references to functions newer than NCCL 2.13.4, which
        /// are null if the archive lacks them.
        #[link_name = env!("LIBNCCL_FUNCTIONS")]
        static FUNCTIONS: Functions;
        #[link_name = env!("LIBNCCL_DEVICE_FUNCTIONS")]
        static DEVICE_FUNCTIONS: DeviceFunctions;
    }
    // SAFETY: constant arrays of function pointers, as many and in the same order as the tables' fields: both are
    // generated from the same list, of which the name has a hash, and a null pointer is `None`. Nothing writes to them.
    let (functions, device_functions) = unsafe { (FUNCTIONS, DEVICE_FUNCTIONS) };
    let path = functions.ncclGetVersion.and_then(|function| super::mapped::file_of(function as usize));
    Ok(Linked { functions, device_functions, path })
}

/// Returns the functions of the shared library that the dynamic linker loaded for this program.
///
/// The program refers to one function, which makes it need the library, and looks up all others. If it referred to all,
/// weakly where a release lacks the function, its linker would decide what it sees: many drop a weak reference that the
/// library of the build lacks, and some let a call of one that the library of the run lacks jump to address 0.
#[cfg(not(nccl_archive))]
pub(super) fn library() -> Result<Linked, LoadError> {
    use std::ffi::{CStr, c_void};

    use super::object::{Object, Scope};
    use crate::Attempt;

    let this = Object::at(library as *const c_void);
    let mut object = Object::at(crate::sys::linked::ncclGetVersion as *const c_void);
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
    let address_of = |name: &CStr| {
        let own = scope.address(name);
        // A profiler that is loaded before the library may have functions of the same names, which then call the
        // library's. It is used as the dynamic linker would use it, but not if the library lacks the function: whose
        // function this is would not be known.
        let first = Scope::OWN.address(name);
        if own.is_null() || first == own || Object::at(first) == this { own } else { first }
    };
    // SAFETY: functions with the names that the header declares, of the library that the program is linked with, or of
    // one that was loaded to be called in its place. `scope` keeps the library loaded.
    unsafe {
        Ok(Linked {
            functions: Functions::from_addresses(address_of),
            device_functions: DeviceFunctions::from_addresses(address_of),
            path,
        })
    }
}
