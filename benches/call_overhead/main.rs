//! The overhead of libnccl: additional instructions and allocations per call compared with a C program, and the time to load
//! the library beyond a bare `dlopen`. Fails if a limit is exceeded.
//!
//! The library does nothing (`noop.c`), and the callers (`caller.c`, `callers/`) only call it, n times and then 2n
//! times under callgrind: the difference is the cost of n calls, including the no-op library's own instructions. Needs
//! valgrind and a C compiler.

use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use libnccl::sys::Functions;

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

/// The number of calls n, large enough that differences between runs vanish in the mean.
const CALLS: i64 = 10_000;
/// The number of pairs of processes that load: one with a bare `dlopen`, one with `Nccl::load`.
const PAIRS: usize = 201;
/// The limit for loading, beyond the bare `dlopen`: ten times the time on a busy machine, because a time on a shared machine
/// reveals only gross errors.
const LOAD_LIMIT_US: f64 = 1000.0;

/// The limits of additional instructions compared with C, for one operation and for a group with one. They leave room for
/// simple code.
const FACADE_LIMIT: i64 = 250;
const GROUP_LIMIT: i64 = 400;
/// The instructions that a lock may add: the lock and unlock of a [`Mutex`](std::sync::Mutex) are 34.
const LOCK_LIMIT: i64 = 40;
/// The instructions that observers may add to an operation, and to a group of one. Each observer stores its first operation, so
/// that it gets matching starts and ends.
const OBSERVER_LIMIT: i64 = 170;
const GROUP_OBSERVER_LIMIT: i64 = 200;

/// A call path: its name, the features that `callers` is built with, its name in the command line of `callers`, and the limit of
/// additional instructions compared with C.
type CallPath = (&'static str, &'static str, &'static str, i64);

/// Call paths of one operation, compared with one call in C.
const SINGLE: [CallPath; 9] = [
    ("raw extern function", "link", "extern", 5),
    ("raw table, linked", "link", "table", 5),
    ("raw table, loaded", "dlopen", "table", 5),
    ("facade, linked", "link", "facade", FACADE_LIMIT),
    ("facade, loaded", "dlopen", "facade", FACADE_LIMIT),
    ("facade, in process", "dlopen", "facade-in-process", FACADE_LIMIT),
    ("facade, in a Mutex", "dlopen", "mutex", FACADE_LIMIT + LOCK_LIMIT),
    ("facade, unwanted spans", "dlopen,tracing", "facade", FACADE_LIMIT + OBSERVER_LIMIT),
    ("facade, recorded", "dlopen", "facade-recorded", FACADE_LIMIT + OBSERVER_LIMIT),
];

/// Call paths of a group, compared with three calls in C: group start, operation, group end.
const GROUP: [CallPath; 4] = [
    ("group, linked", "link", "group", GROUP_LIMIT),
    ("group, loaded", "dlopen", "group", GROUP_LIMIT),
    ("group, in process", "dlopen", "group-in-process", GROUP_LIMIT),
    ("group, recorded", "dlopen", "group-recorded", GROUP_LIMIT + GROUP_OBSERVER_LIMIT),
];

fn main() -> ExitCode {
    // `cargo test --all-targets` runs benchmarks too, without this argument.
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("skipped; cargo bench --bench call_overhead measures");
        return ExitCode::SUCCESS;
    }
    measure().map_or_else(
        |error| {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

/// Prints the tables. A limit that is exceeded is an error.
fn measure() -> Result {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return Err(
            "valgrind is missing, which counts the instructions (Debian: apt-get install valgrind)".into()
        );
    }
    fs::create_dir_all(directory())?;
    build_c()?;
    ["link", "dlopen", "dlopen,tracing"].into_iter().try_for_each(build_callers)?;
    println!("all_reduce through a library that does nothing; per call\n");
    println!(
        "{:<20} {:>12} {:>9} {:>6} {:>12}",
        "call path", "instructions", "beyond C", "limit", "allocations"
    );
    let mut kept = true;
    for (name, argument, paths) in [("C", "single", &SINGLE[..]), ("C, group", "group", &GROUP)] {
        let (c, _) = cost(&c_caller(), argument)?;
        println!("{name:<20} {c:>12}");
        for (name, features, argument, limit) in paths {
            let (instructions, allocations) = cost(&caller(features), argument)?;
            let beyond = instructions - c;
            let ok = beyond <= *limit && allocations == 0.0;
            kept &= ok;
            let verdict = if ok { "ok" } else { "TOO MUCH" };
            println!("{name:<20} {instructions:>12} {beyond:>+9} {limit:>6} {allocations:>12}  {verdict}");
        }
    }

    println!("\n{:<32} {:>12} {:>13} {:>9} {:>9}", "loading", "dlopen, us", "load(), us", "beyond", "limit");
    let mut libraries = vec![("the library that does nothing", directory())];
    if let Some(library) = std::env::var_os("LIBNCCL_TEST_LIBRARY") {
        let directory = Path::new(&library).parent().ok_or("LIBNCCL_TEST_LIBRARY is not a file's path")?;
        libraries.push(("LIBNCCL_TEST_LIBRARY", directory.into()));
    }
    for (name, directory) in libraries {
        let [bare, load, beyond] = load_times(&directory)?;
        let ok = beyond <= LOAD_LIMIT_US;
        kept &= ok;
        let verdict = if ok { "ok" } else { "TOO MUCH" };
        println!("{name:<32} {bare:>12.1} {load:>13.1} {beyond:>9.1} {LOAD_LIMIT_US:>9}  {verdict}");
    }
    if kept { Ok(()) } else { Err("a limit is exceeded".into()) }
}

/// Returns the directory of the no-op library and its callers.
fn directory() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("call_overhead")
}

fn build_c() -> Result {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = root.join("benches/call_overhead");
    let include = root.join("vendor-headers");
    let cc = || {
        let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        cc.args(["-O2", "-I"]).arg(&include).arg("-I").arg(include.join("stubs/cuda"));
        cc
    };
    // Weak, so that the definitions in noop.c take precedence.
    let function = |name| format!("__attribute__((weak)) int {name}(void) {{ return 0; }}\n");
    let others = directory().join("others.c");
    fs::write(&others, Functions::NAMES.iter().map(function).collect::<String>())?;
    let library = directory().join("libnccl.so.2");
    run(cc().args(["-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-o"]).args([
        &library,
        &source.join("noop.c"),
        &others,
    ]))?;
    run(cc().arg("-o").args([&c_caller(), &source.join("caller.c"), &library]))?;
    Ok(())
}

fn build_callers(features: &str) -> Result {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/call_overhead/callers/Cargo.toml");
    run(Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "--release", "--features", features, "--manifest-path"])
        .args([manifest.as_os_str(), "--target-dir".as_ref(), directory().join(features).as_os_str()])
        .env("NCCL_LIB_DIR", directory())
        .env_remove("LIBNCCL_NO_LINK"))?;
    Ok(())
}

fn c_caller() -> PathBuf {
    directory().join("caller")
}

fn caller(features: &str) -> PathBuf {
    directory().join(features).join("release/callers")
}

/// Returns the instructions and the allocations of one call.
fn cost(caller: &Path, argument: &str) -> Result<(i64, f64)> {
    let (once, _) = callgrind(caller, argument, CALLS)?;
    let (twice, allocations) = callgrind(caller, argument, 2 * CALLS)?;
    Ok(((twice - once + CALLS / 2) / CALLS, allocations as f64 / (2 * CALLS) as f64))
}

/// Returns the instructions of the whole program, and the allocations of all calls together.
fn callgrind(caller: &Path, argument: &str, calls: i64) -> Result<(i64, i64)> {
    let profile = directory().join("callgrind.out");
    let printed = run(with_library(&directory(), "valgrind")
        .args(["--tool=callgrind", "-q"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .args([caller.as_os_str(), argument.as_ref(), calls.to_string().as_ref()]))?;
    let profile = fs::read_to_string(profile)?;
    let total = profile.lines().find_map(|line| line.strip_prefix("totals: "));
    let allocations = if printed.is_empty() { 0 } else { printed.parse()? };
    Ok((total.ok_or("callgrind's profile has no totals")?.parse()?, allocations))
}

/// Returns medians in microseconds: a bare `dlopen`, `Nccl::load`, and the difference in each pair of runs. Pairs
/// cancel changes in the machine's speed.
fn load_times(library: &Path) -> Result<[f64; 3]> {
    let time = |argument| -> Result<f64> {
        let printed = run(with_library(library, caller("dlopen")).arg(argument))?;
        Ok(printed.parse::<f64>()? / 1000.0)
    };
    let mut times = [(); 3].map(|()| Vec::with_capacity(PAIRS));
    for _ in 0..PAIRS {
        let (bare, load) = (time("bare-dlopen")?, time("load")?);
        times.iter_mut().zip([bare, load, load - bare]).for_each(|(times, time)| times.push(time));
    }
    Ok(times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[PAIRS / 2]
    }))
}

/// Creates a command that finds `libnccl.so.2` in `directory`.
fn with_library(directory: &Path, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", directory).env_remove("LIBNCCL_PATH");
    command
}

/// Runs a command, and returns its output if it succeeds.
fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name} does not run: {error}"))?;
    if !output.status.success() {
        return Err(
            format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)).into()
        );
    }
    Ok(String::from_utf8(output.stdout)?.trim().into())
}
