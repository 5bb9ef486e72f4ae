//! Calls when a thread, the process or a library ends: programs in C and C++ without NVIDIA's headers.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use libnccl_test_support::{install, replace, shared_object, time_limit};

/// The shared objects of this project: the name of the library, and the one under which programs find it.
const LIBRARIES: [(&str, &str); 6] = [
    ("nccl_cpu", "libnccl.so.2"),
    ("cuda_cpu", "libcuda.so.1"),
    ("cudart_cpu", "libcudart.so.12"),
    ("nvml_cpu", "libnvidia-ml.so.1"),
    ("cuda_math_cpu", "libcublas.so.12"),
    ("nccl_trace", "libnccl-trace.so"),
];

/// The options that link a program with all of them.
const LINKED: [&str; 5] =
    ["-l:libcudart.so.12", "-lcuda", "-l:libnvidia-ml.so.1", "-l:libcublas.so.12", "-lnccl"];

/// A directory with the shared objects.
static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lifetimes");
    install(&directory);
    for (library, name) in LIBRARIES.iter().skip(2) {
        replace(&directory.join(name), |link| symlink(shared_object(library), link));
    }
    directory
});

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compiles a program of `lifetimes` under this name.
fn compile(compiler: &[&str], source: &str, name: &str, libraries: &[&str]) -> PathBuf {
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).args(["-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread"]);
    for include in ["vendor-headers", "vendor-headers/stubs/cuda"] {
        command.arg("-I").arg(repository().join(include));
    }
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("lifetimes").join(source));
    command.args(["-x", "none", "-L"]).arg(&*DIRECTORY).args(libraries).arg("-ldl");
    let program = DIRECTORY.join(name);
    replace(&program, |new| {
        drop(time_limit::run(command.arg("-o").arg(new)));
        Ok(())
    });
    program
}

fn command(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env("LD_LIBRARY_PATH", &*DIRECTORY).env("LIBNCCL_CPU_DEVICES", "2");
    command.env("LIBNCCL_CPU_RACES", "error").env_remove("NCCL_DEBUG");
    command
}

fn run(program: &Path, arguments: &[&str]) -> String {
    time_limit::run(&mut command(program, arguments)).0
}

#[test]
fn shared_object_is_never_unloaded() {
    for (library, _) in LIBRARIES {
        let mut readelf = Command::new("readelf");
        let (printed, _) = time_limit::run(readelf.args(["-W", "-d"]).arg(shared_object(library)));
        let flags = printed.lines().find(|line| line.contains("(FLAGS_1)")).unwrap_or_default();
        assert!(flags.contains("NODELETE"), "{library}: {printed}");
    }
}

#[test]
fn closed_library_completes_work_of_streams_graphs_and_threads() {
    let program = compile(&["cc", "-std=gnu11"], "unloaded.c", "unloaded", &[]);
    let plugin = shared_object("nccl_plugin");
    for (library, modes) in [
        (Path::new("libnccl.so.2"), &["keep", "abort", "graph", "init"][..]),
        // A plugin with the CPU backend stays loaded once used, and is unloaded if unused.
        (&plugin, &["keep", "abort", "graph", "init", "signal", "watchdog", "number"]),
    ] {
        for mode in modes {
            let arguments =
                [&*DIRECTORY, library, Path::new(mode)].map(|path| path.to_str().expect("a name"));
            assert_eq!(run(&program, &arguments), "ok\n", "{library:?}, {mode}");
        }
    }
}

/// Requires each moment to be printed this many times, and every library to have worked then.
fn check(printed: &str, moments: &[(&str, usize)], how: &str) {
    let wrong: Vec<_> = printed.lines().filter(|line| !line.ends_with(": right")).collect();
    assert!(wrong.is_empty(), "{how}: {wrong:#?}");
    for (moment, count) in moments {
        let found = printed.lines().filter(|line| line.strip_suffix(": right") == Some(moment)).count();
        assert_eq!(found, *count, "{how}, {moment}: {printed}");
    }
}

/// Runs the program with each order of the first use and the registration, and each thread that exits. `at_exit` are the
/// moments when the process exits, `of_thread` when a thread exits.
fn check_last_calls(compiler: &[&str], name: &str, at_exit: &[&str], of_thread: &[&str]) {
    let program = compile(compiler, "last_calls.c", name, &LINKED);
    for time in ["before", "after", "never"] {
        for thread in ["main", "other"] {
            let ends = usize::from(thread == "other" || time == "never");
            let moments = at_exit.iter().map(|&moment| (moment, 1));
            let moments = moments.chain(of_thread.iter().map(|&moment| (moment, ends))).collect::<Vec<_>>();
            check(&run(&program, &[time, thread]), &moments, &format!("{time}, {thread}"));
        }
    }
}

const AT_EXIT: [&str; 2] = ["atexit", "destructor"];
const KEY_ROUNDS: [&str; 4] = ["key, round 1", "key, round 2", "key, round 3", "key, round 4"];

#[test]
fn every_library_works_in_atexit_destructors_and_pthread_keys() {
    check_last_calls(&["cc", "-std=gnu11"], "last_calls", &AT_EXIT, &KEY_ROUNDS);
}

#[test]
fn every_library_works_in_destructors_of_cplusplus() {
    // The project needs a C compiler, but no C++ compiler.
    if Command::new("c++").arg("--version").output().is_err() {
        return eprintln!("skipped: there is no C++ compiler");
    }
    let objects =
        ["static object", "static object of a function", "thread-local object of the thread that exits"];
    let compiler = ["c++", "-std=c++17", "-Wno-unused-variable", "-x", "c++"];
    let at_exit = [&AT_EXIT[..], &objects].concat();
    let of_thread = [&KEY_ROUNDS[..], &["thread-local object"]].concat();
    check_last_calls(&compiler, "last_calls_cplusplus", &at_exit, &of_thread);
}

#[test]
fn every_library_works_in_atexit_and_is_recorded_by_the_tracing_library() {
    let recordings = tempfile::tempdir().expect("a temporary directory");
    let variables = format!(
        "LD_PRELOAD={} LIBNCCL_TRACE_LIBRARY={} LIBNCCL_RECORDER_FILE={}",
        DIRECTORY.join("libnccl-trace.so").display(),
        DIRECTORY.join("libnccl.so.2").display(),
        recordings.path().join("rank").display()
    );
    let variables: Vec<_> = variables.split(' ').collect();
    let program = compile(&["cc", "-std=gnu11"], "last_calls.c", "last_calls_traced", &LINKED);
    let program = program.to_str().expect("a name");
    let printed = run(Path::new("env"), &[&variables[..], &[program, "before", "main"]].concat());
    check(&printed, &[("atexit", 1), ("destructor", 1)], "traced");
    let recorded =
        fs::read_dir(&recordings).expect("a directory").next().expect("a recording").expect("a recording");
    let recording = fs::read_to_string(recorded.path()).expect("a recording");
    // Two before the exit, one on the leaked communicator, and one each in atexit and the destructor.
    assert_eq!(recording.matches("all_reduce_in_place").count(), 5, "{recording}");
}

static FREED: LazyLock<PathBuf> =
    LazyLock::new(|| compile(&["cc", "-std=gnu11"], "freed.c", "freed", &LINKED));

/// References to memory, the kind of memory, and a part of the report if it is freed.
const REFERENCES: [(&str, &str, &str); 9] = [
    ("registration", "device", "cuMemFree_v2 frees 65536 bytes at 0x"),
    ("registration", "pool", "cuMemFreeAsync frees 65536 bytes at 0x"),
    ("registration", "pinned", "cuMemFreeHost frees 65536 bytes at 0x"),
    ("registration", "nccl", "ncclMemFree frees 65536 bytes at 0x"),
    ("part", "device", " while it is registered by ncclCommRegister as 0x"),
    ("part", "nccl", " while it is registered by ncclCommRegister as 0x"),
    ("window", "device", " while it is in the window 0x"),
    ("window", "nccl", " while it is in the window 0x"),
    ("process", "device", ", while another process has it open: cudaIpcCloseMemHandle has to come before"),
];

/// Runs the program, and returns its findings.
fn freed(reference: &str, memory: &str, order: &str, environment: &[(&str, &str)]) -> String {
    let mut command = command(&FREED, &[reference, memory, order]);
    let (output, errors) = time_limit::run(command.envs(environment.iter().copied()));
    assert_eq!(output, "ok\n", "{reference}, {memory}, {order}: {errors}");
    errors
}

const STRICT: (&str, &str) = ("LIBNCCL_CPU_STRICT", "1");

#[test]
fn free_of_referenced_memory_is_a_finding_and_an_error_in_strict_mode() {
    for (reference, memory, expected) in REFERENCES {
        for (order, environment) in [("wrong", &[][..]), ("refused", &[STRICT])] {
            let found = freed(reference, memory, order, environment);
            let is_expected = found.contains(expected) && found.contains(" [free-under-reference]\n");
            assert!(is_expected && found.lines().count() == 1, "{reference}, {memory}, {order}: {found}");
        }
        assert_eq!(freed(reference, memory, "right", &[STRICT]), "", "{reference}, {memory}");
        let ignored = ("LIBNCCL_CPU_IGNORE", "free-under-reference");
        assert_eq!(freed(reference, memory, "wrong", &[STRICT, ignored]), "", "{reference}, {memory}");
    }
}

#[test]
fn graph_launch_after_free_is_a_finding_and_the_free_in_strict_mode() {
    let launched = "cuGraphLaunch of a graph that uses allocation ";
    let found = freed("graph", "device", "wrong", &[]);
    assert!(found.contains(launched) && found.lines().count() == 1, "{found}");
    let found = freed("graph", "device", "wrong", &[STRICT]);
    let is_freed =
        found.contains(", while a graph that uses it can still be launched [free-under-reference]\n");
    assert!(is_freed && found.contains(launched) && found.lines().count() == 2, "{found}");
    assert_eq!(freed("graph", "device", "right", &[STRICT]), "");
}
