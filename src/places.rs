//! The places where NCCL is installed: names of files, variables and directories, and the dynamic linker's cache. Shared by
//! the build script, the search at run time and `nccl doctor`.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

/// The file names of NCCL's library. Python packages contain only the first.
pub const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// The file names of RCCL, AMD's implementation of NCCL's functions.
pub const RCCL_NAMES: [&str; 2] = ["librccl.so.1", "librccl.so"];
/// The path of NCCL's library, relative to a directory of Python packages. It is the same for `nvidia-nccl-cu12` and
/// `nvidia-nccl-cu13`.
pub const IN_PACKAGES: &str = "nvidia/nccl/lib/libnccl.so.2";
/// The environment variables that name the directory of an NCCL installation, which contains `lib` or `lib64`.
pub const HOMES: [&str; 3] = ["NCCL_HOME", "NCCL_ROOT", "NCCL_ROOT_DIR"];
/// The environment variables that name the directory of a CUDA toolkit.
pub const CUDA_HOMES: [&str; 2] = ["CUDA_HOME", "CUDA_PATH"];
/// The directory in which NVIDIA's packages install the CUDA toolkit.
pub const CUDA: &str = "/usr/local/cuda";
/// The environment variable that names the directory of one version of NVIDIA's HPC SDK.
pub const HPC_SDK_HOME: &str = "NVHPC_ROOT";
/// The directory in which NVIDIA's packages install the HPC SDK. Each version is in a subdirectory such as `Linux_x86_64/25.1`.
pub const HPC_SDK: &str = "/opt/nvidia/hpc_sdk";
/// NCCL's directory, relative to the directory of one version of the HPC SDK.
pub const IN_HPC_SDK: &str = "comm_libs/nccl/lib";
/// The directory in which AMD's packages install RCCL.
pub const ROCM: &str = "/opt/rocm";
/// The file of the dynamic linker's cache, which lists the libraries in the system's directories.
pub const LINKER_CACHE: &str = "/etc/ld.so.cache";

/// Returns the library directories of the NCCL installation in `home`.
pub fn in_home(home: &Path) -> Vec<PathBuf> {
    ["lib", "lib64"].map(|lib| home.join(lib)).into()
}

/// Returns the directories of a CUDA toolkit that may contain the libraries for `architecture`. `lib64` contains the libraries
/// for the host, but some packages lack this directory. In a toolkit for cross-compiling, the libraries for the other
/// architecture are below `targets`.
pub fn in_toolkit(home: &Path, architecture: &str) -> Vec<PathBuf> {
    let targets: &[&str] = match architecture {
        "x86_64" => &["targets/x86_64-linux/lib"],
        // Servers, and Jetson.
        "aarch64" => &["targets/sbsa-linux/lib", "targets/aarch64-linux/lib"],
        _ => &[],
    };
    targets.iter().chain(&["lib64"]).map(|lib| home.join(lib)).collect()
}

/// Returns the subdirectory of `directory` that contains the HPC SDK's versions for `architecture`.
pub fn hpc_sdk_releases(directory: &Path, architecture: &str) -> PathBuf {
    directory.join(format!("Linux_{architecture}"))
}

/// Returns NCCL's directory in each version of the HPC SDK, the newest version first.
pub fn in_hpc_sdk(directory: &Path, architecture: &str) -> Vec<PathBuf> {
    let mut releases: Vec<_> = children(&hpc_sdk_releases(directory, architecture)).collect();
    releases.sort_by_key(|release| Reverse(version(release, "")));
    releases.iter().map(|release| release.join(IN_HPC_SDK)).collect()
}

/// Returns the version that follows the prefix `start` in a file's name. For example, `libnccl.so.2.16.2` with the prefix
/// `libnccl.so.` has the version 2.16.2. Returns `None` for names of another form.
pub fn version(file: &Path, start: &str) -> Option<Vec<u32>> {
    let version = file.file_name()?.to_str()?.strip_prefix(start)?;
    version.split('.').map(|number| number.parse().ok()).collect()
}

/// Returns the entries of a directory; none if it cannot be read.
pub fn children(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Returns the files called `name` that the dynamic linker's cache lists, in the cache's order. Returns none if the cache has the
/// format that was used before glibc 2.2.
#[cfg(unix)]
pub fn in_linker_cache(cache: &[u8], name: &Path) -> Vec<PathBuf> {
    use std::os::unix::ffi::OsStrExt;

    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER: usize = 48;
    const ENTRY: usize = 24;
    // A table in the older format may precede it.
    let start = cache.windows(MAGIC.len()).position(|bytes| bytes == MAGIC).unwrap_or(cache.len());
    let cache = &cache[start..];
    let number = |at: usize| {
        let bytes = cache.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?) as usize)
    };
    let text = |at: usize| {
        let text = cache.get(number(at)?..)?;
        Some(Path::new(std::ffi::OsStr::from_bytes(text.split(|byte| *byte == 0).next()?)))
    };
    let count = number(MAGIC.len()).unwrap_or_default();
    let entries = cache.get(HEADER..).unwrap_or_default().chunks_exact(ENTRY).take(count).enumerate();
    let is_for_every_processor = |entry: &[u8]| entry[16..].iter().all(|byte| *byte == 0);
    let files = entries.filter(|(_, entry)| is_for_every_processor(entry)).filter_map(|(index, _)| {
        let entry = HEADER + index * ENTRY;
        (text(entry + 4)? == name).then(|| text(entry + 8).map(PathBuf::from))?
    });
    files.collect()
}
