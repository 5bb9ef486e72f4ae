//! The stand-in for CUDA and the CPU implementation of NCCL, for a folder on the dynamic linker's path.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// Builds `libnccl.so.2` and `libcuda.so.1`, which Cargo does not for tests of another package, and puts them into a
/// folder, with the links `libnccl.so` and `libcuda.so`.
pub(crate) fn install(folder: &Path) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-so");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "libnccl-cpu-so", "--package", "libnccl-cuda-driver"]);
    cargo.arg("--target-dir").arg(&target).current_dir(env!("CARGO_MANIFEST_DIR"));
    assert!(cargo.status().expect("cargo can be run").success(), "the libraries cannot be built");
    for (file, name, link) in
        [("libnccl_cpu.so", "libnccl.so.2", "libnccl.so"), ("libcuda_cpu.so", "libcuda.so.1", "libcuda.so")]
    {
        fs::copy(target.join("debug").join(file), folder.join(name)).expect("a library can be copied");
        symlink(name, folder.join(link)).expect("a link");
    }
}
