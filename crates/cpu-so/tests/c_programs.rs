//! Tests the shared object's exports, and C programs that fork, execute or exit (`tests/conformance` calls all functions).
//!
//! The programs are compiled against the header of this repository and linked with the shared object under
//! NCCL's name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use libnccl::sys::Functions;
use libnccl::sys::device::DeviceFunctions;
use libnccl_test_support::time_limit::run;
use libnccl_test_support::{install_as, shared_object};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("this package lies in crates")
}

/// Compiles a file of `tests/c` and runs it with the shared object under NCCL's names. It must print `ok`.
fn compile_and_run(source: &str) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let program = directory.path().join("program");
    install_as(&directory.path().join("libnccl.so.2"), "nccl_cpu");
    symlink("libnccl.so.2", directory.path().join("libnccl.so")).expect("a link");
    let (compiler, standard) =
        if source.ends_with(".cpp") { ("c++", "-std=c++17") } else { ("cc", "-std=c11") };
    let mut command = Command::new(compiler);
    command.args([standard, "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread"]);
    for include in ["vendor-headers", "vendor-headers/stubs/cuda"] {
        command.arg("-I").arg(repository().join(include));
    }
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source)).arg("-o").arg(&program);
    drop(run(command.arg("-L").arg(directory.path()).arg("-lnccl")));
    // With the program, `timeout` ends its child processes.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "60"]).arg(program);
    let (printed, errors) = run(command.env("LD_LIBRARY_PATH", directory.path()).env_remove("NCCL_DEBUG"));
    assert!(printed.starts_with("ok: "), "{source}: {printed}{errors}");
}

#[test]
fn c_programs_link_and_run() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let files = fs::read_dir(&directory).expect("tests/c").map(|entry| entry.expect("an entry").file_name());
    let sources = files.map(|name| name.into_string().expect("a file's name"));
    let mut sources: Vec<String> = sources.filter(|name| !name.ends_with(".h")).collect();
    assert!(sources.len() >= 5, "{sources:?}");
    // The project needs a C compiler, but no C++ compiler.
    if Command::new("c++").arg("--version").output().is_err() {
        eprintln!("skipped: C++, as there is no compiler");
        sources.retain(|source| !source.ends_with(".cpp"));
    }
    thread::scope(|scope| sources.iter().for_each(|source| drop(scope.spawn(|| compile_and_run(source)))));
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

/// Returns the names of the functions that a library exports, with the symbol type of each.
fn exports(library: &Path) -> BTreeMap<String, String> {
    let printed = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library)).0;
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

/// The functions that NVIDIA's library exports, but its headers do not declare on Linux and no program looks up.
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
    let printed = run(Command::new("readelf").args(["-W", "-d"]).arg(shared_object("nccl_cpu"))).0;
    let names: Vec<&str> = printed.lines().filter(|line| line.contains("(SONAME)")).collect();
    assert!(matches!(names[..], [name] if name.ends_with("[libnccl.so.2]")), "{names:?}");
    let needed = printed.lines().filter(|line| line.contains("(NEEDED)"));
    assert!(!needed.clone().any(|line| line.contains("nccl")), "{:?}", needed.collect::<Vec<_>>());
}
