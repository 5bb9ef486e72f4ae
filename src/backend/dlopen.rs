//! Run-time loading.

use std::env;
use std::error::Error as _;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Backend, Library, elf};
use crate::sys::{Functions, device::DeviceFunctions, dynamic::NcclLibrary};
use crate::{Attempt, LoadError};

/// The first candidate that works. A program that links NCCL has no need to search for it.
#[cfg(not(nccl_linked))]
pub(super) fn search() -> Result<Arc<Library>, LoadError> {
    use super::search::{Candidate, PATH_VARIABLE, candidates};

    // Whoever starts a set-uid program must not choose its code.
    let variable = |name: &str| if is_set_uid() { None } else { env::var_os(name) };
    let mut attempts = Vec::new();
    if variable(PATH_VARIABLE).is_none() {
        attempts.push(Attempt { source: PATH_VARIABLE, path: PathBuf::new(), problem: "not set".into() });
    }
    for Candidate { source, path } in candidates(variable) {
        // SAFETY: the names and places are those where a system keeps its NCCL, or are named by whoever
        // controls the environment, and with it the dynamic linker (LD_LIBRARY_PATH, LD_PRELOAD) anyway. What
        // is found there under NCCL's name and answers ncclGetVersion is taken for NCCL, as a linked program
        // takes it.
        match unsafe { tables(&path) } {
            // SAFETY: as above.
            Ok(found) => return unsafe { library(found, source, path, attempts) },
            Err(problem) => attempts.push(Attempt { source, path, problem }),
        }
    }
    Err(LoadError::NotLoaded { attempts: attempts.into() })
}

/// Exactly this file.
///
/// # Safety
/// The file, if it is a shared object with NCCL's functions, is an implementation of NCCL's C API, and loading
/// it does no harm.
pub(super) unsafe fn open(path: &Path) -> Result<Arc<Library>, LoadError> {
    const SOURCE: &str = "given path";
    // A bare name would be searched for; a file is meant.
    let file = if is_bare_name(path) { Path::new(".").join(path) } else { path.into() };
    // SAFETY: the caller's promise.
    match unsafe { tables(&file) } {
        // SAFETY: as above.
        Ok(found) => unsafe { library(found, SOURCE, file, Vec::new()) },
        Err(problem) => {
            let attempt = Attempt { source: SOURCE, path: path.into(), problem };
            Err(LoadError::NotLoaded { attempts: [attempt].into() })
        }
    }
}

/// What a file has.
struct Found {
    functions: Functions,
    device_functions: DeviceFunctions,
    is_rccl: bool,
}

/// # Safety
/// As for [`Library::new`].
unsafe fn library(
    Found { functions, device_functions, is_rccl }: Found,
    source: &'static str,
    path: PathBuf,
    passed_over: Vec<Attempt>,
) -> Result<Arc<Library>, LoadError> {
    // The file that a bare name led to.
    let file = functions.ncclGetVersion.and_then(|function| loaded_from(function as *const c_void));
    let backend = Backend::Loaded { path: file.unwrap_or(path), source, passed_over };
    // SAFETY: the caller's promise.
    unsafe { Library::new(functions, device_functions, backend, is_rccl) }
}

/// Loads a library, for good, and looks up its functions; the error says why that cannot be.
///
/// # Safety
/// As for [`open`].
unsafe fn tables(path: &Path) -> Result<Found, String> {
    /// A function that every RCCL has and no NCCL, to know it under whatever name the file has.
    const OF_RCCL: &str = "ncclAllToAllv";
    if is_bare_name(path) {
        check_library_path(path)?;
    } else {
        elf::check(path)?;
    }
    // SAFETY: the caller's promise.
    let library = unsafe { load(path) }.map_err(|error| explanation(&error))?;
    // SAFETY: these too have the signatures of their header, and the library is never unloaded.
    let device_functions = unsafe { DeviceFunctions::of(&library) };
    // SAFETY: the symbol is looked up, and not used.
    let is_rccl = unsafe { library.get::<*const c_void>(OF_RCCL) }.is_ok();
    // SAFETY: the struct's fields have the header's signatures, as the library's functions do by the caller's
    // promise; absent functions are errors in it.
    let library = unsafe { NcclLibrary::from_library(library) }.map_err(|error| explanation(&error))?;
    let functions = Functions::from(&library);
    if functions.ncclGetVersion.is_none() {
        return Err("is a shared object without NCCL's functions (no ncclGetVersion)".into());
    }
    // Never unloaded: NCCL starts threads that would run on in unmapped code, which crashed 50 to 90 % of the
    // runs measured with releases up to 2.30.4.
    let _: ManuallyDrop<NcclLibrary> = ManuallyDrop::new(library);
    Ok(Found { functions, device_functions, is_rccl })
}

/// # Safety
/// As for [`open`].
#[cfg(unix)]
unsafe fn load(path: &Path) -> Result<libloading::Library, libloading::Error> {
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
    // All symbols now: a library that lacks one of its own dependencies' functions is an error here and not a
    // crash in the middle of a job.
    // SAFETY: the caller's promise.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map(Into::into)
}

/// # Safety
/// As for [`open`].
#[cfg(not(unix))]
unsafe fn load(path: &Path) -> Result<libloading::Library, libloading::Error> {
    // SAFETY: the caller's promise.
    unsafe { libloading::Library::new(path) }
}

/// Whether the dynamic linker would search for it: `dlopen` takes a name without a slash so.
fn is_bare_name(path: &Path) -> bool {
    path.components().count() == 1 && !path.is_absolute()
}

/// The dynamic linker searches `LD_LIBRARY_PATH` itself, and maps a damaged file it finds there: so look first.
fn check_library_path(name: &Path) -> Result<(), String> {
    let directories = env::var_os("LD_LIBRARY_PATH").filter(|_| !is_set_uid()).unwrap_or_default();
    let files = env::split_paths(&directories).map(|directory| directory.join(name));
    match files.filter(|file| file.exists()).map(|file| (elf::check(&file), file)).next() {
        Some((Err(problem), file)) => Err(format!("{}, from LD_LIBRARY_PATH, {problem}", file.display())),
        _ => Ok(()),
    }
}

/// The file that the dynamic linker loaded the code at `address` from. It knows, and in a microsecond; reading
/// /proc/self/maps takes 30 to 60.
#[cfg(target_os = "linux")]
fn loaded_from(address: *const c_void) -> Option<PathBuf> {
    use std::ffi::{CStr, OsStr, c_char, c_int};
    use std::os::unix::ffi::OsStrExt;

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
    let null: *mut c_void = std::ptr::null_mut();
    let mut info = Info { file: null.cast(), base: null, symbol: null.cast(), symbol_address: null };
    // SAFETY: any address may be asked about; `info` is as <dlfcn.h> declares it.
    if unsafe { dladdr(address, &raw mut info) } == 0 || info.file.is_null() {
        return None;
    }
    // SAFETY: a C string that lives as long as the library is loaded, which is for good.
    let file = unsafe { CStr::from_ptr(info.file) };
    std::fs::canonicalize(OsStr::from_bytes(file.to_bytes())).ok()
}

#[cfg(not(target_os = "linux"))]
fn loaded_from(address: *const c_void) -> Option<PathBuf> {
    super::mapped::file_of(address as usize)
}

/// libloading keeps the loader's own words in the error's source.
fn explanation(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(target_os = "linux")]
fn is_set_uid() -> bool {
    const AT_SECURE: std::ffi::c_ulong = 23;
    unsafe extern "C" {
        safe fn getauxval(kind: std::ffi::c_ulong) -> std::ffi::c_ulong;
    }
    getauxval(AT_SECURE) != 0
}

#[cfg(not(target_os = "linux"))]
fn is_set_uid() -> bool {
    false
}
