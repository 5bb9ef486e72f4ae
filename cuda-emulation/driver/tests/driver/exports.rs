//! The functions that the shared object exports, compared with `functions.txt` and with the functions that cudarc declares.

use std::collections::BTreeSet;
use std::env;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::Library;
use libnccl_cuda_functions::Function;

use crate::process::shared_object;

pub(crate) const TESTS: [(&str, fn()); 2] = [
    ("exports_are_those_of_the_table_with_all_that_cudarc_declares", compare),
    ("every_function_is_found_by_name_since_its_version", find_by_name),
];

/// Returns the driver functions that cudarc declares for any CUDA version.
fn declared_by_cudarc() -> BTreeSet<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version", "1", "--offline"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    // The packages of other platforms need not have been downloaded.
    cargo.args(["--filter-platform", &format!("{}-unknown-linux-gnu", env::consts::ARCH)]);
    let output = cargo.output().expect("cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata = String::from_utf8(output.stdout).expect("UTF-8");
    let manifest = metadata
        .split('"')
        .find(|text| text.contains("/cudarc-") && text.ends_with("/Cargo.toml"))
        .expect("cudarc's manifest");
    let source = PathBuf::from(manifest).with_file_name("src/driver/sys/mod.rs");
    let source = fs::read_to_string(&source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    let functions = source.lines().filter_map(|line| line.strip_prefix("pub unsafe fn cu"));
    let names = functions.filter_map(|rest| rest.split('(').next()).map(|name| format!("cu{name}"));
    names.filter(|name| name != "culib").collect()
}

/// Returns the lines of `functions.txt`.
fn table() -> Vec<Function> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("functions.txt");
    libnccl_cuda_functions::read(&file).expect("the table")
}

fn compare() {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(shared_object()).output().expect("nm");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).expect("UTF-8");
    let names = printed.lines().filter_map(|line| line.split_whitespace().nth(2)).map(String::from);
    let found: BTreeSet<String> = names.filter(|name| !name.starts_with("libnccl_cuda_")).collect();
    assert_eq!(found, table().into_iter().map(|function| function.name).collect());
    let declared = declared_by_cudarc();
    assert!(declared.len() > 400, "{} names", declared.len());
    let missing: Vec<_> = declared.difference(&found).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

fn find_by_name() {
    type Get = unsafe extern "C" fn(*const c_char, *mut *const c_void, c_int, u64, *mut c_uint) -> c_int;
    const SUCCESS: c_uint = 0;
    const VERSION_NOT_SUFFICIENT: c_uint = 2;
    // SAFETY: the library has no initializers that could be wrong.
    let library = unsafe { Library::new(shared_object()) }.expect("the shared object");
    // SAFETY: the functions have these types.
    let (get, version) = unsafe {
        let version = library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDriverGetVersion");
        (library.get::<Get>(b"cuGetProcAddress_v2").expect("a function"), version.expect("a function"))
    };
    // SAFETY: nothing is called.
    let exported =
        |name: &str| *unsafe { library.get::<*const c_void>(name.as_bytes()) }.expect("a function");
    let mut newest = 0;
    // SAFETY: a variable.
    assert_eq!(unsafe { version(&raw mut newest) }, 0);
    let find = |name: &str, version: c_int| {
        let (mut address, mut status) = (std::ptr::null(), SUCCESS);
        let name = CString::new(name).expect("no null byte");
        // SAFETY: a C string, and variables.
        let code = unsafe { get(name.as_ptr(), &raw mut address, version, 0, &raw mut status) };
        assert_eq!(code, 0, "{name:?} of CUDA {version}");
        (address, status)
    };
    let table = table();
    for function in &table {
        let (name, base) = (&function.name, libnccl_cuda_functions::base(&function.name));
        let since = function.first as c_int;
        // Versions newer than the driver cannot be requested.
        if since > newest {
            continue;
        }
        assert_eq!(find(base, since), (exported(name), SUCCESS), "{name}");
        assert_eq!(find(base, -1), find(base, newest), "{name}");
        let is_version = |other: &&Function| libnccl_cuda_functions::base(&other.name) == base;
        let first = table.iter().filter(is_version).map(|version| version.first).min();
        if first == Some(function.first) {
            assert_eq!(find(base, since - 1), (std::ptr::null(), VERSION_NOT_SUFFICIENT), "{name}");
        }
    }
}
