//! C programs that use NCCL on devices: compiled against NVIDIA's headers, and linked with the CPU backend and the CUDA
//! emulation under the names of NVIDIA's libraries.
//!
//! `cargo test -p libnccl-cuda-programs -- --ignored` downloads NVIDIA's headers once, and keeps them outside the checkout.
//! Where that is impossible, the tests print that they are skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use cuda_test_support::toolkit::{Program, Release, Toolkit, run_tool};

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The directory of the programs.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/c");

/// The directory of the shared objects, named by `LIBNCCL_TEST_LIBRARIES`. Without it, they are built first: Cargo builds no cdylib of
/// other packages for tests.
static SHARED_OBJECTS: LazyLock<PathBuf> = LazyLock::new(|| {
    if let Some(directory) = std::env::var_os("LIBNCCL_TEST_LIBRARIES") {
        return directory.into();
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cpu-so");
    let mut xtask = Command::new(env!("CARGO"));
    xtask.args(["run", "--quiet", "--package", "xtask", "--", "cpu-so", "--debug"]).arg(&directory);
    run_tool(xtask.current_dir(repository()));
    directory
});

fn compile(source: &Path, toolkit: &Toolkit, release: Release) -> Program {
    let own = ["vendor-headers", "crates/cpu-so/tests/c", "cuda-emulation/runtime/tests/c"];
    let own = own.map(|directory| repository().join(directory));
    let includes = toolkit.directories.iter().map(|directory| directory.join("include"));
    // NCCL's header after NVIDIA's: its directory also contains stubs of CUDA's headers, which must not be used here.
    let includes: Vec<_> = includes.chain(own).collect();
    let libraries = format!("-L{}", SHARED_OBJECTS.display());
    let runtime = SHARED_OBJECTS.join(release.soname());
    Program::compile(source, &includes, &runtime, &[&libraries, "-lnccl"])
}

/// A program with a race in a loop, which leaks a communicator and other objects.
const WITH_FINDINGS: &str = "race_in_a_loop.c";

/// Each prints a line that begins with `ok`.
fn run_programs(release: Release) {
    for entry in fs::read_dir(SOURCES).expect("the directory of the programs") {
        let source = entry.expect("an entry").path();
        if source.extension().is_none_or(|extension| extension != "c") || source.ends_with(WITH_FINDINGS) {
            continue;
        }
        let Some(toolkit) = release.toolkit("the C programs") else { return };
        let printed = compile(&source, toolkit, release).run(&SHARED_OBJECTS, "4");
        assert!(printed.starts_with("ok: "), "{}: {printed}", source.display());
    }
}

#[test]
#[ignore = "downloads NVIDIA's packages: .ci/cuda"]
fn programs_run_with_cuda_12() {
    run_programs(Release::Cuda12);
}

#[test]
#[ignore = "downloads NVIDIA's packages: .ci/cuda"]
fn programs_run_with_cuda_13() {
    run_programs(Release::Cuda13);
}

#[test]
#[ignore = "downloads NVIDIA's packages: .ci/cuda"]
fn race_in_a_loop_is_reported_once_and_leaks_are_listed() {
    let Some(toolkit) = Release::Cuda12.toolkit(WITH_FINDINGS) else { return };
    let path = Path::new(SOURCES).join(WITH_FINDINGS);
    let program = compile(&path, toolkit, Release::Cuda12);
    let mut command = program.command(&SHARED_OBJECTS, "2");
    let output =
        command.envs([("LIBNCCL_CPU_STACKS", "1"), ("LIBNCCL_CPU_STRICT", "1")]).output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let names = errors.lines().filter_map(|line| line.strip_suffix(']')?.rsplit_once(" ["));
    let mut names: Vec<_> = names.map(|(_, name)| name).collect();
    names.sort_unstable();
    let leaks = ["communicator", "device-memory", "device-memory", "event", "stream", "stream"];
    let expected =
        leaks.map(|kind| format!("leaked-{kind}")).into_iter().chain(["race"; 2].map(String::from));
    assert_eq!(names, expected.collect::<Vec<_>>(), "{errors}");
    let counted = " more operations were in races of cuMemsetD8_v2 and ncclAllReduce in device memory, as";
    assert!(errors.contains(counted), "{errors}");
    let source = fs::read_to_string(&path).expect("the program");
    let line = |text| source.lines().position(|line| line.contains(text)).expect("a line of the program") + 1;
    for (function, call) in [("cudaMemset", "CUDA(cudaMemset("), ("ncclGroupEnd", "CHECK(ncclGroupEnd(")] {
        let (line, before) =
            (format!("{WITH_FINDINGS}:{}:", line(call)), format!("\n        {function}\n        main at "));
        let callers = errors.split(&before).skip(1).filter_map(|rest| rest.lines().next());
        assert!(callers.clone().any(|caller| caller.contains(&line)), "no {line} in {errors}");
    }
}
