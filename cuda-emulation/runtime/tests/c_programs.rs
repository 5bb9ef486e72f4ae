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
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c")
}

/// Returns a directory with the shared objects, which are built first: Cargo builds no cdylib of other packages for tests.
fn shared_objects() -> &'static Path {
    static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-so");
        cuda_install::install(&directory, Profile::Debug).expect("the shared objects are built");
        directory
    });
    &DIRECTORY
}

/// Returns the emulated runtime library.
fn runtime(release: Release) -> PathBuf {
    shared_objects().join(release.soname())
}

fn compile(source: &str, toolkit: &Toolkit, runtime: &Path) -> Program {
    let includes: Vec<_> = toolkit.directories.iter().map(|directory| directory.join("include")).collect();
    Program::compile(&sources().join(source), &includes, runtime, &[])
}

/// Compiles and runs a program with the emulation of a CUDA version and this many devices.
fn run(source: &str, release: Release, devices: &str) {
    let Some(toolkit) = release.toolkit(source) else { return };
    let program = compile(source, toolkit, &runtime(release));
    let printed = program.run(shared_objects(), devices);
    assert!(printed.starts_with("ok: "), "{printed}");
}

macro_rules! programs {
    ($($name:ident: $source:literal, $release:ident;)*) => {
        $(
            #[test]
            #[ignore = "downloads NVIDIA's packages: ./ci"]
            fn $name() {
                run($source, Release::$release, "4");
            }
        )*

        /// The programs that are run with the CUDA emulation.
        const SOURCES: &[&str] = &[$($source),*];
    };
}

programs! {
    math_handles: "math_handles.c", Cuda12;
    math_handles_of_cuda_13: "math_handles.c", Cuda13;
    nvml: "nvml.c", Cuda12;
    per_thread_streams: "per_thread_streams.c", Cuda12;
    runtime_api: "runtime_api.c", Cuda12;
    runtime_api_of_cuda_13: "runtime_api.c", Cuda13;
    shared_memory: "shared_memory.c", Cuda12;
    shared_memory_of_cuda_13: "shared_memory.c", Cuda13;
}

/// The program that is run with NVIDIA's CUPTI.
const WITH_CUPTI: &str = "cupti.c";

#[test]
#[ignore = "downloads NVIDIA's packages: ./ci"]
fn cupti_ends_with_an_error() {
    for release in [Release::Cuda12, Release::Cuda13] {
        let Some(toolkit) = release.toolkit(WITH_CUPTI) else { return };
        let directory = tempfile::tempdir().expect("a temporary directory");
        let libraries = ["libcuda.so.1".into(), release.soname()].map(|name| shared_objects().join(name));
        for library in libraries.iter().chain([&toolkit.cupti]) {
            let name = library.file_name().expect("a file's name");
            symlink(library, directory.path().join(name)).expect("a link");
        }
        let program = compile(WITH_CUPTI, toolkit, &runtime(release));
        assert_eq!(program.run(directory.path(), "1"), "ok: CUPTI is refused\n");
    }
}

/// A program that is run without devices.
const WITHOUT_DEVICES: &str = "no_device.c";

#[test]
#[ignore = "downloads NVIDIA's packages: ./ci"]
fn driver_without_devices_is_an_error() {
    run(WITHOUT_DEVICES, Release::Cuda12, "0");
}

/// The program whose output is compared with a GPU's.
const OF_A_GPU: &str = "codes.c";

/// The programs whose output is compared between NVIDIA's library and the emulation.
const COMPARED: &[&str] = &["error_names.c", "no_driver.c"];

#[test]
fn every_c_program_has_a_test() {
    let files = fs::read_dir(sources())
        .expect("the directory of the programs")
        .map(|entry| entry.expect("an entry").file_name());
    let found: BTreeSet<String> = files
        .map(|name| name.into_string().expect("a file's name"))
        .filter(|name| name.ends_with(".c"))
        .collect();
    assert_eq!(
        found,
        SOURCES
            .iter()
            .chain(COMPARED)
            .chain([&WITH_CUPTI, &WITHOUT_DEVICES, &OF_A_GPU])
            .map(ToString::to_string)
            .collect()
    );
}

/// The beginnings of cases that differ from a GPU, and the reason.
const DIFFERENT_FROM_A_GPU: &[(&[&str], &str)] = &[
    (
        &[
            "procedures, cuInit 12000 flags 2",
            "procedures, cuInit 12000 flags 3",
            "procedures, cuStreamSynchronize",
        ],
        "the driver has no functions whose null stream is the thread's own",
    ),
    (
        &["threads, attributes", "threads, launch", "driver, launch null", "driver, module"],
        "kernels are not supported with any arguments",
    ),
    (&["captures, malloc in stream order", "captures, end"], "allocations do not become nodes"),
    (
        &[
            "after a fault, after a reset",
            "after a fault, malloc after a reset",
            "after a fault, synchronize after a reset",
        ],
        "a device can be used again once it is reset",
    ),
    (&["devices, valid devices null"], "the list of valid devices is not supported"),
    (&["names: 36 of the driver"], "the list of codes has none of CUDA 12.9 and newer"),
];

#[test]
#[ignore = "downloads NVIDIA's packages: ./ci"]
fn invalid_calls_match_a_gpu() {
    let Some(toolkit) = Release::Cuda12.toolkit(OF_A_GPU) else { return };
    let expected = fs::read_to_string(sources().join("codes.txt")).expect("what a GPU printed");
    let program = compile(OF_A_GPU, toolkit, &runtime(Release::Cuda12));
    let found = program.run(shared_objects(), "1");
    let (expected, found): (Vec<_>, Vec<_>) = (expected.lines().collect(), found.lines().collect());
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    let differing: Vec<_> =
        found.iter().zip(&expected).filter(|(found, expected)| found != expected).collect();
    let explained = |line: &str, case: &&&str| line.starts_with(**case);
    let cases: Vec<_> = DIFFERENT_FROM_A_GPU.iter().flat_map(|(cases, _)| *cases).collect();
    let surplus: Vec<_> =
        differing.iter().filter(|(found, _)| !cases.iter().any(|case| explained(found, case))).collect();
    assert!(surplus.is_empty(), "found and expected: {surplus:#?}");
    let outdated: Vec<_> =
        cases.iter().filter(|case| !differing.iter().any(|(found, _)| explained(found, case))).collect();
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
        let mut found = exports(&shared_objects().join(library));
        assert!(found.remove(library), "the symbol version is exported too: {found:?}");
        let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(table);
        let functions = libnccl_cuda_functions::read(&table).expect("the table");
        let functions = functions.iter().filter(|function| function.is_in(major));
        let expected = functions.map(|function| format!("{}@@{library}", function.name)).collect();
        assert_eq!(found, expected, "{library}");
    }
}
