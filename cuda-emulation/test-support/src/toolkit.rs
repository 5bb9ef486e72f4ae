//! C programs that are compiled against NVIDIA's headers.
//!
//! NVIDIA's packages are downloaded once, with pip, and kept outside the checkout: in `$LIBNCCL_CACHE`, else in
//! `~/.cache/libnccl`.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

/// The time limit in seconds. A program that runs longer counts as hung.
const LIMIT: &str = "120";

/// A major version of CUDA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    Cuda12,
    Cuda13,
}

/// NVIDIA's headers and libraries of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolkit {
    /// The directories with `include/`; the first one also has `lib/` with the runtime library, the last one CUPTI.
    pub directories: Vec<PathBuf>,
    /// NVIDIA's runtime library.
    pub runtime: PathBuf,
    /// NVIDIA's profiling library.
    pub cupti: PathBuf,
}

impl Release {
    pub fn major(self) -> &'static str {
        match self {
            Self::Cuda12 => "12",
            Self::Cuda13 => "13",
        }
    }

    /// Returns the soname of the runtime library.
    pub fn soname(self) -> String {
        format!("libcudart.so.{}", self.major())
    }

    /// Returns NVIDIA's files. If there are none, prints that a test is skipped.
    pub fn toolkit(self, test: &str) -> Option<&'static Toolkit> {
        static TOOLKITS: [OnceLock<Result<Toolkit, String>>; 2] = [OnceLock::new(), OnceLock::new()];
        let toolkit = TOOLKITS[usize::from(self == Self::Cuda13)].get_or_init(|| self.obtain());
        toolkit.as_ref().inspect_err(|error| eprintln!("skipped: {test}, as {}", error.trim())).ok()
    }

    /// Returns NVIDIA's files, after downloading them if needed.
    ///
    /// # Errors
    /// Returns an error if there is no directory for downloads, if pip is missing, or if the download fails.
    pub fn obtain(self) -> Result<Toolkit, String> {
        // The directory's name contains the versions of the packages that differ: new versions are downloaded.
        let (requirements, name, packages) = match self {
            Self::Cuda12 => (
                include_str!("../cuda-12.txt"),
                "cuda-12.9.79",
                &["cuda_runtime", "cuda_nvcc", "cuda_cccl", "cuda_cupti"][..],
            ),
            Self::Cuda13 => (include_str!("../cuda-13.txt"), "cuda-13.5.37", &["cu13"][..]),
        };
        let cache = cache().ok_or("there is no directory for downloads: set LIBNCCL_CACHE")?;
        let directory = cache.join(name);
        if !directory.exists() {
            download(requirements, &cache, &directory).map_err(|error| format!("CUDA's headers: {error}"))?;
        }
        let directories: Vec<_> =
            packages.iter().map(|package| directory.join("nvidia").join(package)).collect();
        let runtime = directories[0].join("lib").join(self.soname());
        let cupti = directories[directories.len() - 1].join(format!("lib/libcupti.so.{}", self.major()));
        Ok(Toolkit { directories, runtime, cupti })
    }
}

fn cache() -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("LIBNCCL_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("libnccl")))
        .or_else(|| Some(set("HOME")?.join(".cache/libnccl")))
}

/// Downloads packages and unpacks them into `directory`, which never exists incomplete. Pip checks the hashes of the packages.
fn download(requirements: &str, cache: &Path, directory: &Path) -> Result<(), String> {
    let io = |error: std::io::Error| error.to_string();
    fs::create_dir_all(cache).map_err(io)?;
    let scratch = tempfile::Builder::new().prefix(".unfinished-").tempdir_in(cache).map_err(io)?;
    let (list, unpacked) = (scratch.path().join("requirements.txt"), scratch.path().join("unpacked"));
    fs::write(&list, requirements).map_err(io)?;
    eprintln!("downloading NVIDIA's packages for {}, up to 60 MB", directory.display());
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--no-deps", "--only-binary=:all:", "--require-hashes", "--quiet"])
        .args(["--no-cache-dir", "--disable-pip-version-check", "--requirement"])
        .arg(&list)
        .arg("--target")
        .arg(&unpacked);
    let output = pip.output().map_err(|error| format!("python3 does not run: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    // The compiler, about 100 MB.
    for unused in ["bin", "nvvm"] {
        let _ = fs::remove_dir_all(unpacked.join("nvidia/cuda_nvcc").join(unused));
    }
    // Another process may have been faster.
    fs::rename(&unpacked, directory).or_else(|error| if directory.exists() { Ok(()) } else { Err(io(error)) })
}

/// Runs a tool to its end and returns what it printed.
#[track_caller]
pub fn run_tool(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}"));
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{printed}{errors}", output.status);
    printed.into_owned()
}

/// A program in a separate directory.
#[derive(Debug)]
pub struct Program {
    directory: TempDir,
}

impl Program {
    /// Compiles a program against these headers, and links it with `runtime` as CUDA's runtime library, and with the
    /// libraries in `options`.
    pub fn compile(source: &Path, includes: &[PathBuf], runtime: &Path, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        symlink(runtime, directory.path().join("libcudart.so")).expect("a link");
        let mut command = Command::new("cc");
        command.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread"]);
        for include in includes {
            command.arg("-isystem").arg(include);
        }
        command.current_dir(source.parent().expect("a directory"));
        command.arg(source.file_name().expect("a file")).arg("-o").arg(directory.path().join("program"));
        command.arg("-L").arg(directory.path()).args(["-Wl,--as-needed", "-lcudart"]).args(options);
        run_tool(&mut command);
        Self { directory }
    }

    /// Runs the program with the libraries in a directory and this number of devices, and returns its output. A race is an
    /// error.
    pub fn run(&self, libraries: &Path, devices: &str) -> String {
        run_tool(self.command(libraries, devices).env("LIBNCCL_CPU_RACES", "error"))
    }

    /// Returns the command that runs the program with the libraries in a directory and this number of devices.
    pub fn command(&self, libraries: &Path, devices: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", LIMIT]).arg(self.directory.path().join("program"));
        command
            .env("LD_LIBRARY_PATH", libraries)
            .env("LIBNCCL_CPU_DEVICES", devices)
            .env_remove("NCCL_DEBUG");
        command
    }
}
