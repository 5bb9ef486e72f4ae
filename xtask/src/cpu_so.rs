//! The CPU backend as a shared object, which any program loads in place of NCCL, the stand-ins for CUDA's
//! libraries, and what C programs need to be compiled and linked with them.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// NCCL's header and what it includes of the CUDA toolkit, in `vendor-headers`.
const HEADERS: [&str; 5] = [
    "nccl.h",
    "stubs/cuda/cuda_bf16.h",
    "stubs/cuda/cuda_fp16.h",
    "stubs/cuda/cuda_fp8.h",
    "stubs/cuda/cuda_runtime.h",
];

/// The argument of cargo that optimises the shared object.
pub(crate) const OPTIMISED: &str = "--profile=shared-object";

/// The argument for one that is not optimised, which has a folder of its own: in that of the tests, which depend on the same
/// packages with other features, cargo would compile those, and the tests, again.
const DEBUG: &str = "--profile=shared-object-debug";

/// The way in which the shared object is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    Optimised,
    Debug,
}

impl Profile {
    /// Returns a command of cargo's that builds in this way.
    pub(crate) fn build(self) -> Command {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["rustc", if self == Self::Optimised { OPTIMISED } else { DEBUG }]);
        cargo
    }
}

/// A shared object of the workspace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedObject {
    package: &'static str,
    /// The name of the package's library.
    library: &'static str,
    /// The only feature; empty for the default ones.
    feature: &'static str,
    /// The file, whose name is its soname if programs load it by that.
    pub(crate) soname: &'static str,
    /// The link for linkers.
    pub(crate) link: Option<&'static str>,
}

const fn shared(
    package: &'static str,
    library: &'static str,
    feature: &'static str,
    soname: &'static str,
    link: Option<&'static str>,
) -> SharedObject {
    SharedObject { package, library, feature, soname, link }
}

/// The CPU backend of NCCL.
pub(crate) const NCCL: SharedObject =
    shared("libnccl-cpu-so", "nccl_cpu", "", "libnccl.so.2", Some("libnccl.so"));

/// The library that records a program's calls of NCCL.
const TRACE: SharedObject =
    shared("libnccl-trace", "nccl_trace", "", "libnccl-trace.so", Some("libnccl.so.2"));

/// The stand-in for CUDA's driver.
pub(crate) const DRIVER: SharedObject =
    shared("libnccl-cuda-driver", "cuda_cpu", "", "libcuda.so.1", Some("libcuda.so"));

/// The stand-ins for CUDA's runtime library, and for what else programs load beside it; their symbols have versions.
pub(crate) const RUNTIMES: [SharedObject; 6] = [
    shared("libnccl-cuda-math", "cuda_math_cpu", "cublas-13", "libcublas.so.13", None),
    shared("libnccl-cuda-math", "cuda_math_cpu", "", "libcublas.so.12", Some("libcublas.so")),
    shared("libnccl-cuda-math", "cuda_math_cpu", "curand", "libcurand.so.10", Some("libcurand.so")),
    shared("libnccl-nvml", "nvml_cpu", "", "libnvidia-ml.so.1", None),
    shared("libnccl-cuda-runtime", "cudart_cpu", "cuda-13", "libcudart.so.13", None),
    shared("libnccl-cuda-runtime", "cudart_cpu", "", "libcudart.so.12", Some("libcudart.so")),
];

/// Builds NCCL's stand-in and copies it to `directory` as `libnccl.so.2`, with the link `libnccl.so` for linkers and the
/// headers. Returns the path of the copy.
pub(crate) fn install(directory: &Path, profile: Profile) -> Result<PathBuf> {
    install_headers(directory)?;
    install_one(&mut profile.build(), NCCL, directory)
}

/// Builds the library that records calls with this command of cargo's and copies it to `directory` as `libnccl-trace.so`,
/// with links of NCCL's names. Returns the path of the copy.
pub(crate) fn install_trace(cargo: &mut Command, directory: &Path) -> Result<PathBuf> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let path = install_one(cargo, TRACE, directory)?;
    replace(&directory.join("libnccl.so"), |link| symlink(TRACE.soname, link))?;
    Ok(path)
}

/// Builds the stand-ins for CUDA's libraries and copies them to `directory`, which exists.
pub(crate) fn install_cuda(directory: &Path, profile: Profile) -> Result<()> {
    [DRIVER]
        .into_iter()
        .chain(RUNTIMES)
        .try_for_each(|library| install_one(&mut profile.build(), library, directory).map(drop))
}

fn install_one(cargo: &mut Command, library: SharedObject, directory: &Path) -> Result<PathBuf> {
    let built = build(cargo, library, true)?;
    let path = directory.join(library.soname);
    replace(&path, |copy| fs::copy(&built, copy).map(drop))?;
    if let Some(link) = library.link {
        replace(&directory.join(link), |link| symlink(library.soname, link))?;
    }
    Ok(path)
}

/// Copies the headers to `directory`, which is created if needed.
pub(crate) fn install_headers(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    for header in HEADERS {
        let path = crate::checkout::root().join("vendor-headers").join(header);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = file_name(header);
        let text = if name == header { text } else { before_the_stub(name) + &text };
        replace(&directory.join(name), |copy| fs::write(copy, &text))?;
    }
    Ok(())
}

/// Returns what comes before a stub of a header of CUDA's: that itself, if it is in a later folder, instead of the stub.
fn before_the_stub(name: &str) -> String {
    let guard = name.to_uppercase().replace('.', "_");
    format!(
        "#pragma GCC system_header\n#ifdef __has_include_next\n#if __has_include_next(<{name}>)\n#include_next <{name}>\n\
         #define LIBNCCL_STUB_{guard}\n#endif\n#endif\n"
    )
}

/// Makes `include` and `lib` in `directory`, where many programs' build systems look for NCCL: links to the files there.
pub(crate) fn link_folders(directory: &Path) -> Result<()> {
    let headers = HEADERS.map(|header| ("include", file_name(header)));
    let libraries = [NCCL, DRIVER].into_iter().chain(RUNTIMES);
    let names = libraries.flat_map(|library| [Some(library.soname), library.link]).flatten();
    for (folder, name) in headers.into_iter().chain(names.map(|name| ("lib", name))) {
        let folder = directory.join(folder);
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        replace(&folder.join(name), |link| symlink(Path::new("..").join(name), link))?;
    }
    Ok(())
}

/// Returns the name of a header without its folder.
fn file_name(header: &str) -> &str {
    header.rsplit_once('/').map_or(header, |(_, name)| name)
}

/// Makes a file under another name and then renames it: a program that has mapped the old file keeps it.
fn replace(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    make(Path::new(&new))
        .and_then(|()| fs::rename(&new, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Builds a library of this type with this command `rustc` of cargo's, and returns the path of its file.
pub(crate) fn build(cargo: &mut Command, library: SharedObject, is_shared: bool) -> Result<PathBuf> {
    let SharedObject { package, library, feature, soname, .. } = library;
    eprintln!("building {soname}");
    // Of that type alone: beside an rlib, it would not be optimised across crates.
    let (crate_type, extension) = if is_shared { ("cdylib", ".so") } else { ("staticlib", ".a") };
    cargo.arg("--lib").arg(format!("--crate-type={crate_type}"));
    if !feature.is_empty() {
        cargo.args(["--no-default-features", "--features", feature]);
    }
    build_target(cargo, package, library, extension)
}

/// Builds a library or program of a package with this command of cargo's, and returns the path of its file with this
/// extension, which may be empty.
pub(crate) fn build_target(
    cargo: &mut Command,
    package: &str,
    target: &str,
    extension: &str,
) -> Result<PathBuf> {
    let output = cargo
        .args(["--package", package, "--message-format=json-render-diagnostics"])
        .current_dir(crate::checkout::root())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cannot build {package}");
    }
    let messages = String::from_utf8(output.stdout).context("cargo's output")?;
    let mut found = messages.lines().filter_map(|message| file_of(message, target, extension));
    found.next().with_context(|| format!("cargo did not report a file {extension} of {target}"))
}

/// Returns the path of the target's file with this extension if this message of cargo's reports it.
fn file_of(message: &str, target: &str, extension: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["target"]["name"] != target {
        return None;
    }
    let mut files = message["filenames"].as_array()?.iter().filter_map(Value::as_str);
    files.find(|file| file.ends_with(extension)).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_of_cuda_is_not_hidden_by_its_stub() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        install_headers(&path("own")).unwrap();
        link_folders(&path("own")).unwrap();
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

    #[test]
    fn file_of_a_target_is_found_in_cargos_messages() {
        let artifact = r#"{"reason":"compiler-artifact","target":{"name":"nccl_cpu","kind":["cdylib"]},
            "filenames":["/t/debug/libnccl_cpu.a","/t/debug/libnccl_cpu.so"]}"#;
        assert_eq!(file_of(artifact, "nccl_cpu", ".so"), Some("/t/debug/libnccl_cpu.so".into()));
        assert_eq!(file_of(artifact, "nccl_cpu", ".a"), Some("/t/debug/libnccl_cpu.a".into()));
        assert_eq!(file_of(artifact, "libc", ".so"), None);
        assert_eq!(file_of(r#"{"reason":"build-finished","success":true}"#, "nccl_cpu", ".so"), None);
        let program =
            r#"{"reason":"compiler-artifact","target":{"name":"nccl"},"filenames":["/t/release/nccl"]}"#;
        assert_eq!(file_of(program, "nccl", ""), Some("/t/release/nccl".into()));
    }
}
