//! The tasks, run as commands; and builds that check a header, or generate other bindings than the committed ones.

mod check_header;
mod generated;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn xtask(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(arguments).envs(environment.iter().copied()).output().expect("xtask runs")
}

/// Writes a crate that depends on libnccl with a feature by default.
fn write_dependent(directory: &Path, libnccl: &Path, feature: &str) {
    let manifest = format!(
        "[package]\nname = \"dependent\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
         libnccl = {{ path = {libnccl:?}, default-features = false }}\n[features]\ndefault = [\"libnccl/{feature}\"]\n"
    );
    fs::create_dir_all(directory.join("src")).expect("a directory");
    fs::write(directory.join("src/lib.rs"), "").expect("the library is written");
    fs::write(directory.join("Cargo.toml"), manifest).expect("the manifest is written");
    // Reuses the existing dependencies.
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock");
    fs::copy(lock, directory.join("Cargo.lock")).expect("the lock is copied");
}

/// Checks the crate in a directory. Returns cargo's output: `Ok` if it succeeded.
fn cargo_check(directory: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["check", "--offline"]).args(arguments).current_dir(directory);
    command.env("CARGO_TARGET_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/check-header"));
    let output = command.envs(environment.iter().copied()).output().expect("cargo runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(stderr) } else { Err(stderr) }
}

#[track_caller]
fn fails_with(output: &Output, text: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(text) && !stderr.contains("panicked"), "{stderr}");
}

#[test]
#[ignore = "builds bindgen: .ci/run matrix"]
fn bindings_check_of_the_committed_bindings_succeeds() {
    let output = xtask(&["bindings", "--check"], &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty());
}

#[test]
#[ignore = "builds bindgen: .ci/run matrix"]
fn bindings_without_libclang_is_an_error() {
    let output = xtask(&["bindings", "--check"], &[("LIBCLANG_PATH", "/nowhere")]);
    fails_with(&output, "error: bindgen needs libclang");
}

#[test]
fn nvidia_package_without_python_is_an_error() {
    let cache = tempfile::tempdir().expect("a temporary directory");
    let cache = cache.path().to_str().expect("its name is text");
    let output = xtask(&["nvidia-package", "2.18.3"], &[("PATH", "/nowhere"), ("LIBNCCL_CACHE", cache)]);
    fails_with(&output, "python3 does not run");
    assert_eq!(
        fs::read_dir(cache).expect("the cache is a directory").count(),
        0,
        "no partial download is left"
    );
}

#[test]
fn malformed_version_is_an_error() {
    fails_with(&xtask(&["nvidia-package", "../2.18.3"], &[]), "is not a version of NCCL");
    fails_with(&xtask(&["headers", "latest"], &[]), "1 of 1 versions failed: latest");
}

/// Compiles and runs C programs with nothing but the directory, as users do.
#[test]
#[ignore = "builds all shared objects: .ci/run matrix"]
fn cpu_so_directory_compiles_and_runs_c_programs() {
    let temp = tempfile::tempdir().expect("a temporary directory");
    let directory = temp.path().to_str().expect("its name is text");
    // The tests of crates/cpu-so and others build it there too.
    let target = concat!(env!("CARGO_TARGET_TMPDIR"), "/cpu-so");
    // Twice: the second time replaces existing files.
    for _ in 0..2 {
        let output = xtask(&["cpu-so", "--debug", directory], &[("CARGO_TARGET_DIR", target)]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.stdout, format!("{directory}/libnccl.so.2\n").into_bytes());
    }
    let names = |path: &str| {
        let entries = fs::read_dir(path).expect("the directory").map(|entry| entry.expect("an entry"));
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().expect("text")).collect();
        names.sort();
        names
    };
    let headers = ["cuda_bf16.h", "cuda_fp16.h", "cuda_fp8.h", "cuda_runtime.h"];
    let math = ["libcublas.so", "libcublas.so.12", "libcublas.so.13"];
    let cuda = ["libcuda.so", "libcuda.so.1", "libcudart.so", "libcudart.so.12", "libcudart.so.13"];
    let nccl = ["libnccl.so", "libnccl.so.2"];
    let curand = ["libcurand.so", "libcurand.so.10"];
    let libraries = [&math[..], &cuda, &curand, &nccl, &["libnvidia-ml.so.1"]].concat();
    let all = [&headers[..], &["include", "lib"], &libraries, &["nccl.h"]].concat();
    assert_eq!(names(directory), all);
    let [include, lib] = ["include", "lib"].map(|name| format!("{directory}/{name}"));
    assert_eq!(names(&include), [&headers[..], &["nccl.h"]].concat());
    assert_eq!(names(&lib), libraries);

    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/cpu-so/tests/c");
    let mut compilers = vec![("cc", "ring.c")];
    // The project needs a C compiler, but no C++ compiler.
    if Command::new("c++").arg("--version").output().is_ok() {
        compilers.push(("c++", "header.cpp"));
    }
    let directories = [(directory, directory), (&include, &lib)];
    let runs = directories
        .iter()
        .flat_map(|directories| compilers.iter().map(move |compiler| (directories, compiler)));
    for ((include, lib), (compiler, source)) in runs {
        let program = temp.path().join(source).with_extension("");
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-pthread", "-I", include]).arg(programs.join(source));
        command.args(["-L", lib, "-lnccl", "-o"]).arg(&program);
        assert!(command.status().expect("the compiler runs").success(), "{command:?}");
        let output = Command::new(&program).env("LD_LIBRARY_PATH", lib).output().expect("it starts");
        assert!(output.status.success() && output.stdout.starts_with(b"ok: "), "{source}: {output:?}");
    }
}
