//! C programs on the CUDA emulation: compiled against NVIDIA's headers, and linked with the shared objects under the names of
//! CUDA's and NCCL's.
//!
//! `cargo test -p libnccl-cuda-runtime -- --ignored` downloads NVIDIA's packages, with headers and the library to compare with, once
//! and keeps them outside the checkout. Where that is impossible, the tests report that they are skipped.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use tempfile::TempDir;

/// Seconds after which a program counts as hung.
const LIMIT: &str = "120";

/// A major version of CUDA whose runtime is emulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Release {
    Cuda12,
    Cuda13,
}

#[derive(Debug)]
struct Toolkit {
    includes: Vec<PathBuf>,
    library: PathBuf,
    cupti: PathBuf,
}

impl Release {
    fn major(self) -> &'static str {
        match self {
            Self::Cuda12 => "12",
            Self::Cuda13 => "13",
        }
    }

    fn soname(self) -> String {
        format!("libcudart.so.{}", self.major())
    }

    /// Returns NVIDIA's files. Without them, reports that a test is skipped.
    fn toolkit(self, test: &str) -> Option<&'static Toolkit> {
        static CUDA_12: LazyLock<Result<Toolkit, String>> = LazyLock::new(|| obtain(Release::Cuda12));
        static CUDA_13: LazyLock<Result<Toolkit, String>> = LazyLock::new(|| obtain(Release::Cuda13));
        let toolkit = if self == Self::Cuda12 { &*CUDA_12 } else { &*CUDA_13 };
        toolkit.as_ref().inspect_err(|error| eprintln!("skipped: {test}, as {}", error.trim())).ok()
    }

    /// Returns the emulated runtime.
    fn runtime(self) -> PathBuf {
        shared_objects().join(self.soname())
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../..")
        .canonicalize()
        .expect("this package lies in crates/cuda")
}

/// Returns the directory of the programs.
fn sources() -> PathBuf {
    repository().join("crates/cuda/tests/c")
}

fn xtask(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "--quiet", "--package", "xtask", "--"]).args(arguments);
    command.current_dir(repository());
    command
}

fn obtain(release: Release) -> Result<Toolkit, String> {
    let output = xtask(&["cudart-package", release.major()]).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    let folders: Vec<&Path> = printed.lines().map(Path::new).collect();
    let library = folders[0].join("lib").join(release.soname());
    let cupti = folders[folders.len() - 1].join("lib").join(format!("libcupti.so.{}", release.major()));
    Ok(Toolkit { includes: folders.iter().map(|folder| folder.join("include")).collect(), library, cupti })
}

/// Runs a tool and returns its output.
fn run_tool(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}"));
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{printed}{errors}", output.status);
    printed.into_owned()
}

/// Builds the shared objects, as Cargo builds no cdylib of other packages for tests, and returns their directory.
fn shared_objects() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-so");
        run_tool(xtask(&["cpu-so", "--debug"]).arg(&folder));
        folder
    });
    &FOLDER
}

/// A program in its own directory.
#[derive(Debug)]
struct Program {
    folder: TempDir,
}

impl Program {
    /// Compiles a program against NVIDIA's headers, and links it with `runtime`.
    fn compile(source: &str, toolkit: &Toolkit, runtime: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        symlink(runtime, folder.path().join("libcudart.so")).expect("a link");
        let mut command = Command::new("cc");
        command.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread"]);
        for include in &toolkit.includes {
            command.arg("-isystem").arg(include);
        }
        // NCCL's header, after NVIDIA's: its directory also has replacements for CUDA's headers, which must not be found here.
        command.arg("-I").arg(repository().join("vendor-headers"));
        command.arg("-I").arg(repository().join("crates/cpu-so/tests/c"));
        command.current_dir(sources()).arg(source);
        command.arg("-o").arg(folder.path().join("program"));
        command.arg("-L").arg(folder.path()).arg("-L").arg(shared_objects());
        command.args(["-Wl,--as-needed", "-lcudart", "-lnccl"]);
        run_tool(&mut command);
        Self { folder }
    }

    /// Runs the program with the libraries of a directory, and returns its output.
    fn run(&self, libraries: &Path, devices: &str) -> String {
        run_tool(self.command(libraries, devices).env("LIBNCCL_CPU_RACES", "error"))
    }

    fn command(&self, libraries: &Path, devices: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", LIMIT]).arg(self.folder.path().join("program"));
        command
            .env("LD_LIBRARY_PATH", libraries)
            .env("LIBNCCL_CPU_DEVICES", devices)
            .env_remove("NCCL_DEBUG");
        command
    }
}

/// Compiles and runs a program.
fn run(source: &str, release: Release, devices: &str) {
    let Some(toolkit) = release.toolkit(source) else { return };
    let program = Program::compile(source, toolkit, &release.runtime());
    let printed = program.run(shared_objects(), devices);
    assert!(printed.starts_with("ok: "), "{printed}");
}

macro_rules! programs {
    ($($name:ident: $source:literal, $release:ident;)*) => {
        $(
            #[test]
            #[ignore = "downloads NVIDIA's packages: .ci/cuda"]
            fn $name() {
                run($source, Release::$release, "4");
            }
        )*

        const SOURCES: &[&str] = &[$($source),*];
    };
}

programs! {
    driver_after_nccl: "driver_after_nccl.c", Cuda12;
    failures: "failures.c", Cuda12;
    graphs: "graphs.c", Cuda12;
    graphs_of_cuda_13: "graphs.c", Cuda13;
    mapped_memory: "mapped_memory.c", Cuda12;
    math_handles: "math_handles.c", Cuda12;
    math_handles_of_cuda_13: "math_handles.c", Cuda13;
    nccl_first: "nccl_first.c", Cuda12;
    nccl_first_of_cuda_13: "nccl_first.c", Cuda13;
    nvml: "nvml.c", Cuda12;
    one_process: "one_process.c", Cuda12;
    one_process_of_cuda_13: "one_process.c", Cuda13;
    one_sided: "one_sided.c", Cuda12;
    per_thread_streams: "per_thread_streams.c", Cuda12;
    process_per_device: "process_per_device.c", Cuda12;
    registered_buffers: "registered_buffers.c", Cuda12;
    ring: "ring.c", Cuda12;
    runtime_api: "runtime_api.c", Cuda12;
    runtime_api_of_cuda_13: "runtime_api.c", Cuda13;
    shared_memory: "shared_memory.c", Cuda12;
    shared_memory_of_cuda_13: "shared_memory.c", Cuda13;
    symmetric_windows: "symmetric_windows.c", Cuda12;
    thread_per_device: "thread_per_device.c", Cuda12;
}

/// The program that loads NVIDIA's CUPTI.
const WITH_CUPTI: &str = "cupti.c";

#[test]
#[ignore = "downloads NVIDIA's packages: .ci/cuda"]
fn cupti_ends_with_an_error() {
    for release in [Release::Cuda12, Release::Cuda13] {
        let Some(toolkit) = release.toolkit(WITH_CUPTI) else { return };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let libraries = ["libcuda.so.1".into(), release.soname()].map(|name| shared_objects().join(name));
        for library in libraries.iter().chain([&toolkit.cupti]) {
            let name = library.file_name().expect("a file's name");
            symlink(library, folder.path().join(name)).expect("a link");
        }
        let program = Program::compile(WITH_CUPTI, toolkit, &release.runtime());
        assert_eq!(program.run(folder.path(), "1"), "ok: CUPTI is refused\n");
    }
}

const WITHOUT_DEVICES: &str = "no_device.c";

#[test]
#[ignore = "downloads NVIDIA's packages: .ci/cuda"]
fn driver_without_devices_is_an_error() {
    run(WITHOUT_DEVICES, Release::Cuda12, "0");
}

/// A program with a race in a loop, and with leaks.
const WITH_FINDINGS: &str = "race_in_a_loop.c";

#[test]
#[ignore = "downloads NVIDIA's packages: .ci/cuda"]
fn race_in_a_loop_is_reported_once_with_its_lines_and_counted_and_leaks_are_listed() {
    let Some(toolkit) = Release::Cuda12.toolkit(WITH_FINDINGS) else { return };
    let program = Program::compile(WITH_FINDINGS, toolkit, &Release::Cuda12.runtime());
    let source = fs::read_to_string(sources().join(WITH_FINDINGS)).expect("the program");
    let line = |text| source.lines().position(|line| line.contains(text)).expect("a line of the program") + 1;
    let mut command = program.command(shared_objects(), "2");
    let output =
        command.envs([("LIBNCCL_CPU_STACKS", "1"), ("LIBNCCL_CPU_STRICT", "1")]).output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let names = errors.lines().filter_map(|line| line.strip_suffix(']')?.rsplit_once(" ["));
    let mut names: Vec<_> = names.map(|(_, name)| name).collect();
    names.sort_unstable();
    let expected = [
        "leaked-communicator",
        "leaked-device-memory",
        "leaked-device-memory",
        "leaked-event",
        "leaked-stream",
        "leaked-stream",
        "race",
        "race",
    ];
    assert_eq!(names, expected, "{errors}");
    assert!(
        errors.contains(
            " more operations were in races of cuMemsetD8_v2 and ncclAllReduce in device memory, as"
        ),
        "{errors}"
    );
    for (function, call) in [("cudaMemset", "CUDA(cudaMemset("), ("ncclGroupEnd", "CHECK(ncclGroupEnd(")] {
        let (line, before) =
            (format!("{WITH_FINDINGS}:{}:", line(call)), format!("\n        {function}\n        main at "));
        let callers = errors.split(&before).skip(1).filter_map(|rest| rest.lines().next());
        assert!(callers.clone().any(|caller| caller.contains(&line)), "no {line} in {errors}");
    }
}

/// The program whose output is compared with that of a GPU.
const OF_A_GPU: &str = "codes.c";

/// The programs whose output is compared with that of NVIDIA's library.
const COMPARED: &[&str] = &["error_names.c", "no_driver.c"];

#[test]
fn every_c_program_has_a_test() {
    let files = fs::read_dir(sources())
        .expect("the folder of the programs")
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
            .chain([&WITH_CUPTI, &WITHOUT_DEVICES, &WITH_FINDINGS, &OF_A_GPU])
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
        "kernels are not supported, whatever the arguments",
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
#[ignore = "downloads NVIDIA's packages: .ci/cuda"]
fn wrong_calls_are_answered_as_by_a_gpu() {
    let Some(toolkit) = Release::Cuda12.toolkit(OF_A_GPU) else { return };
    let expected = fs::read_to_string(sources().join("codes.txt")).expect("what a GPU printed");
    let program = Program::compile(OF_A_GPU, toolkit, &Release::Cuda12.runtime());
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
    fs::copy(release.runtime(), ours.path().join(release.soname())).expect("the library can be copied");
    let theirs = toolkit.library.parent().expect("a library lies in a folder");
    let of_theirs = Program::compile(source, toolkit, &toolkit.library);
    let of_ours = Program::compile(source, toolkit, &ours.path().join(release.soname()));
    let expected = of_theirs.run(theirs, "4");
    assert!(expected.lines().count() > 10, "{expected}");
    assert_eq!(of_theirs.run(ours.path(), "4"), expected);
    assert_eq!(of_ours.run(ours.path(), "4"), expected);
    assert_eq!(of_ours.run(theirs, "4"), expected);
}

#[test]
#[ignore = "downloads NVIDIA's packages: .ci/cuda"]
fn error_names_are_those_of_nvidias_libraries() {
    // Newer releases have more codes, which are known here with any release.
    require_same_output("error_names.c", Release::Cuda13);
}

#[test]
#[ignore = "downloads NVIDIA's packages: .ci/cuda"]
fn runtime_without_a_driver_answers_as_nvidias() {
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
#[ignore = "downloads NVIDIA's packages: .ci/cuda"]
fn exports_are_exactly_those_of_nvidias_libraries() {
    for release in [Release::Cuda12, Release::Cuda13] {
        let Some(toolkit) = release.toolkit("exports") else { return };
        let (found, expected) = (exports(&release.runtime()), exports(&toolkit.library));
        assert!(expected.contains(&format!("cudaMalloc@@{}", release.soname())), "{expected:?}");
        let missing: Vec<_> = expected.difference(&found).collect();
        let surplus: Vec<_> = found.difference(&expected).collect();
        assert!(missing.is_empty() && surplus.is_empty(), "missing: {missing:?}, surplus: {surplus:?}");
    }
}

#[test]
#[ignore = "builds all shared objects: .ci/cuda"]
fn exports_are_those_of_the_tables() {
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
