use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Returns the file of a shared object of this workspace, such as `nccl_cpu`. A test that asks for it has its package among its
/// dependencies: cargo then builds it beside the test.
#[must_use]
pub fn shared_object(library: &str) -> PathBuf {
    let program = std::env::current_exe().expect("this program has a path");
    let file = program.with_file_name(format!("lib{library}.so"));
    assert!(file.exists(), "{} is not there: a dev-dependency makes cargo build it", file.display());
    file
}

/// Puts the CPU backend of NCCL and the stand-in for CUDA's driver into a folder, as programs load them.
pub fn install(folder: &Path) {
    for (library, name, link) in
        [("nccl_cpu", "libnccl.so.2", "libnccl.so"), ("cuda_cpu", "libcuda.so.1", "libcuda.so")]
    {
        fs::copy(shared_object(library), folder.join(name)).expect("a library can be copied");
        symlink(name, folder.join(link)).expect("a link");
    }
}
