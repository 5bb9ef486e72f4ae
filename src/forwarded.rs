//! The library to which one that has NCCL's names, and is in the process in its place, passes calls on.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::path::{Path, PathBuf};

use crate::backend::search::{Candidate, candidates};
use crate::backend::{Found, PATH_VARIABLE, dlopen, lock_parameters, memory_space};
use crate::buffer::MemorySpace;
use crate::dynamic_linker::{bare_name, mapped};
use crate::error::{Attempt, LoadError};
use crate::sys::Functions;
use crate::sys::device::DeviceFunctions;

/// A symbol by which libraries that pass calls on know each other, so that none passes them to another one, and back.
const MARK: &str = "libnccl_trace";

/// The functions of the library that does the work, for `libnccl-trace.so`: no part of the API.
#[derive(Debug)]
pub struct Forwarded {
    /// The functions of `nccl.h`.
    pub functions: Functions,
    /// The functions of the device API.
    pub device_functions: DeviceFunctions,
    /// The file.
    pub path: PathBuf,
}

impl Forwarded {
    /// Returns the memory space of buffers.
    #[must_use]
    pub fn memory_space(&self) -> MemorySpace {
        // SAFETY: the caller of `forwarded` has guaranteed that the functions are NCCL's.
        unsafe { memory_space(&self.functions) }
    }

    /// Calls a function; one of the parameter functions, `ncclParam*`, when no other thread calls one, such as
    /// [`memory_space`](Self::memory_space).
    #[inline]
    pub fn call<R>(&self, is_of_parameters: bool, function: impl FnOnce() -> R) -> R {
        let _one_at_a_time = is_of_parameters.then(|| lock_parameters(&self.functions));
        function()
    }
}

/// Returns the NCCL that this process would use without those that pass calls on: exactly the one that the environment
/// variable names, if it is set; or one that is in the process; or one that a run-time path of a loaded object leads to; or
/// else the one that the search of this crate finds.
///
/// # Errors
/// [`LoadError::NotFound`], with all places.
///
/// # Safety
/// As for [`Nccl::load`](crate::nccl::Nccl::load): the files there that have NCCL's functions are NCCL.
pub unsafe fn forwarded(variable: &'static str) -> Result<Forwarded, LoadError> {
    let mut attempts = Vec::new();
    let given = crate::environment::variable(variable).filter(|value| !value.is_empty());
    if let Some(given) = &given {
        let path = Path::new(".").join(given);
        // SAFETY: the caller guarantees it.
        match unsafe { load(&path) } {
            Ok(found) => return Ok(found),
            Err(problem) => attempts.push(Attempt { source: variable, path, problem }),
        }
        return Err(LoadError::NotFound { attempts: attempts.into() });
    }
    // SAFETY: the caller guarantees it.
    if let Some(found) = unsafe { in_process() } {
        return Ok(found);
    }
    for (source, path) in places() {
        let (path, problem) = match path {
            // SAFETY: the caller guarantees it.
            Ok(path) => match unsafe { load(&path) } {
                Ok(found) => return Ok(found),
                Err(problem) => (path, problem),
            },
            Err(reason) => (PathBuf::new(), reason.into()),
        };
        attempts.push(Attempt { source, path, problem });
    }
    Err(LoadError::NotFound { attempts: attempts.into() })
}

/// Loads a file.
///
/// # Safety
/// As for [`forwarded`].
unsafe fn load(path: &Path) -> Result<Forwarded, String> {
    // SAFETY: the caller guarantees it. Calls of NCCL's own functions may come back to the caller's: it expects that.
    unsafe { dlopen::load_functions(path, check_mark) }.map(|found| new(found, path.into()))
}

fn new(found: Found, path: PathBuf) -> Forwarded {
    let Found { functions, device_functions, .. } = found;
    Forwarded { functions, device_functions, path }
}

/// Fails if the object with this function passes calls on.
fn check_mark(function: *const c_void) -> Result<(), String> {
    let file = dlopen::file_of_code(function).ok_or("has code that belongs to no file")?;
    let library = bare_name::loaded(&file).map_err(|error| dlopen::loader_message(&error))?;
    // SAFETY: the symbol is looked up, and not used.
    match unsafe { library.get::<*const c_void>(MARK) } {
        Ok(_) => Err("records calls, and is not NCCL".into()),
        Err(_) => Ok(()),
    }
}

/// Returns the NCCL that is in the process: linked under another name, preloaded, or opened by its path.
///
/// # Safety
/// As for [`forwarded`].
unsafe fn in_process() -> Option<Forwarded> {
    mapped::files().into_iter().find_map(|file| {
        let library = bare_name::loaded(&file).ok()?;
        // SAFETY: the symbol is looked up, and not used.
        unsafe { library.get::<*const c_void>("ncclGetVersion") }.ok()?;
        // A library that is linked with NCCL gives access to its functions too.
        let is_its_own = |function| match dlopen::file_of_code(function) {
            Some(found) if found == file => check_mark(function),
            _ => Err(String::new()),
        };
        // SAFETY: the caller guarantees it.
        let found = unsafe { dlopen::functions_of(library.into(), is_its_own) }.ok()?;
        Some(new(found, file))
    })
}

/// Returns the files that may be NCCL, in the order of the search, or the reason why a place names none.
fn places() -> impl Iterator<Item = (&'static str, Result<PathBuf, &'static str>)> {
    const NAME: &str = "libnccl.so.2";
    let general: Vec<_> = bare_name::files(Path::new(NAME), None).collect();
    let known = general.clone();
    let of_objects = mapped::files().into_iter().flat_map(move |object| {
        let known = known.clone();
        let files = bare_name::files(Path::new(NAME), Some(&object));
        files.filter(move |file| !known.contains(file) && file.is_file()).collect::<Vec<_>>()
    });
    let variable = |name: &str| match crate::environment::variable(name).filter(|value| !value.is_empty()) {
        // It would be the only place, and is the one that the program opens.
        Some(value) if name != PATH_VARIABLE => Ok(value.into()),
        _ => Err("not set"),
    };
    let is_bare = |path: &PathBuf| path.components().count() == 1;
    let others = candidates(variable).flat_map(move |Candidate { source, path }| match path {
        Ok(path) if is_bare(&path) => {
            let files = bare_name::files(&path, None).filter(|file| file.is_file());
            files.map(|file| (source, Ok(file))).collect()
        }
        path => vec![(source, path)],
    });
    of_objects.map(|file| ("run-time path", Ok(file))).chain(others.collect::<Vec<_>>())
}
