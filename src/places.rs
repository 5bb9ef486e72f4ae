//! The places of NCCL in installations. The build script, the search at run time and `nccl doctor` share them.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

/// The library's file names; Python packages have only the first.
pub const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// The file names of RCCL, AMD's implementation of the same functions.
pub const RCCL_NAMES: [&str; 2] = ["librccl.so.1", "librccl.so"];
/// The library in a directory of Python packages, from `nvidia-nccl-cu12` or `nvidia-nccl-cu13`, which have one path.
pub const IN_PACKAGES: &str = "nvidia/nccl/lib/libnccl.so.2";
/// The variables that name the prefix of an NCCL that was installed by itself.
pub const HOMES: [&str; 3] = ["NCCL_HOME", "NCCL_ROOT", "NCCL_ROOT_DIR"];
/// The variables that name a CUDA toolkit.
pub const CUDA_HOMES: [&str; 2] = ["CUDA_HOME", "CUDA_PATH"];
/// The directory in which NVIDIA's packages install the CUDA toolkit.
pub const CUDA: &str = "/usr/local/cuda";
/// The variable that names a release of NVIDIA's HPC SDK.
pub const HPC_SDK_HOME: &str = "NVHPC_ROOT";
/// The directory in which NVIDIA's packages install the HPC SDK, each release in a directory for each architecture.
pub const HPC_SDK: &str = "/opt/nvidia/hpc_sdk";
/// The directory of NCCL in a release of the HPC SDK.
pub const IN_HPC_SDK: &str = "comm_libs/nccl/lib";
/// The directory in which AMD's packages install RCCL.
pub const ROCM: &str = "/opt/rocm";

/// Returns the library directories of an NCCL that was installed by itself.
pub fn in_home(home: &Path) -> Vec<PathBuf> {
    ["lib", "lib64"].map(|lib| home.join(lib)).into()
}

/// Returns the library directories of a CUDA toolkit. `lib64`, which a package may leave out, is for the host; a toolkit for
/// cross-compiling has others in `targets`.
pub fn in_toolkit(home: &Path, architecture: &str) -> Vec<PathBuf> {
    let targets: &[&str] = match architecture {
        "x86_64" => &["targets/x86_64-linux/lib"],
        // Servers, and Jetson.
        "aarch64" => &["targets/sbsa-linux/lib", "targets/aarch64-linux/lib"],
        _ => &[],
    };
    targets.iter().chain(&["lib64"]).map(|lib| home.join(lib)).collect()
}

/// Returns the directory of the HPC SDK's releases for an architecture.
pub fn hpc_sdk_releases(directory: &Path, architecture: &str) -> PathBuf {
    directory.join(format!("Linux_{architecture}"))
}

/// Returns the directories of NCCL in the HPC SDK's releases, the newest first.
pub fn in_hpc_sdk(directory: &Path, architecture: &str) -> Vec<PathBuf> {
    let mut releases: Vec<_> = children(&hpc_sdk_releases(directory, architecture)).collect();
    releases.sort_by_key(|release| Reverse(version(release, "")));
    releases.iter().map(|release| release.join(IN_HPC_SDK)).collect()
}

/// Returns the numbers of the version, such as 2.16.2, that is the rest of a file's name.
pub fn version(file: &Path, start: &str) -> Option<Vec<u32>> {
    let version = file.file_name()?.to_str()?.strip_prefix(start)?;
    version.split('.').map(|number| number.parse().ok()).collect()
}

/// Returns what is in a directory, nothing if it cannot be read.
pub fn children(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}
