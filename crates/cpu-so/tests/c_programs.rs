//! The shared object as C programs see it: its exports, and programs whose subject is a process (`tests/conformance` calls all
//! functions).
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

/// The include directorys of the repository.
const INCLUDES: [&str; 2] = ["vendor-headers", "vendor-headers/stubs/cuda"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("this package lies in crates")
}

/// Runs a tool to completion and returns its output.
fn run_tool(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}"));
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{printed}{errors}", output.status);
    printed.into_owned()
}

/// A directory with the shared object under NCCL's names, and a program linked with it.
struct Program {
    directory: TempDir,
}

impl Program {
    /// Compiles a file of `tests/c`.
    fn compile(source: &str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let library = directory.path().join("libnccl.so.2");
        fs::copy(shared_object("nccl_cpu"), &library).expect("the shared object can be copied");
        std::os::unix::fs::symlink("libnccl.so.2", directory.path().join("libnccl.so")).expect("a link");
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
        command.arg(source).arg("-o").arg(directory.path().join("program"));
        command.arg("-L").arg(directory.path()).arg("-lnccl");
        run_tool(&mut command);
        Self { directory }
    }

    /// Runs the program, which must print `ok` and succeed within the limit.
    fn run(&self) {
        let file = |name| {
            let path = self.directory.path().join(name);
            (File::create(&path).expect("a file in the temporary directory"), path)
        };
        let ((output, output_path), (errors, errors_path)) = (file("output"), file("errors"));
        let child = Command::new(self.directory.path().join("program"))
            .env("LD_LIBRARY_PATH", self.directory.path())
            .env_remove("NCCL_DEBUG")
            .stdout(output)
            .stderr(errors)
            // A separate process group, so that its child processes can be killed with it.
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

#[test]
fn c_programs_link_and_run() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let files = fs::read_dir(&directory).expect("tests/c").map(|entry| entry.expect("an entry").file_name());
    let sources = files.map(|name| name.into_string().expect("a file's name"));
    let sources: Vec<String> = sources.filter(|name| !name.ends_with(".h")).collect();
    assert!(sources.len() >= 5, "{sources:?}");
    thread::scope(|scope| sources.iter().for_each(|source| drop(scope.spawn(|| run(source)))));
}

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
fn exports_match_the_headers() {
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

/// The functions that NVIDIA's library exports and its headers do not declare, and that no program looks up: two for Windows, and
/// one for NCCL's own build.
const UNDECLARED: [&str; 3] =
    ["ncclGinInboxA2ACreateRequirement", "ncclGinOutboxCreateRequirement", "ncclResetDebugInitInternal"];

#[test]
#[ignore = "needs a real NCCL 2.32.3, named by LIBNCCL_TEST_LIBRARY"]
fn exports_match_nccl_except_for_undeclared_functions() {
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
fn shared_object_has_the_soname_of_nccl() {
    let printed = run_tool(Command::new("readelf").args(["-W", "-d"]).arg(shared_object("nccl_cpu")));
    let names: Vec<&str> = printed.lines().filter(|line| line.contains("(SONAME)")).collect();
    assert!(matches!(names[..], [name] if name.ends_with("[libnccl.so.2]")), "{names:?}");
    let needed = printed.lines().filter(|line| line.contains("(NEEDED)"));
    assert!(!needed.clone().any(|line| line.contains("nccl")), "{:?}", needed.collect::<Vec<_>>());
}
