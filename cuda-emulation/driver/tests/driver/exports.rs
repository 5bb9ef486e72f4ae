//! The functions that the shared object exports, beside those that cudarc looks up.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::{CString, c_char, c_int, c_void};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::process::shared_object;

/// Returns the driver functions that cudarc declares, of whatever release of CUDA.
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

pub(crate) fn every_function_that_cudarc_declares_is_exported_and_found_by_name() {
    type Get = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> c_int;
    let file = shared_object();
    // SAFETY: the library has no initialisers that could be wrong.
    let library = unsafe { libloading::Library::new(&file) };
    let library = library.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    // SAFETY: the function has this type.
    let get = unsafe { library.get::<Get>(b"cuGetProcAddress") }.expect("the function");
    let names = declared_by_cudarc();
    assert!(names.len() > 400, "{} names", names.len());
    let mut exports: BTreeMap<&str, Vec<*const c_void>> = BTreeMap::new();
    for name in &names {
        // SAFETY: nothing is called.
        let exported = unsafe { library.get::<*const c_void>(name.as_bytes()) };
        let exported = exported.unwrap_or_else(|error| panic!("{name}: {error}"));
        let base = name.rsplit_once("_v").map_or(&name[..], |(base, _)| base);
        exports.entry(base).or_default().push(*exported);
    }
    assert!(exports.len() > 400, "{} functions", exports.len());
    for (base, versions) in exports {
        let mut address = std::ptr::null_mut();
        let text = CString::new(base).expect("no null byte");
        // SAFETY: a C string, and a variable.
        assert_eq!(unsafe { get(text.as_ptr(), &raw mut address, 13000, 0) }, 0, "{base}");
        assert!(versions.contains(&address.cast_const()), "{base}");
    }
}
