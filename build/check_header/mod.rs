//! `LIBNCCL_CHECK_HEADER`: compares a user's header with the bindings.

#[cfg(feature = "bindgen")]
mod compare;
#[cfg(feature = "bindgen")]
mod declarations;
#[cfg(feature = "bindgen")]
pub(crate) mod official;

use std::env;
use std::ffi::OsStr;
use std::path::Path;

/// A header of NCCL that the build compares with the bindings: `/usr/include/nccl.h`. Default: none.
const CHECK_HEADER: &str = "LIBNCCL_CHECK_HEADER";
/// If set to a value other than 0, items that the header lacks fail the build too. Default: they are listed.
const STRICT: &str = "LIBNCCL_CHECK_HEADER_STRICT";

/// Compares the header that `LIBNCCL_CHECK_HEADER` names, if any. Lists the items that only one header declares in a file in
/// `out`.
///
/// # Panics
/// Panics if the header contradicts the bindings, or cannot be compared with them. This fails the build.
pub(crate) fn check(root: &Path, out: &Path) {
    let variable = |name: &str| {
        println!("cargo::rerun-if-env-changed={name}");
        env::var_os(name).filter(|value| !value.is_empty())
    };
    let is_strict = variable(STRICT).is_some_and(|value| value != "0");
    if let Some(header) = variable(CHECK_HEADER) {
        println!("cargo::rerun-if-changed={}", Path::new(&header).display());
        compare(root, out, &header, is_strict);
    }
}

#[cfg(feature = "bindgen")]
fn compare(root: &Path, out: &Path, header: &OsStr, is_strict: bool) {
    let report = compare::run(root, header, is_strict).unwrap_or_else(|problem| panic!("{problem}"));
    let file = out.join("check_header.txt");
    let text = format!("{}\n{}", report.summary, report.list);
    std::fs::write(&file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    if !report.list.is_empty() {
        println!("cargo::warning={}; {} lists them", report.summary, file.display());
    }
}

#[cfg(not(feature = "bindgen"))]
fn compare(_: &Path, _: &Path, header: &OsStr, _: bool) {
    panic!("{CHECK_HEADER} is {header:?}, and the check needs the feature `bindgen` of libnccl");
}
