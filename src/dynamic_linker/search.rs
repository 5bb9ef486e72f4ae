//! The dynamic linker's search for a bare name (`man ld.so`), without mapping a file: the dynamic linker maps truncated
//! files unchecked, which ends the process with SIGBUS.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fs, iter};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::elf;
use crate::places::{LINKER_CACHE, in_linker_cache};

/// Returns the loaded library with this name or SONAME.
pub(crate) fn loaded(name: &Path) -> Result<Library, libloading::Error> {
    const RTLD_NOLOAD: c_int = 4;
    // SAFETY: nothing is loaded, so no code of the library runs.
    unsafe { Library::open(Some(name), RTLD_NOLOAD | RTLD_NOW | RTLD_LOCAL) }
}

/// Returns the file that the dynamic linker would load for a bare name, if any; an error names the file and its defect.
/// `caller` is the program or shared object that loads it: its run-time path is searched first.
///
/// Like the dynamic linker, it skips files of other architectures. The processor-specific directories from before
/// `glibc-hwcaps` are not searched.
pub(crate) fn find(name: &Path, caller: Option<&Path>) -> Result<Option<PathBuf>, String> {
    use ErrorKind::{NotADirectory, NotFound, PermissionDenied, Unsupported};
    for file in files(name, caller) {
        match elf::check(&file).map_err(|error| (error.kind(), error)) {
            Ok(()) => return Ok(Some(file)),
            Err((NotFound | NotADirectory | PermissionDenied | Unsupported, _)) => {}
            Err((_, error)) => {
                return Err(format!("{}, which the dynamic linker finds, {error}", file.display()));
            }
        }
    }
    Ok(None)
}

/// Returns the paths that the dynamic linker would try for `name`, which contains no slash. The files need not exist.
/// `caller` is the program or shared object that loads the file: its run-time path is searched first.
pub fn files(name: &Path, caller: Option<&Path>) -> impl Iterator<Item = PathBuf> {
    let directories = directories(caller);
    let system = system_directories(&directories);
    let (named, system) = directories.split_at(directories.len() - system);
    let in_directories = |directories: &[PathBuf]| -> Vec<PathBuf> {
        let with_levels = directories.iter().flat_map(|directory| {
            processor_levels()
                .map(|level| directory.join("glibc-hwcaps").join(level))
                .chain([directory.clone()])
        });
        with_levels.map(|directory| directory.join(name)).collect()
    };
    let name = name.to_owned();
    let (named, system) = (in_directories(named), in_directories(system));
    let cached = iter::once_with(move || in_linker_cache(&fs::read(LINKER_CACHE).unwrap_or_default(), &name));
    // An empty element of LD_LIBRARY_PATH is a relative path for the dynamic linker too.
    named.into_iter().chain(cached.flatten()).chain(system).filter_map(|file| std::path::absolute(file).ok())
}

/// Returns the directories that the dynamic linker searches for this caller, as it reports them: the caller's run-time
/// path, `LD_LIBRARY_PATH` as it was when the program started, and the system's directories.
fn directories(caller: Option<&Path>) -> Vec<PathBuf> {
    const RTLD_DI_SERINFO: c_int = 4;
    const RTLD_DI_SERINFOSIZE: c_int = 5;
    #[repr(C)]
    struct List {
        size: usize,
        count: c_uint,
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Entry {
        name: *const c_char,
        flags: c_uint,
    }
    unsafe extern "C" {
        fn dlinfo(handle: *mut c_void, request: c_int, argument: *mut c_void) -> c_int;
    }
    // The program itself cannot be opened by its name.
    let handle = caller.and_then(|file| loaded(file).ok()).unwrap_or_else(Library::this).into_raw();
    let mut list = List { size: 0, count: 0 };
    // SAFETY: a handle that is never closed, and the struct that this request fills.
    if unsafe { dlinfo(handle, RTLD_DI_SERINFOSIZE, (&raw mut list).cast()) } != 0 {
        return Vec::new();
    }
    // The list, its entries and their names, aligned for pointers.
    let mut buffer = vec![0_usize; list.size.div_ceil(size_of::<usize>()).max(4)];
    let start = buffer.as_mut_ptr();
    // SAFETY: the buffer has the length that the first request returned and is aligned for a `List`, which the second
    // request reads.
    unsafe { start.cast::<List>().write(list) };
    // SAFETY: as above; the directories do not change while a program runs, so they fit.
    if unsafe { dlinfo(handle, RTLD_DI_SERINFO, start.cast()) } != 0 {
        return Vec::new();
    }
    // SAFETY: the request has stored the number there.
    let count = unsafe { start.cast::<List>().read() }.count as usize;
    // SAFETY: the entries follow the list, as <dlfcn.h> declares; the request has filled `count` of them.
    let entries = unsafe { std::slice::from_raw_parts(start.cast::<List>().add(1).cast::<Entry>(), count) };
    let directory = |entry: &Entry| {
        // SAFETY: a C string in the buffer.
        PathBuf::from(OsStr::from_bytes(unsafe { CStr::from_ptr(entry.name) }.to_bytes()))
    };
    entries.iter().map(directory).collect()
}

/// Returns the number of the system's directories at the end of the list. They are searched after the cache.
fn system_directories(directories: &[PathBuf]) -> usize {
    let architecture = format!("{}-linux-gnu", std::env::consts::ARCH);
    let is_system = |directory: &Path| {
        let parent = directory.parent().filter(|_| directory.ends_with(&architecture));
        let systems = ["/lib", "/usr/lib", "/lib64", "/usr/lib64"];
        systems.iter().any(|system| parent.unwrap_or(directory) == Path::new(system))
    };
    // The first of two equal directories is from LD_LIBRARY_PATH.
    let is_last = |at: usize| !directories[at + 1..].contains(&directories[at]);
    (0..directories.len()).rev().take_while(|&at| is_system(&directories[at]) && is_last(at)).count()
}

/// Returns the directories in `glibc-hwcaps` that this processor can use, the best first.
fn processor_levels() -> impl Iterator<Item = &'static str> {
    #[cfg(target_arch = "x86_64")]
    let levels = {
        use std::arch::is_x86_feature_detected as has;
        let v2 = has!("sse4.2") && has!("popcnt") && has!("ssse3");
        let v3 = v2 && has!("avx2") && has!("bmi2") && has!("fma") && has!("f16c");
        let v3 = v3 && has!("lzcnt") && has!("movbe");
        let v4 = v3 && has!("avx512f") && has!("avx512bw") && has!("avx512cd");
        let v4 = v4 && has!("avx512dq") && has!("avx512vl");
        [("x86-64-v4", v4), ("x86-64-v3", v3), ("x86-64-v2", v2)]
    };
    #[cfg(not(target_arch = "x86_64"))]
    let levels: [(&str, bool); 0] = [];
    levels.into_iter().filter_map(|(level, is_usable)| is_usable.then_some(level))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{directories, find, system_directories};

    const C_LIBRARY: &str = "libc.so.6";

    #[test]
    fn find_gives_the_c_library_that_the_linker_has_loaded() {
        let found = find(Path::new(C_LIBRARY), None).unwrap().unwrap();
        let loaded = super::super::mapped_files();
        assert!(loaded.contains(&std::fs::canonicalize(&found).unwrap()), "{found:?}, {loaded:?}");
        assert_eq!(find(Path::new("libno-such-library.so"), None), Ok(None));
    }

    #[test]
    fn directories_of_the_linker_end_with_the_system_s() {
        let all = directories(None);
        let system = system_directories(&all);
        assert!(system >= 2 && all[all.len() - system..].contains(&"/usr/lib".into()), "{all:?}");
    }

    #[test]
    fn directory_that_is_there_twice_is_the_system_s_once() {
        let directories = ["/x", "/usr/lib", "/lib", "/usr/lib"].map(PathBuf::from);
        assert_eq!(system_directories(&directories), 2);
        assert_eq!(system_directories(&directories[..1]), 0);
        let below = ["/usr/lib/nccl", "/lib/x86_64-linux-gnu", "/lib64"].map(PathBuf::from);
        assert_eq!(system_directories(&below), if cfg!(target_arch = "x86_64") { 2 } else { 1 });
    }
}
