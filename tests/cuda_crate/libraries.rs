//! The CUDA emulation and the CPU backend of NCCL, in a directory on the dynamic linker's path.

use std::env;
use std::process::{Command, ExitCode};

/// Set where the libraries are in place.
const NCCL: &str = "LIBNCCL_PATH";

/// Set on the CUDA emulation.
const RACES: &str = "LIBNCCL_CPU_RACES";

/// Runs this program again with the libraries, and returns its exit code; `None` if they are in place.
pub(crate) fn run_with_libraries() -> Option<ExitCode> {
    if env::var_os(NCCL).is_some() {
        return None;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    libnccl_test_support::install(directory.path());
    let own = env::current_exe().expect("the path of this program");
    let status = Command::new(own)
        .args(env::args_os().skip(1))
        .env("LD_LIBRARY_PATH", directory.path())
        .env(NCCL, directory.path().join("libnccl.so.2"))
        .env(RACES, "error")
        .status()
        .expect("this program can be run");
    Some(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(crate) fn is_emulated() -> bool {
    env::var_os(RACES).is_some()
}
