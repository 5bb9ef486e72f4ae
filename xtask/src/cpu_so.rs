//! The CPU backend as a shared object that replaces NCCL in any program, and the files for compiling and linking C programs. The CUDA
//! emulation's libraries are put into the same directory.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use cuda_install::{DRIVER, Profile, RUNTIMES, SharedObject, install_one, replace};

/// NCCL's header and the CUDA headers that it includes, in `vendor-headers`.
const HEADERS: [&str; 5] = [
    "nccl.h",
    "stubs/cuda/cuda_bf16.h",
    "stubs/cuda/cuda_fp16.h",
    "stubs/cuda/cuda_fp8.h",
    "stubs/cuda/cuda_runtime.h",
];

/// The manifest of this workspace.
const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");

/// The CPU backend of NCCL.
pub(crate) const NCCL: SharedObject = SharedObject {
    manifest: MANIFEST,
    package: "libnccl-cpu-so",
    library: "nccl_cpu",
    feature: "",
    soname: "libnccl.so.2",
    link: Some("libnccl.so"),
};

/// The interposer that records a program's NCCL calls.
const TRACE: SharedObject = SharedObject {
    package: "libnccl-trace",
    library: "nccl_trace",
    soname: "libnccl-trace.so",
    link: Some("libnccl.so.2"),
    ..NCCL
};

/// Builds the CPU backend and copies it to `directory` as `libnccl.so.2`, with the link `libnccl.so` for linkers and the
/// headers. Returns the path of the copy.
pub(crate) fn install(directory: &Path, profile: Profile) -> Result<PathBuf> {
    install_headers(directory)?;
    install_one(&mut profile.cargo(), NCCL, directory)
}

/// Builds the recording interposer with this cargo command, and copies it to `directory` as `libnccl-trace.so`, with links under
/// NCCL's names. Returns the path of the copy.
pub(crate) fn install_trace(cargo: &mut Command, directory: &Path) -> Result<PathBuf> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let path = install_one(cargo, TRACE, directory)?;
    replace(&directory.join("libnccl.so"), |link| symlink(TRACE.soname, link))?;
    Ok(path)
}

/// Copies the headers to `directory`, which is created if needed.
pub(crate) fn install_headers(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    for header in HEADERS {
        let path = crate::root().join("vendor-headers").join(header);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = file_name(header);
        let text = if name == header { text } else { before_the_stub(name) + &text };
        replace(&directory.join(name), |copy| fs::write(copy, &text))?;
    }
    Ok(())
}

/// Returns the start of a CUDA header's stub. It includes the real header instead if a later include directory has it.
fn before_the_stub(name: &str) -> String {
    let guard = name.to_uppercase().replace('.', "_");
    format!(
        "#pragma GCC system_header\n#ifdef __has_include_next\n#if __has_include_next(<{name}>)\n#include_next <{name}>\n\
         #define LIBNCCL_STUB_{guard}\n#endif\n#endif\n"
    )
}

/// Creates `include` and `lib` in `directory` with links to the files, because many build systems search for NCCL there.
pub(crate) fn link_directories(directory: &Path) -> Result<()> {
    let headers = HEADERS.map(|header| ("include", file_name(header)));
    let libraries = [NCCL, DRIVER].into_iter().chain(RUNTIMES);
    let names = libraries.flat_map(|library| [Some(library.soname), library.link]).flatten();
    for (subdirectory, name) in headers.into_iter().chain(names.map(|name| ("lib", name))) {
        let subdirectory = directory.join(subdirectory);
        fs::create_dir_all(&subdirectory)
            .with_context(|| format!("cannot create {}", subdirectory.display()))?;
        replace(&subdirectory.join(name), |link| symlink(Path::new("..").join(name), link))?;
    }
    Ok(())
}

/// Returns the name of a header without its directory.
fn file_name(header: &str) -> &str {
    header.rsplit_once('/').map_or(header, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_of_cuda_is_not_hidden_by_its_stub() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        install_headers(&path("own")).unwrap();
        link_directories(&path("own")).unwrap();
        fs::create_dir(path("cuda")).unwrap();
        let of_cuda = "#ifndef OF_CUDA\n#define OF_CUDA\ntypedef int cudaError_t, *cudaStream_t, *cudaEvent_t;\n#endif\n";
        fs::write(path("cuda/cuda_runtime.h"), of_cuda).unwrap();
        let compile = |program: &str, includes: &[&str]| {
            fs::write(path("program.c"), program).unwrap();
            let mut cc = Command::new("cc");
            cc.args(["-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]).arg(path("program.c"));
            cc.args(includes.iter().map(|include| format!("-I{}", path(include).display())));
            let output = cc.output().unwrap();
            assert!(output.status.success(), "{includes:?}: {}", String::from_utf8_lossy(&output.stderr));
        };
        let includes = "#include <cuda_runtime.h>\n#include <nccl.h>\n#include <cuda_runtime.h>\n";
        let with_cuda =
            format!("{includes}cudaError_t error;\n#ifdef CUDART_VERSION\n#error the stub\n#endif\n");
        for own in [&["own"][..], &["own/include"], &["own/include", "own"]] {
            compile(&with_cuda, &[own, &["cuda"]].concat());
            compile(&with_cuda, &[&["cuda"], own].concat());
            compile(&format!("{includes}ncclComm_t comm;\ncudaStream_t stream;\n"), own);
        }
    }
}
