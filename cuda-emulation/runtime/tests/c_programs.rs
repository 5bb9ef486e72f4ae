//! The emulated libraries as C programs see them: programs that are compiled against NVIDIA's headers, and linked with the
//! shared objects under the names of NVIDIA's libraries.
//!
//! `cargo test -p libnccl-cuda-runtime -- --ignored` downloads NVIDIA's packages, with headers and the libraries to compare with,
//! once, and keeps them outside the checkout. Where that is impossible, the tests print that they are skipped.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use cuda_install::Profile;
use cuda_test_support::toolkit::{Program, Release, Toolkit, run_tool};

/// The directory of the programs.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c");

/// The directory of the shared objects, named by `LIBNCCL_TEST_LIBRARIES`. Without it, they are built first: Cargo builds no cdylib of
/// other packages for tests.
static SHARED_OBJECTS: LazyLock<PathBuf> = LazyLock::new(|| {
    if let Some(directory) = std::env::var_os("LIBNCCL_TEST_LIBRARIES") {
        return directory.into();
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-so");
    cuda_install::install(&directory, Profile::Debug).expect("the shared objects are built");
    directory
});

/// Returns the emulated runtime library.
fn runtime(release: Release) -> PathBuf {
    SHARED_OBJECTS.join(release.soname())
}

fn compile(source: &str, toolkit: &Toolkit, runtime: &Path) -> Program {
    let includes: Vec<_> = toolkit.directories.iter().map(|directory| directory.join("include")).collect();
    Program::compile(&Path::new(SOURCES).join(source), &includes, runtime, &[])
}

/// Compiles and runs a program with the emulation of a CUDA version and this many devices.
fn run(source: &str, release: Release, devices: &str) {
    let Some(toolkit) = release.toolkit(source) else { return };
    let printed = compile(source, toolkit, &runtime(release)).run(&SHARED_OBJECTS, devices);
    assert!(printed.starts_with("ok: "), "{source}: {printed}");
}

/// Runs every program that no other test runs.
fn run_programs(release: Release) {
    const OTHERS: [&str; 5] = ["codes.c", "cupti.c", "error_names.c", "no_device.c", "no_driver.c"];
    for entry in fs::read_dir(SOURCES).expect("the directory of the programs") {
        let name = entry.expect("an entry").file_name().into_string().expect("a file's name");
        if name.ends_with(".c") && !OTHERS.contains(&&*name) {
            run(&name, release, "4");
        }
    }
}

#[test]
#[ignore = "downloads NVIDIA's packages: ./ci"]
fn programs_run_with_cuda_12() {
    run_programs(Release::Cuda12);
}

#[test]
#[ignore = "downloads NVIDIA's packages: ./ci"]
fn programs_run_with_cuda_13() {
    run_programs(Release::Cuda13);
}

#[test]
#[ignore = "downloads NVIDIA's packages: ./ci"]
fn cupti_ends_with_an_error() {
    for release in [Release::Cuda12, Release::Cuda13] {
        let Some(toolkit) = release.toolkit("cupti.c") else { return };
        let directory = tempfile::tempdir().expect("a temporary directory");
        let libraries = ["libcuda.so.1".into(), release.soname()].map(|name| SHARED_OBJECTS.join(name));
        for library in libraries.iter().chain([&toolkit.cupti]) {
            let name = library.file_name().expect("a file's name");
            symlink(library, directory.path().join(name)).expect("a link");
        }
        let program = compile("cupti.c", toolkit, &runtime(release));
        assert_eq!(program.run(directory.path(), "1"), "ok: CUPTI is refused\n");
    }
}

#[test]
#[ignore = "downloads NVIDIA's packages: ./ci"]
fn driver_without_devices_is_an_error() {
    run("no_device.c", Release::Cuda12, "0");
}

/// The beginnings of cases that differ from a GPU.
const DIFFERENT_FROM_A_GPU: [&str; 14] = [
    // The driver has no functions whose null stream is the thread's own.
    "procedures, cuInit 12000 flags 2",
    "procedures, cuInit 12000 flags 3",
    "procedures, cuStreamSynchronize",
    // Kernels are not supported with any arguments.
    "threads, attributes",
    "threads, launch",
    "driver, launch null",
    "driver, module",
    // Allocations do not become nodes.
    "captures, malloc in stream order",
    "captures, end",
    // A device can be used again once it is reset.
    "after a fault, after a reset",
    "after a fault, malloc after a reset",
    "after a fault, synchronize after a reset",
    // The list of valid devices is not supported.
    "devices, valid devices null",
    // The list of codes has none of CUDA 12.9 and newer.
    "names: 36 of the driver",
];

#[test]
#[ignore = "downloads NVIDIA's packages: ./ci"]
fn invalid_calls_match_a_gpu() {
    let Some(toolkit) = Release::Cuda12.toolkit("codes.c") else { return };
    let expected = fs::read_to_string(Path::new(SOURCES).join("codes.txt")).expect("what a GPU printed");
    let found = compile("codes.c", toolkit, &runtime(Release::Cuda12)).run(&SHARED_OBJECTS, "1");
    let (expected, found): (Vec<_>, Vec<_>) = (expected.lines().collect(), found.lines().collect());
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    let differing: Vec<_> =
        found.iter().zip(&expected).filter(|(found, expected)| found != expected).collect();
    let is_of = |line: &str, case: &str| line.starts_with(case);
    let is_surplus =
        |(found, _): &&(&&str, &&str)| !DIFFERENT_FROM_A_GPU.iter().any(|case| is_of(found, case));
    let surplus: Vec<_> = differing.iter().filter(is_surplus).collect();
    assert!(surplus.is_empty(), "found and expected: {surplus:#?}");
    let is_outdated = |case: &&&str| !differing.iter().any(|(found, _)| is_of(found, case));
    let outdated: Vec<_> = DIFFERENT_FROM_A_GPU.iter().filter(is_outdated).collect();
    assert!(outdated.is_empty(), "no longer different: {outdated:?}");
}

/// Requires a program to print the same with the emulated runtime and NVIDIA's, whichever it was linked with.
fn require_same_output(source: &str, release: Release) {
    let Some(toolkit) = release.toolkit(source) else { return };
    // A directory without the driver.
    let ours = tempfile::tempdir().expect("a temporary directory");
    fs::copy(runtime(release), ours.path().join(release.soname())).expect("the library can be copied");
    let theirs = toolkit.runtime.parent().expect("a library lies in a directory");
    let of_theirs = compile(source, toolkit, &toolkit.runtime);
    let of_ours = compile(source, toolkit, &ours.path().join(release.soname()));
    let expected = of_theirs.run(theirs, "4");
    assert!(expected.lines().count() > 10, "{expected}");
    assert_eq!(of_theirs.run(ours.path(), "4"), expected);
    assert_eq!(of_ours.run(ours.path(), "4"), expected);
    assert_eq!(of_ours.run(theirs, "4"), expected);
}

#[test]
#[ignore = "downloads NVIDIA's packages: ./ci"]
fn error_names_match_nvidias_libraries() {
    // Newer CUDA versions have more codes. The emulation has all of them in any version.
    require_same_output("error_names.c", Release::Cuda13);
}

#[test]
#[ignore = "downloads NVIDIA's packages: ./ci"]
fn runtime_without_a_driver_matches_nvidias() {
    let has_driver = Command::new("sh").args(["-c", "ldconfig -p | grep -q libcuda.so.1"]).status();
    if has_driver.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no_driver.c, as there is a driver");
        return;
    }
    require_same_output("no_driver.c", Release::Cuda12);
    require_same_output("no_driver.c", Release::Cuda13);
}

/// Returns the symbols that a library exports, with their symbol versions.
fn exports(library: &Path) -> BTreeSet<String> {
    let printed = run_tool(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    printed.lines().filter_map(|line| line.split_whitespace().nth(2)).map(String::from).collect()
}

#[test]
#[ignore = "downloads NVIDIA's packages: ./ci"]
fn exports_match_nvidias_libraries() {
    for release in [Release::Cuda12, Release::Cuda13] {
        let Some(toolkit) = release.toolkit("exports") else { return };
        let (found, expected) = (exports(&runtime(release)), exports(&toolkit.runtime));
        assert!(expected.contains(&format!("cudaMalloc@@{}", release.soname())), "{expected:?}");
        let missing: Vec<_> = expected.difference(&found).collect();
        let surplus: Vec<_> = found.difference(&expected).collect();
        assert!(missing.is_empty() && surplus.is_empty(), "missing: {missing:?}, surplus: {surplus:?}");
    }
}

#[test]
#[ignore = "builds all shared objects: ./ci"]
fn exports_match_the_tables() {
    for (library, table, major) in [
        ("libcudart.so.12", "runtime/functions.txt", 12),
        ("libcudart.so.13", "runtime/functions.txt", 13),
        ("libnvidia-ml.so.1", "nvml/functions.txt", 12),
        ("libcublas.so.12", "math/cublas.txt", 12),
        ("libcublas.so.13", "math/cublas.txt", 13),
        ("libcurand.so.10", "math/curand.txt", 10),
    ] {
        let mut found = exports(&SHARED_OBJECTS.join(library));
        assert!(found.remove(library), "the symbol version is exported too: {found:?}");
        let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(table);
        let functions = libnccl_cuda_functions::read(&table).expect("the table");
        let functions = functions.iter().filter(|function| function.is_in(major));
        let expected = functions.map(|function| format!("{}@@{library}", function.name)).collect();
        assert_eq!(found, expected, "{library}");
    }
}
