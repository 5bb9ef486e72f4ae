//! Feature `link`: which library to link, and how.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The environment that decides.
pub(crate) const INPUTS: [&str; 8] = [
    "LIBNCCL_NO_LINK",
    "NCCL_LIB_DIR",
    "NCCL_HOME",
    "NCCL_STATIC",
    "CUDA_HOME",
    "PKG_CONFIG",
    "PKG_CONFIG_PATH",
    "PKG_CONFIG_LIBDIR",
];

/// A library to link, and how.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// `libnccl.so`, what a development package has.
    Development(PathBuf),
    /// `libnccl.so.2` alone, what a run-time package and Python's package have.
    Runtime(PathBuf),
    /// `libnccl_static.a`, with the directory of the CUDA runtime that it needs.
    Static(PathBuf, Option<PathBuf>),
}

impl Library {
    /// Lines for cargo.
    pub(crate) fn directives(&self) -> Vec<String> {
        let search = |directory: &PathBuf| format!("rustc-link-search=native={}", directory.display());
        let lib = |library: &str| format!("rustc-link-lib={library}");
        match self {
            Self::Development(directory) => vec![search(directory), lib("dylib=nccl")],
            Self::Runtime(directory) => vec![search(directory), lib("dylib:+verbatim=libnccl.so.2")],
            Self::Static(directory, cuda) => {
                // All of the archive: weak references alone would pull in no member.
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

/// Nothing was found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) searched: Vec<PathBuf>,
    /// The directory was named by the user, who will not want another.
    pub(crate) named: bool,
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
        )
    }
}

/// The first directory that has a library: `NCCL_LIB_DIR`, else `NCCL_HOME`, else the `defaults`. The archive
/// only if `NCCL_STATIC` asks for it.
pub(crate) fn find(
    variable: impl Fn(&str) -> Option<OsString>,
    defaults: &[PathBuf],
    exists: impl Fn(&Path) -> bool,
) -> Result<Library, Missing> {
    let path = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let is_static = variable("NCCL_STATIC").is_some_and(|value| !value.is_empty() && value != "0");
    let (searched, named) = if let Some(directory) = path("NCCL_LIB_DIR") {
        (vec![directory], true)
    } else if let Some(home) = path("NCCL_HOME") {
        (vec![home.join("lib"), home.join("lib64")], true)
    } else {
        (defaults.to_vec(), false)
    };
    let library = |directory: &PathBuf| {
        let has = |file| exists(&directory.join(file));
        if is_static {
            let cuda = path("CUDA_HOME").map(|home| home.join("lib64"));
            has("libnccl_static.a").then(|| Library::Static(directory.clone(), cuda))
        } else if has("libnccl.so") {
            Some(Library::Development(directory.clone()))
        } else {
            has("libnccl.so.2").then(|| Library::Runtime(directory.clone()))
        }
    };
    searched.iter().find_map(library).ok_or(Missing { searched, named })
}

/// Where this system keeps libraries; nowhere when cross-compiling.
pub(crate) fn default_directories() -> Vec<PathBuf> {
    if env::var_os("HOST") != env::var_os("TARGET") {
        return Vec::new();
    }
    let pkg_config = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let answer = Command::new(pkg_config).args(["--variable=libdir", "nccl"]).output();
    let from_pkg_config = answer.ok().filter(|answer| answer.status.success());
    let from_pkg_config =
        from_pkg_config.map(|answer| String::from_utf8_lossy(&answer.stdout).trim().to_owned());
    // A file without the variable is an empty answer, which would mean the current directory.
    let from_pkg_config = from_pkg_config.filter(|answer| !answer.is_empty()).map(PathBuf::from);
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let multiarch = format!("/usr/lib/{architecture}-linux-gnu");
    let cuda = env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("lib64"));
    let fixed = [&multiarch, "/usr/lib64", "/usr/lib", "/usr/local/lib"].map(PathBuf::from);
    from_pkg_config.into_iter().chain(fixed).chain(cuda).collect()
}
