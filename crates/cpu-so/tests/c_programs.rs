//! The shared object as C programs see it: its exports, and programs that use NCCL as documented.
//!
//! The programs are compiled against the header of this repository and linked with the shared object under
//! NCCL's name.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use libnccl::sys::Functions;
use libnccl::sys::device::DeviceFunctions;
use libnccl_test_support::shared_object;
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

/// Time after which a program counts as hung.
const LIMIT: Duration = Duration::from_secs(60);

/// The include folders of the repository.
const INCLUDES: [&str; 2] = ["vendor-headers", "vendor-headers/stubs/cuda"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("this package lies in crates")
}

/// Runs a tool to its end and returns what it printed.
fn run_tool(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}"));
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{printed}{errors}", output.status);
    printed.into_owned()
}

/// A folder with the shared object under NCCL's names, and a program linked with it.
struct Program {
    folder: TempDir,
}

impl Program {
    /// Compiles a file of `tests/c`.
    fn compile(source: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let library = folder.path().join("libnccl.so.2");
        fs::copy(shared_object("nccl_cpu"), &library).expect("the shared object can be copied");
        std::os::unix::fs::symlink("libnccl.so.2", folder.path().join("libnccl.so")).expect("a link");
        let (compiler, standard) = match Path::new(source).extension().and_then(OsStr::to_str) {
            Some("cpp") => ("c++", "-std=c++17"),
            _ => ("cc", "-std=c11"),
        };
        let mut command = Command::new(compiler);
        command.args([standard, "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread"]);
        for include in INCLUDES {
            command.arg("-I").arg(repository().join(include));
        }
        command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c"));
        command.arg(source).arg("-o").arg(folder.path().join("program"));
        command.arg("-L").arg(folder.path()).arg("-lnccl");
        run_tool(&mut command);
        Self { folder }
    }

    /// Runs the program, which has to print `ok` and to succeed in time.
    fn run(&self) {
        let file = |name| {
            let path = self.folder.path().join(name);
            (File::create(&path).expect("a file in the temporary folder"), path)
        };
        let ((output, output_path), (errors, errors_path)) = (file("output"), file("errors"));
        let child = Command::new(self.folder.path().join("program"))
            .env("LD_LIBRARY_PATH", self.folder.path())
            .env_remove("NCCL_DEBUG")
            .stdout(output)
            .stderr(errors)
            // A process group of its own, so that the processes that it starts can be killed with it.
            .process_group(0)
            .spawn()
            .expect("the program can be started");
        let end = finish(child);
        let printed = fs::read_to_string(output_path).expect("the program's output");
        let errors = fs::read_to_string(errors_path).expect("the program's errors");
        let Some(status) = end else { panic!("killed after {LIMIT:?}\n{printed}{errors}") };
        assert!(
            status.success() && printed.starts_with("ok: "),
            "{status} (signal {:?})\n{printed}{errors}",
            status.signal()
        );
    }
}

/// Waits for the program, and returns its status, or `None` if it exceeded the limit. Kills all of its processes.
fn finish(mut child: Child) -> Option<ExitStatus> {
    let group = Pid::from_child(&child);
    let deadline = Instant::now() + LIMIT;
    let mut status = None;
    while status.is_none() && Instant::now() < deadline {
        status = child.try_wait().expect("a child can be waited for");
        thread::sleep(Duration::from_millis(2));
    }
    // Fails if no process of the group is left.
    let _ = kill_process_group(group, Signal::KILL);
    if status.is_none() {
        child.wait().expect("a killed child ends");
    }
    status
}

fn run(source: &str) {
    // The project needs a C compiler, but no C++ compiler.
    if source.ends_with(".cpp") && Command::new("c++").arg("--version").output().is_err() {
        eprintln!("skipped: {source}, as there is no C++ compiler");
        return;
    }
    Program::compile(source).run();
}

macro_rules! programs {
    ($($(#[$attribute:meta])* $name:ident: $source:literal;)*) => {
        $(
            $(#[$attribute])*
            #[test]
            fn $name() {
                run($source);
            }
        )*

        /// The programs in `tests/c` that have a test.
        const SOURCES: &[&str] = &[$($source),*];
    };
}

programs! {
    abort_after_error: "abort_after_error.c";
    abort_init: "abort_init.c";
    all_to_all: "all_to_all.c";
    device_api: "device_api.c";
    devices_in_a_group: "devices_in_a_group.c";
    exec: "exec.c";
    forked: "forked.c";
    forked_nonblocking: "forked_nonblocking.c";
    header_compiles_as_cplusplus: "header.cpp";
    in_place: "in_place.c";
    main_thread_exits: "main_thread_exits.c";
    nonblocking: "nonblocking.c";
    one_sided: "one_sided.c";
    pre_mul_sum: "pre_mul_sum.c";
    process_per_rank: "process_per_rank.c";
    revoke: "revoke.c";
    ring: "ring.c";
    shrink: "shrink.c";
    split: "split.c";
    thread_per_device: "thread_per_device.c";
}

#[test]
fn every_c_program_has_a_test() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let files = fs::read_dir(&folder).expect("tests/c").map(|entry| entry.expect("an entry").file_name());
    let found: BTreeSet<String> = files
        .map(|name| name.into_string().expect("a file's name"))
        .filter(|name| name.ends_with(".c") || name.ends_with(".cpp"))
        .collect();
    assert_eq!(found, SOURCES.iter().chain(&["accepts.c"]).map(ToString::to_string).collect());
}

/// A call of `accepts.c`: the code that the CPU backend returns, and the one of NCCL 2.32.3.
struct Accepted {
    cpu: String,
    nccl: String,
    /// The source of the latter.
    source: String,
}

/// Returns the calls by their names. `{a|b}` in a name of the table stands for one call with each.
fn accepted() -> BTreeMap<String, Accepted> {
    let mut calls = BTreeMap::new();
    for row in include_str!("c/accepts.tsv").lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = row.split('\t').collect();
        let [names, cpu, nccl, source, reason] = fields[..] else { panic!("not five fields: {row}") };
        assert_eq!(cpu == nccl, reason.is_empty(), "a difference has a reason: {row}");
        let mut names = vec![names.to_owned()];
        while names[0].contains('{') {
            let expand = |name: &String| {
                let (start, rest) = name.split_once('{').expect("a brace");
                let (all, end) = rest.split_once('}').expect("a closing brace");
                all.split('|').map(|one| format!("{start}{one}{end}")).collect::<Vec<_>>()
            };
            names = names.iter().flat_map(expand).collect();
        }
        for name in names {
            let [cpu, nccl, source] = [cpu, nccl, source].map(str::to_owned);
            let before = calls.insert(name, Accepted { cpu, nccl, source });
            assert!(before.is_none(), "a call is twice in the table: {row}");
        }
    }
    calls
}

/// Makes the calls of `accepts.c` with a library. Returns the code and the error's text of each.
fn make_calls(library: &Path) -> BTreeMap<String, [String; 2]> {
    let program = Program::compile("accepts.c");
    let mut command = Command::new(program.folder.path().join("program"));
    command.arg(library).env_remove("NCCL_DEBUG").env("LD_LIBRARY_PATH", program.folder.path());
    let printed = run_tool(&mut command);
    let call = |line: &str| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, code, text] = fields[..] else { panic!("not three fields: {line}") };
        (name.to_owned(), [code.to_owned(), text.to_owned()])
    };
    printed.lines().map(call).collect()
}

#[test]
fn every_call_is_accepted_or_refused_as_the_table_says() {
    let (table, made) = (accepted(), make_calls(&shared_object("nccl_cpu")));
    let mut wrong = vec![];
    for (name, [code, text]) in &made {
        match table.get(name) {
            None => wrong.push(format!("{name}: {code}, and not in the table")),
            Some(Accepted { cpu, .. }) if cpu != code => {
                wrong.push(format!("{name}: {code}, expected {cpu}; {text}"));
            }
            Some(_) => {}
        }
    }
    wrong.extend(
        table.keys().filter(|name| !made.contains_key(*name)).map(|name| format!("{name}: not made")),
    );
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), table.len(), wrong.join("\n"));
}

/// Compares the table with a real NCCL, as far as that answers: without a GPU, whatever needs one is code 1.
#[test]
#[ignore = "needs a real NCCL 2.32.3, named by LIBNCCL_TEST_LIBRARY"]
fn nccl_accepts_and_refuses_as_the_table_says() {
    let Some(library) = std::env::var_os("LIBNCCL_TEST_LIBRARY") else {
        return eprintln!("skipped: LIBNCCL_TEST_LIBRARY names no NCCL");
    };
    let (table, made) = (accepted(), make_calls(Path::new(&library)));
    let (mut compared, mut wrong) = (0, vec![]);
    for (name, [code, text]) in &made {
        let Some(Accepted { nccl, source, .. }) = table.get(name) else { continue };
        if code == "1" && source != NO_GPU {
            continue;
        }
        compared += 1;
        if nccl != code {
            wrong.push(format!("{name}: {code}, expected {nccl}; {text}"));
        }
    }
    eprintln!("compared: {compared} of {}; the others need a GPU", table.len());
    let least = table.values().filter(|call| call.source == NO_GPU).count();
    assert!(compared >= least && wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong.join("\n"));
}

/// The source of the calls that a real NCCL answers without a GPU.
const NO_GPU: &str = "run";

/// Returns the names of the functions that a header of NCCL declares.
fn functions_of_header(header: &str) -> BTreeSet<String> {
    let header = fs::read_to_string(repository().join("vendor-headers").join(header)).expect("the header");
    let declaration = |line: &str| {
        let name = line.split_once('(')?.0.rsplit([' ', '*']).next()?;
        let is_function = name.starts_with("nccl") || name.starts_with("pnccl");
        (is_function && !line.starts_with([' ', '#'])).then(|| name.to_owned())
    };
    header.lines().filter_map(declaration).collect()
}

/// Returns the names of the functions that a library exports, with the kind of each.
fn exports(library: &Path) -> BTreeMap<String, String> {
    let printed = run_tool(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let mut found = BTreeMap::new();
    for line in printed.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, kind, name] = fields[..] else { panic!("unexpected line of nm: {line}") };
        let before = found.insert(name.to_owned(), kind.to_owned());
        assert!(before.is_none(), "{name} is exported twice");
    }
    found
}

/// Requires the shared object to export these functions and no others.
fn require_exports(expected: &BTreeSet<String>) {
    let found = exports(&shared_object("nccl_cpu"));
    assert!(found.values().all(|kind| kind == "T"), "not only ordinary functions: {found:?}");
    let found = found.into_keys().collect();
    let missing: Vec<_> = expected.difference(&found).collect();
    let surplus: Vec<_> = found.difference(expected).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "missing: {missing:?}, surplus: {surplus:?}");
}

#[test]
fn exports_are_exactly_the_functions_of_the_headers() {
    let both_names = |name: &&str| [(*name).to_owned(), format!("p{name}")];
    let mut expected: BTreeSet<String> = Functions::NAMES.iter().flat_map(both_names).collect();
    assert_eq!(expected, functions_of_header("nccl.h"));
    let device = functions_of_header("nccl_device_host.h");
    assert!(
        device.iter().map(String::as_str).eq(BTreeSet::from_iter(DeviceFunctions::NAMES.iter().copied()))
    );
    expected.extend(DeviceFunctions::NAMES.iter().chain([&"ncclResetDebugInit"]).flat_map(both_names));
    require_exports(&expected);
}

/// The functions of NVIDIA's library that its headers declare for no program, and that none looks up: two of Windows, and one of
/// NCCL's own build.
const UNDECLARED: [&str; 3] =
    ["ncclGinInboxA2ACreateRequirement", "ncclGinOutboxCreateRequirement", "ncclResetDebugInitInternal"];

#[test]
#[ignore = "needs a real NCCL 2.32.3, named by LIBNCCL_TEST_LIBRARY"]
fn exports_are_those_of_nccl_except_for_undeclared_ones() {
    let Some(library) = std::env::var_os("LIBNCCL_TEST_LIBRARY") else {
        return eprintln!("skipped: LIBNCCL_TEST_LIBRARY names no NCCL");
    };
    let mut expected: BTreeSet<String> = exports(Path::new(&library)).into_keys().collect();
    for name in UNDECLARED {
        expected.remove(&format!("p{name}"));
        assert!(expected.remove(name), "NCCL does not export {name}");
    }
    require_exports(&expected);
}

#[test]
fn soname_is_that_of_nccl() {
    let printed = run_tool(Command::new("readelf").args(["-W", "-d"]).arg(shared_object("nccl_cpu")));
    let names: Vec<&str> = printed.lines().filter(|line| line.contains("(SONAME)")).collect();
    assert!(matches!(names[..], [name] if name.ends_with("[libnccl.so.2]")), "{names:?}");
    let needed = printed.lines().filter(|line| line.contains("(NEEDED)"));
    assert!(!needed.clone().any(|line| line.contains("nccl")), "{:?}", needed.collect::<Vec<_>>());
}
