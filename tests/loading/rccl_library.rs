//! A substitute for RCCL: its list of functions, and a shared object that has them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use libnccl::Version;
use libnccl::sys::{self, Functions};

/// The version that the shared object reports. RCCL numbers its releases as NCCL does.
pub(crate) const VERSION: Version = Version::new(2, 21, 5);

const SOURCE: &str = include_str!("rccl.c");

/// Returns whether RCCL has a function: all functions of NCCL up to that version, and two that it had before NCCL, with the
/// same signatures.
pub(crate) fn has(function: &str) -> bool {
    sys::since(function).is_some_and(|since| since <= VERSION.code())
        || ["ncclGather", "ncclScatter"].contains(&function)
}

/// Compiles the shared object, with the rest of RCCL's functions, under a name in a directory. Like RCCL, it needs HIP.
pub(crate) fn build(directory: &Path, name: &str) -> PathBuf {
    let hip =
        compile(directory, "libamdhip64.so", "int hipGetDeviceCount(int *count) { return *count = 0; }", &[]);
    let needs_hip: [&OsStr; 3] =
        ["-Wl,--no-as-needed".as_ref(), hip.as_os_str(), "-Wl,-rpath,$ORIGIN".as_ref()];
    compile(directory, name, &source(), &needs_hip)
}

/// Compiles one for other GPUs than AMD's, with a function that NCCLX and the shim of MSCCL++ have and NCCL lacks.
pub(crate) fn build_without_hip(directory: &Path, name: &str) -> PathBuf {
    compile(directory, name, &format!("{}int ncclAllToAllv(void) {{ return 0; }}\n", source()), &[])
}

fn source() -> String {
    let is_defined = |function: &str| SOURCE.contains(&format!("{function}("));
    let rest = Functions::NAMES.iter().filter(|name| has(name) && !is_defined(name));
    let rest: String = rest.map(|name| format!("int {name}(void) {{ return 0; }}\n")).collect();
    format!("{SOURCE}{rest}")
}

/// Compiles a shared object that needs others.
pub(crate) fn compile(directory: &Path, name: &str, text: &str, needed: &[&OsStr]) -> PathBuf {
    let library = directory.join(name);
    let source = library.with_extension("c");
    std::fs::create_dir_all(directory).unwrap();
    std::fs::write(&source, text).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", &format!("-Wl,-soname,{name}"), "-o"])
        .args([&library, &source])
        .args(needed)
        .status()
        .expect("a C compiler, cc");
    assert!(compiled.success(), "cc: {compiled}");
    library
}
