//! The stand-in for CUDA and the CPU implementation of NCCL, in a folder on the dynamic linker's path.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, fs};

/// Set where the libraries are in place.
const NCCL: &str = "LIBNCCL_PATH";

/// Runs this program again with the libraries, and returns its exit code; `None` if they are in place.
pub(crate) fn run_with_libraries() -> Option<ExitCode> {
    if env::var_os(NCCL).is_some() {
        return None;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    build(folder.path());
    let own = env::current_exe().expect("the path of this program");
    let status = Command::new(own)
        .args(env::args_os().skip(1))
        .env("LD_LIBRARY_PATH", folder.path())
        .env(NCCL, folder.path().join("libnccl.so.2"))
        .env("LIBNCCL_CPU_RACES", "error")
        .status()
        .expect("this program can be run");
    Some(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds the libraries: Cargo builds no cdylib of another package for tests.
fn build(folder: &Path) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-so");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "build",
        "--quiet",
        "--package",
        "libnccl-cpu-so",
        "--package",
        "libnccl-cpu-cuda",
        "--target-dir",
    ]);
    let built = cargo.arg(&target).current_dir(env!("CARGO_MANIFEST_DIR")).status();
    assert!(built.expect("cargo can be run").success(), "the libraries cannot be built");
    for (file, name) in [("libnccl_cpu.so", "libnccl.so.2"), ("libcuda_cpu.so", "libcuda.so.1")] {
        fs::copy(target.join("debug").join(file), folder.join(name)).expect("a library can be copied");
    }
    symlink("libcuda.so.1", folder.join("libcuda.so")).expect("a link");
}
