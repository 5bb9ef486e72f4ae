use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process;

/// Returns the file of a shared object of this workspace, such as `nccl_cpu`. A test that uses it has its package as a
/// dev-dependency, so that cargo builds it with the test.
#[must_use]
pub fn shared_object(library: &str) -> PathBuf {
    let program = std::env::current_exe().expect("this program has a path");
    let file = program.with_file_name(format!("lib{library}.so"));
    assert!(file.exists(), "{} is not there: a dev-dependency makes cargo build it", file.display());
    file
}

/// Installs the CPU backend of NCCL and the emulated CUDA driver in a directory, under the names by which programs load them. The
/// directory may contain an earlier build, and other tests may use it at the same time.
pub fn install(directory: &Path) {
    fs::create_dir_all(directory).expect("a directory");
    for (library, name, link) in
        [("nccl_cpu", "libnccl.so.2", "libnccl.so"), ("cuda_cpu", "libcuda.so.1", "libcuda.so")]
    {
        install_as(&directory.join(name), library);
        replace(&directory.join(link), |link| symlink(name, link));
    }
}

/// Installs a shared object of this workspace as a file, unless that is a copy of it already.
pub fn install_as(path: &Path, library: &str) {
    let bytes = fs::read(shared_object(library)).expect("a library");
    if !fs::read(path).is_ok_and(|installed| installed == bytes) {
        replace(path, |copy| fs::write(copy, &bytes));
    }
}

/// Creates a file under another name, and then renames it: programs that use the old file keep it.
pub fn replace(path: &Path, create: impl FnOnce(&Path) -> io::Result<()>) {
    let new = PathBuf::from(format!("{}.{}", path.display(), process::id()));
    create(&new).and_then(|()| fs::rename(&new, path)).expect("a file can be replaced");
}
