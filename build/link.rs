//! Feature `link`: finds the library to link and writes the directives for cargo.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The environment variables that the result depends on.
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

/// A library to link, by kind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// `libnccl.so`, as in a development package.
    Development(PathBuf),
    /// `libnccl.so.2` alone, as in a run-time package or a Python package.
    Runtime(PathBuf),
    /// `libnccl_static.a`, with the directory of the CUDA runtime library that it needs.
    Static(PathBuf, Option<PathBuf>),
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
    /// Set if the user named the directory: there is no fallback.
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

/// Finds the library in `NCCL_LIB_DIR`, else in `NCCL_HOME`, else in the `defaults`. The static library is used only
/// if `NCCL_STATIC` is set.
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

/// Returns the directories where this system keeps libraries; none when cross-compiling.
pub(crate) fn default_directories() -> Vec<PathBuf> {
    if env::var_os("HOST") != env::var_os("TARGET") {
        return Vec::new();
    }
    let pkg_config = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let output = Command::new(pkg_config).args(["--variable=libdir", "nccl"]).output();
    let from_pkg_config = output.ok().filter(|output| output.status.success());
    let from_pkg_config =
        from_pkg_config.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    // If the file lacks the variable, the output is empty, which would mean the current directory.
    let from_pkg_config = from_pkg_config.filter(|directory| !directory.is_empty()).map(PathBuf::from);
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let multiarch = format!("/usr/lib/{architecture}-linux-gnu");
    let cuda = env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("lib64"));
    let fixed = [&multiarch, "/usr/lib64", "/usr/lib", "/usr/local/lib"].map(PathBuf::from);
    from_pkg_config.into_iter().chain(fixed).chain(cuda).collect()
}
