//! The behaviour of cudarc's nccl module where NCCL, or a function of it, is missing: what docs/comparison.md says.

use std::env;
use std::path::Path;
use std::process::Command;

/// Set in the process in which a test calls cudarc, as a process loads one library for good.
const CHILD: &str = "LIBNCCL_TEST_CHILD";

/// Runs a test again in a process whose dynamic linker looks into `directory`, and returns what it printed; `None` in
/// that process.
fn in_process_of_its_own(test: &str, directory: &Path) -> Option<String> {
    if env::var_os(CHILD).is_some() {
        return None;
    }
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").env("LD_LIBRARY_PATH", directory);
    let output = child.output().unwrap();
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn cudarc_without_a_library_panics() {
    let directory = tempfile::tempdir().unwrap();
    let Some(printed) = in_process_of_its_own("cudarc_without_a_library_panics", directory.path()) else {
        let version = cudarc::nccl::result::get_nccl_version();
        eprintln!("it returned {version:?}");
        return;
    };
    if printed.contains("it returned Ok") {
        println!("skipped: the system has a libnccl.so");
        return;
    }
    assert!(printed.contains("Unable to dynamically load the \"nccl\" shared library"), "{printed}");
}

#[test]
fn cudarc_without_a_function_panics() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("nccl.c");
    std::fs::write(&source, "int ncclGetVersion(int *version) { *version = 21304; return 0; }\n").unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(directory.path().join("libnccl.so")).arg(&source);
    assert!(compiler.status().unwrap().success());
    let Some(printed) = in_process_of_its_own("cudarc_without_a_function_panics", directory.path()) else {
        eprintln!("the version is {:?}", cudarc::nccl::result::get_nccl_version());
        eprintln!("it returned {:?}", cudarc::nccl::Id::new());
        return;
    };
    assert!(printed.contains("the version is Ok(21304)"), "{printed}");
    assert!(printed.contains("Missing symbol ncclGetUniqueId"), "{printed}");
}
