//! The decisions of feature `link`: which library to link, by which directives, and which files cargo watches.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

// Part of the package, and compiled into libnccl as well.
#[path = "../../src/places.rs"]
#[allow(dead_code, unreachable_pub)]
pub(crate) mod places;

use places::{
    CUDA, CUDA_HOMES, HOMES, HPC_SDK, HPC_SDK_HOME, IN_HPC_SDK, LINKER_CACHE, NAMES, RCCL_NAMES, ROCM,
};

/// If set to a value other than 0, no NCCL is linked, whichever features are enabled. Default: features decide.
pub(crate) const NO_LINK: &str = "LIBNCCL_NO_LINK";
/// The environment variables that the result depends on. An empty one counts as not set.
pub(crate) const INPUTS: [&str; 15] = [
    "DOCS_RS",
    NO_LINK,
    "NCCL_LIB_DIR",
    "NCCL_HOME",
    "NCCL_ROOT",
    "NCCL_ROOT_DIR",
    "NCCL_STATIC",
    "CUDA_HOME",
    "CUDA_PATH",
    HPC_SDK_HOME,
    "CONDA_PREFIX",
    "ROCM_PATH",
    "PKG_CONFIG",
    "PKG_CONFIG_PATH",
    "PKG_CONFIG_LIBDIR",
];

/// The directories in which systems keep their libraries.
const SYSTEM: [&str; 3] = ["/usr/lib64", "/usr/lib", "/usr/local/lib"];

/// Returns the value of an environment variable.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns whether the variable is set, and not to `0`.
fn is_on(variable: impl Fn(&str) -> Option<OsString>, name: &str) -> bool {
    variable(name).is_some_and(|value| value != "0")
}

/// Returns whether nothing is linked despite the feature: `LIBNCCL_NO_LINK` is set, or the target has no NCCL. The crate compiles
/// for such targets nevertheless.
pub(crate) fn is_vetoed(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    is_on(&variable, NO_LINK) || variable("CARGO_CFG_TARGET_OS").is_some_and(|system| system != "linux")
}

/// Rejects settings with which the program would not start.
pub(crate) fn check(variable: impl Fn(&str) -> Option<OsString>) -> Result<(), String> {
    let features = variable("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if features.to_string_lossy().split(',').any(|feature| feature == "crt-static") {
        return Err("the feature `link` of libnccl needs a C library that is not linked statically, as NCCL loads \
                    libraries of CUDA itself; build with `-C target-feature=-crt-static`, or set LIBNCCL_NO_LINK=1"
            .into());
    }
    for name in ["NCCL_LIB_DIR", "CONDA_PREFIX", HPC_SDK_HOME].into_iter().chain(HOMES).chain(CUDA_HOMES) {
        if let Some(value) = variable(name).filter(|value| Path::new(value).is_relative()) {
            return Err(format!("{name} is {value:?}; expected an absolute path"));
        }
    }
    Ok(())
}

/// A library to link, by kind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// `libnccl.so`, as in a development package.
    Development(PathBuf),
    /// `libnccl.so.2` alone, as in a run-time package or a Python package.
    Runtime(PathBuf),
    /// `libnccl_static.a`, and the directories to search for the CUDA runtime library, which it needs.
    Static(PathBuf, Vec<PathBuf>),
}

impl Library {
    /// Returns the directives for cargo, one per line.
    pub(crate) fn directives(&self) -> Vec<String> {
        let search = |directory: &PathBuf| format!("rustc-link-search=native={}", directory.display());
        let lib = |library: &str| format!("rustc-link-lib={library}");
        match self {
            Self::Development(directory) => vec![search(directory), lib("dylib=nccl")],
            Self::Runtime(directory) => vec![search(directory), lib("dylib:+verbatim=libnccl.so.2")],
            Self::Static(directory, cuda) => {
                // The whole archive: weak references alone would not pull in any member.
                let mut directives =
                    vec![search(directory), lib("static:+whole-archive,-bundle=nccl_static")];
                directives.extend(cuda.iter().map(search));
                directives.extend(
                    [
                        "static:-bundle=cudart_static",
                        "dylib=pthread",
                        "dylib=rt",
                        "dylib=dl",
                        "dylib=stdc++",
                        "dylib=m",
                    ]
                    .map(lib),
                );
                directives
            }
        }
    }
}

/// The error returned when no library was found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) searched: Vec<PathBuf>,
    /// Set if the user named the directory, which excludes a fallback.
    pub(crate) named: bool,
    /// AMD's library, which cannot be linked.
    pub(crate) rccl: Option<PathBuf>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let searched: Vec<_> =
            self.searched.iter().map(|directory| directory.display().to_string()).collect();
        write!(
            f,
            "no NCCL library to link in {}; NCCL_LIB_DIR names the directory of libnccl.so or libnccl.so.2, or, \
             with NCCL_STATIC=1, of libnccl_static.a",
            searched.join(", ")
        )?;
        match &self.rccl {
            Some(rccl) => write!(
                f,
                "; {} is AMD's RCCL, which cannot be linked, only loaded: build without the feature `link`, or with {NO_LINK}=1",
                rccl.display()
            ),
            None => Ok(()),
        }
    }
}

/// Finds the library in `NCCL_LIB_DIR`, else below the first of NCCL's home variables that is set, else in the `defaults`. The
/// static library is used only if `NCCL_STATIC` is set.
pub(crate) fn find(
    variable: impl Fn(&str) -> Option<OsString>,
    defaults: &[PathBuf],
    exists: impl Fn(&Path) -> bool,
) -> Result<Library, Missing> {
    let is_static = is_on(&variable, "NCCL_STATIC");
    let (searched, named) = searched(&variable, defaults);
    let library = |directory: &PathBuf| {
        let has = |file| exists(&directory.join(file));
        if is_static {
            has("libnccl_static.a").then(|| Library::Static(directory.clone(), in_toolkits(&variable)))
        } else if has("libnccl.so") {
            Some(Library::Development(directory.clone()))
        } else {
            has("libnccl.so.2").then(|| Library::Runtime(directory.clone()))
        }
    };
    searched.iter().find_map(library).ok_or_else(|| {
        let rocm = variable("ROCM_PATH").map_or_else(|| ROCM.into(), PathBuf::from).join("lib");
        let directories = searched.iter().chain((!named).then_some(&rocm));
        let files = directories.flat_map(|directory| RCCL_NAMES.map(|name| directory.join(name)));
        let rccl = files.into_iter().find(|file| exists(file));
        Missing { searched, named, rccl }
    })
}

/// Returns the target's library directories in the CUDA toolkits that variables name, or in the default toolkit.
fn in_toolkits(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let architecture = variable("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let mut homes: Vec<_> = CUDA_HOMES.into_iter().filter_map(variable).map(PathBuf::from).collect();
    if homes.is_empty() {
        homes.push(CUDA.into());
    }
    homes.iter().flat_map(|home| places::in_toolkit(home, &architecture.to_string_lossy())).collect()
}

/// Returns the directories of the search, and whether the user named them.
fn searched(variable: impl Fn(&str) -> Option<OsString>, defaults: &[PathBuf]) -> (Vec<PathBuf>, bool) {
    let path = |name: &str| variable(name).map(PathBuf::from);
    if let Some(directory) = path("NCCL_LIB_DIR") {
        (vec![directory], true)
    } else if let Some(home) = HOMES.iter().find_map(|name| path(name)) {
        (places::in_home(&home), true)
    } else {
        (defaults.to_vec(), false)
    }
}

/// Returns the paths that cargo has to watch: the file that was found, and the directories where a preferred file or
/// pkg-config's file may appear. If nothing was found, returns absent files, for which cargo runs the build script every
/// time.
///
/// Cargo examines all files below a directory, which are tens of thousands in the system's directories. Instead of these
/// directories, it watches the dynamic linker's cache, which changes when a library is installed.
pub(crate) fn watched(
    found: &Result<Library, Missing>,
    variable: impl Fn(&str) -> Option<OsString>,
    defaults: &[PathBuf],
) -> Vec<PathBuf> {
    let (mut directories, named) = searched(&variable, defaults);
    let (directory, file, is_best) = match found {
        Ok(Library::Development(directory)) => (directory, "libnccl.so", true),
        Ok(Library::Runtime(directory)) => (directory, "libnccl.so.2", false),
        Ok(Library::Static(directory, _)) => (directory, "libnccl_static.a", true),
        Err(missing) => {
            let file = if is_on(&variable, "NCCL_STATIC") { "libnccl_static.a" } else { "libnccl.so" };
            return missing.searched.iter().map(|directory| directory.join(file)).collect();
        }
    };
    let position = directories.iter().position(|searched| searched == directory);
    directories.truncate(position.unwrap_or_default() + usize::from(!is_best));
    if !named {
        let paths = ["PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR"].into_iter().filter_map(variable);
        let paths = paths.chain(pkg_config(&["--variable=pc_path", "pkg-config"]));
        paths.for_each(|paths| directories.extend(env::split_paths(&paths)));
        #[cfg(unix)]
        directories.push(LINKER_CACHE.into());
    }
    directories.retain(|path| path.is_absolute() && path.exists() && !is_system(path));
    directories.push(directory.join(file));
    directories
}

/// Returns whether this is one of the directories in which systems keep their libraries.
fn is_system(directory: &Path) -> bool {
    let parent = directory.parent().filter(|_| directory.to_string_lossy().ends_with("-linux-gnu"));
    SYSTEM.iter().any(|system| parent.unwrap_or(directory) == Path::new(system))
}

/// Returns the output of pkg-config, if any.
fn pkg_config(arguments: &[&str]) -> Option<OsString> {
    let program = variable("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let output =
        Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    // If the file lacks the variable, the output is empty, which would mean the current directory.
    Some(String::from_utf8_lossy(&output.stdout).trim().into()).filter(|text: &OsString| !text.is_empty())
}

/// Returns the directories to search if the user names none: the system's directories, the directories in the dynamic linker's
/// cache, and the installations that the search at run time examines, in the same order. When cross-compiling, returns only
/// directories of CUDA toolkits, because the others have libraries for the host.
pub(crate) fn default_directories(
    variable: impl Fn(&str) -> Option<OsString>,
    linker_cache: &[u8],
) -> Vec<PathBuf> {
    let toolkits = in_toolkits(&variable).into_iter();
    if variable("HOST") != variable("TARGET") {
        return toolkits.filter(|directory| !directory.ends_with("lib64")).collect();
    }
    let path = |name| variable(name).map(PathBuf::from);
    let architecture = variable("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let architecture = architecture.to_string_lossy();
    let from_pkg_config = pkg_config(&["--variable=libdir", "nccl"]).map(PathBuf::from);
    let multiarch = format!("/usr/lib/{architecture}-linux-gnu").into();
    let mut directories: Vec<_> =
        from_pkg_config.into_iter().chain([multiarch]).chain(SYSTEM.map(PathBuf::from)).collect();
    #[cfg(unix)]
    directories.extend(
        NAMES
            .iter()
            .flat_map(|name| places::in_linker_cache(linker_cache, Path::new(name)))
            .filter_map(|file| file.parent().map(Path::to_path_buf)),
    );
    directories.extend(path("CONDA_PREFIX").map(|prefix| prefix.join("lib")));
    directories.extend(toolkits);
    directories.extend(path(HPC_SDK_HOME).map(|release| release.join(IN_HPC_SDK)));
    directories.extend(places::in_hpc_sdk(Path::new(HPC_SDK), &architecture));
    directories
}
