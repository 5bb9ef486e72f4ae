//! Loading NCCL at run time, on Linux.

use std::error::Error as _;
use std::ffi::c_void;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::{Backend, Found, OF_OTHERS};
#[cfg(target_env = "gnu")]
use crate::dynamic_linker::search;
use crate::dynamic_linker::{Object, Scope, elf};
use crate::error::{Attempt, LoadError};
use crate::sys::dynamic::NcclLibrary;

/// Loads the first candidate that works. A program that links NCCL does not need to search.
#[cfg(not(nccl_linked))]
pub(crate) fn search() -> Result<(Found, Backend), LoadError> {
    use super::search::{Candidate, candidates};
    use crate::environment::{is_set, variable};

    // The user who starts a set-uid program must not be able to choose its code.
    let value = |name: &str| match variable(name).filter(|value| !value.is_empty()) {
        Some(value) => Ok(value.into()),
        None if is_set(name) => Err("ignored, as this program has more rights than the user who started it"),
        None => Err("not set"),
    };
    let mut attempts = Vec::new();
    for Candidate { source, path } in candidates(value) {
        let (path, problem) = match path {
            // SAFETY: the candidates are where a system keeps its NCCL, or are named by the user who controls the
            // environment, and with it the dynamic linker (LD_LIBRARY_PATH, LD_PRELOAD). As in a linked program, a library
            // there with NCCL's name and functions is NCCL.
            Ok(path) => match unsafe { load_functions(&path, check_calls) } {
                Ok(found) => return Ok(loaded(found, source, path, attempts)),
                Err(problem) => (path, problem),
            },
            Err(reason) => (PathBuf::new(), reason.into()),
        };
        attempts.push(Attempt { source, path, problem });
    }
    #[cfg(target_env = "gnu")]
    attempts.iter_mut().for_each(name_full_version);
    Err(LoadError::NotFound { attempts: attempts.into() })
}

/// Adds a hint to a failed attempt with a bare name, such as `libnccl.so.2`: a file with a longer version in its name, which the
/// dynamic linker does not look for.
#[cfg(all(not(nccl_linked), target_env = "gnu"))]
fn name_full_version(attempt: &mut Attempt) {
    if !is_bare_name(&attempt.path) || attempt.path.extension() == Some("so".as_ref()) {
        return;
    }
    let caller = file_of_code(load_by_name as *const c_void);
    let mut absent = search::files(&attempt.path, caller.as_deref()).filter(|file| !file.exists());
    if let Some(file) = absent.find_map(|file| super::search::with_full_version(&file)) {
        attempt.problem += &format!("; set {} to {}", super::PATH_VARIABLE, file.display());
    }
}

/// Loads exactly this file.
///
/// # Safety
/// As for [`load_functions`].
pub(crate) unsafe fn open(path: &Path) -> Result<(Found, Backend), LoadError> {
    const SOURCE: &str = "given path";
    // `dlopen` would search for a bare name; the caller means a file.
    let file = Path::new(".").join(path);
    // SAFETY: the caller guarantees that the file, if it has NCCL's functions, is NCCL.
    match unsafe { load_functions(&file, check_calls) } {
        Ok(found) => Ok(loaded(found, SOURCE, file, Vec::new())),
        Err(problem) => {
            let attempt = Attempt { source: SOURCE, path: path.into(), problem };
            Err(LoadError::NotFound { attempts: [attempt].into() })
        }
    }
}

/// Returns the functions and their backend. The backend names the file that a bare name was resolved to.
fn loaded(found: Found, source: &'static str, path: PathBuf, rejected: Vec<Attempt>) -> (Found, Backend) {
    let file = found.functions.ncclGetVersion.and_then(|function| file_of_code(function as *const c_void));
    (found, Backend::Loaded { path: file.unwrap_or(path), source, rejected })
}

/// Loads a library and looks up NCCL's functions in it. The library is never unloaded. `check` is called with the address of
/// `ncclGetVersion`.
///
/// # Errors
/// Returns the reason if the file cannot be loaded or is not NCCL. If `check` fails, returns its error.
///
/// # Safety
/// Loading a library runs its code, which must be sound. If the file is a shared object with functions that have NCCL's names,
/// these must have the signatures and contracts of NCCL's functions.
pub unsafe fn load_functions(
    path: &Path,
    check: impl FnOnce(*const c_void) -> Result<(), String>,
) -> Result<Found, String> {
    let library: libloading::Library = if is_bare_name(path) {
        // SAFETY: as for this function.
        unsafe { load_by_name(path) }?
    } else {
        elf::check(path).map_err(|error| error.to_string())?;
        // The dynamic linker reports the path that it is given, which must be valid after a change of directory too.
        let file = std::path::absolute(path).map_err(|error| error.to_string())?;
        // SAFETY: the caller guarantees that loading the file does no harm.
        unsafe { load(&file) }?
    }
    .into();
    // SAFETY: the symbols are looked up, and not used.
    let refuses_null = !OF_OTHERS.iter().any(|name| unsafe { library.get::<*const c_void>(*name) }.is_ok());
    // SAFETY: the caller guarantees that the functions have the header's signatures.
    let library = unsafe { NcclLibrary::from_library(library) }.map_err(|error| loader_message(&error))?;
    let get_version = match library.ncclGetVersion {
        Ok(get_version) => get_version as *const c_void,
        Err(_) => return Err("is a shared object without NCCL's functions (no ncclGetVersion)".into()),
    };
    check(get_version)?;
    let found = Found::new((&library).into(), (&library).into(), refuses_null);
    // Never unloaded: NCCL starts threads that would go on running unmapped code, which crashed 50 to 90 % of the runs
    // measured with versions up to 2.30.4. (The reasons why functions are absent stay too, some kilobytes at most.)
    std::mem::forget(library);
    Ok(found)
}

/// # Safety
/// As for [`open`].
unsafe fn load(path: &Path) -> Result<Library, String> {
    // RTLD_NOW resolves all symbols: if a dependency lacks a function, that is an error here and not a crash in the
    // middle of a job.
    // SAFETY: the caller guarantees that loading the file does no harm.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        let message = loader_message(&error);
        // If glibc's dynamic linker does not find a dependency, its message looks like the one for an absent library.
        match message.split_once(": cannot open shared object file: ") {
            Some((dependency, reason)) if Path::new(dependency) != path => {
                format!("it needs {dependency}, which cannot be opened: {reason}")
            }
            _ => message,
        }
    })
}

/// Returns whether the dynamic linker would search for the file: `dlopen` searches for names without a slash.
fn is_bare_name(path: &Path) -> bool {
    path.components().count() == 1 && !path.is_absolute()
}

/// Returns the library of this name if it is already loaded; otherwise loads the file that the dynamic linker finds.
///
/// # Safety
/// As for [`open`].
unsafe fn load_by_name(name: &Path) -> Result<Library, String> {
    cfg_if::cfg_if! {
        if #[cfg(target_env = "gnu")] {
            let absent = match search::loaded(name) {
                Ok(library) => return Ok(library),
                Err(error) => loader_message(&error),
            };
            let caller = file_of_code(load_by_name as *const c_void);
            let file = search::find(name, caller.as_deref())?.ok_or(absent)?;
            // SAFETY: the caller guarantees that loading the file does no harm.
            unsafe { load(&file) }
        } else {
            // SAFETY: the caller guarantees that loading the file does no harm.
            unsafe { load(name) }
        }
    }
}

/// Returns the file from which the dynamic linker loaded the code at `address`.
#[must_use]
pub fn file_of_code(address: *const c_void) -> Option<PathBuf> {
    Object::at(address)?.path()
}

/// Checks that the library with the function at `get_version` would not call another NCCL's functions.
///
/// NCCL calls its own exported functions through the dynamic linker, which takes the first function with the name. That function
/// belongs to another NCCL if the program is linked with one, or has loaded one with `RTLD_GLOBAL`. `RTLD_DEEPBIND` would reverse
/// the order for every function that the library calls, `malloc` and `operator new` too: in programs with their own allocator,
/// one allocator would free the other's memory. The sanitizers refuse the flag for that reason, and musl lacks it.
fn check_calls(get_version: *const c_void) -> Result<(), String> {
    let global = Scope::global().address(c"ncclGetVersion");
    if global.is_null() || Object::at(global) == Object::at(get_version) {
        return Ok(());
    }
    let other = file_of_code(global).unwrap_or_default();
    Err(format!(
        "calls of its own functions would go to those of {}, with which the program is linked or which was loaded \
         with RTLD_GLOBAL; only that one can be used in this process",
        other.display()
    ))
}

/// Returns the dynamic linker's message, which libloading stores in the error's source.
fn loader_message(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}
