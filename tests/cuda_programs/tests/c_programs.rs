//! C programs that use NCCL on devices: compiled against NVIDIA's headers, and linked with the CPU backend and the CUDA
//! emulation under the names of NVIDIA's libraries.
//!
//! `cargo test -p libnccl-cuda-programs -- --ignored` downloads NVIDIA's headers once, and keeps them outside the checkout.
//! Where that is impossible, the tests print that they are skipped.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use cuda_test_support::toolkit::{Program, Release, Toolkit, run_tool};

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The directory of the programs.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("c")
}

/// Returns a directory with the shared objects, which are built first: Cargo builds no cdylib of other packages for tests.
fn shared_objects() -> &'static Path {
    static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cpu-so");
        let mut xtask = Command::new(env!("CARGO"));
        xtask.args(["run", "--quiet", "--package", "xtask", "--", "cpu-so", "--debug"]).arg(&directory);
        run_tool(xtask.current_dir(repository()));
        directory
    });
    &DIRECTORY
}

fn compile(source: &str, toolkit: &Toolkit, release: Release) -> Program {
    let own = ["vendor-headers", "crates/cpu-so/tests/c", "cuda-emulation/runtime/tests/c"];
    let own = own.map(|directory| repository().join(directory));
    let includes = toolkit.directories.iter().map(|directory| directory.join("include"));
    // NCCL's header after NVIDIA's: its directory also contains stubs of CUDA's headers, which must not be used here.
    let includes: Vec<_> = includes.chain(own).collect();
    let libraries = format!("-L{}", shared_objects().display());
    let runtime = shared_objects().join(release.soname());
    Program::compile(&sources().join(source), &includes, &runtime, &[&libraries, "-lnccl"])
}

/// Compiles and runs a program with the emulation of a CUDA version and this many devices.
fn run(source: &str, release: Release, devices: &str) {
    let Some(toolkit) = release.toolkit(source) else { return };
    let printed = compile(source, toolkit, release).run(shared_objects(), devices);
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

        /// The programs that print a line that begins with `ok`.
        const SOURCES: &[&str] = &[$($source),*];
    };
}

programs! {
    driver_after_nccl: "driver_after_nccl.c", Cuda12;
    failures: "failures.c", Cuda12;
    graphs: "graphs.c", Cuda12;
    graphs_of_cuda_13: "graphs.c", Cuda13;
    mapped_memory: "mapped_memory.c", Cuda12;
    nccl_first: "nccl_first.c", Cuda12;
    nccl_first_of_cuda_13: "nccl_first.c", Cuda13;
    one_process: "one_process.c", Cuda12;
    one_process_of_cuda_13: "one_process.c", Cuda13;
    one_sided: "one_sided.c", Cuda12;
    process_per_device: "process_per_device.c", Cuda12;
    registered_buffers: "registered_buffers.c", Cuda12;
    ring: "ring.c", Cuda12;
    symmetric_windows: "symmetric_windows.c", Cuda12;
    thread_per_device: "thread_per_device.c", Cuda12;
}

/// A program with a race in a loop, which leaks a communicator and other objects.
const WITH_FINDINGS: &str = "race_in_a_loop.c";

#[test]
#[ignore = "downloads NVIDIA's packages: .ci/cuda"]
fn race_in_a_loop_is_reported_once_and_leaks_are_listed() {
    let Some(toolkit) = Release::Cuda12.toolkit(WITH_FINDINGS) else { return };
    let program = compile(WITH_FINDINGS, toolkit, Release::Cuda12);
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

#[test]
fn every_c_program_has_a_test() {
    let files = fs::read_dir(sources()).expect("the directory of the programs");
    let names = files.map(|entry| entry.expect("an entry").file_name().into_string().expect("a file's name"));
    let found: BTreeSet<String> = names.filter(|name| name.ends_with(".c")).collect();
    assert_eq!(found, SOURCES.iter().chain([&WITH_FINDINGS]).map(ToString::to_string).collect());
}
