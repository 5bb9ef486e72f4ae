//! The generated bindings of a build: the committed ones, and what bindgen says of them where libclang is available.

use std::fs;
use std::path::Path;

/// The directory of the committed bindings, relative to the package root.
pub(crate) const DIRECTORY: &str = "src/sys/generated";

/// The generated files that make up the raw layer.
pub(crate) const FILES: [&str; 9] = [
    "types.rs",
    "linked.rs",
    "linked.c",
    "dynamic.rs",
    "functions.rs",
    "since.rs",
    "device_types.rs",
    "device_functions.rs",
    "device.c",
];

/// Compares the committed bindings with those that bindgen generates here, as `LIBNCCL_BINDGEN` asks: `auto` (the
/// default) prints one warning if they differ or bindgen fails, `require` fails the build, `never` does not run bindgen.
///
/// Fresh bindings are never compiled: arguments for clang from the environment can change the layout of structs, which
/// would compile and crash. bindgen runs in a process of its own, which a damaged libclang may end (SIGBUS).
#[cfg(feature = "bindgen")]
pub(crate) fn compare_with_bindgen(root: &Path, out: &Path) {
    let target = std::env::var("TARGET").unwrap_or_default();
    let arguments = "BINDGEN_EXTRA_CLANG_ARGS";
    let of_target = [target.clone(), target.replace('-', "_")].map(|target| format!("{arguments}_{target}"));
    let libclang = ["LIBNCCL_BINDGEN", "LIBCLANG_PATH", "LLVM_CONFIG_PATH", "CLANG_PATH", arguments];
    for variable in libclang.into_iter().chain(of_target.iter().map(String::as_str)) {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let mode = std::env::var("LIBNCCL_BINDGEN").ok().filter(|mode| !mode.is_empty());
    let mode = mode.as_deref().unwrap_or("auto");
    assert!(
        ["auto", "require", "never"].contains(&mode),
        "LIBNCCL_BINDGEN is {mode:?}; expected auto, require or never"
    );
    if mode == "never" {
        return;
    }
    match difference(root, &out.join("fresh")) {
        Ok(()) => {}
        Err(problem) if mode == "require" => panic!("LIBNCCL_BINDGEN=require, but {problem}"),
        Err(problem) => println!("cargo::warning=using the committed bindings: {problem}"),
    }
}

/// Runs this program with the argument `fresh`, a directory for which it calls [`write_fresh`], and compares.
#[cfg(feature = "bindgen")]
fn difference(root: &Path, fresh: &Path) -> Result<(), String> {
    fs::create_dir_all(fresh).map_err(|error| format!("{}: {error}", fresh.display()))?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = std::process::Command::new(program).arg(fresh).env("RUST_BACKTRACE", "0").output();
    let output = output.map_err(|error| format!("bindgen failed: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        // bindgen panics if libclang is missing.
        let is_reason = |line: &&str| !line.is_empty() && !line.starts_with("thread '");
        let status = output.status.to_string();
        let reason = text.lines().map(str::trim).find(is_reason).unwrap_or(&status);
        return Err(format!("bindgen failed, which does not matter, as they are the same text ({reason})"));
    }
    let differs = |file: &&str| {
        let text = |directory: &Path| fs::read(directory.join(file)).ok();
        text(fresh) != text(&root.join(DIRECTORY))
    };
    let different: Vec<_> = FILES.into_iter().filter(differs).collect();
    if different.is_empty() {
        return Ok(());
    }
    Err(format!(
        "those of bindgen differ ({}); after a change of the header run `cargo xtask bindings`, otherwise look for \
         BINDGEN_EXTRA_CLANG_ARGS",
        different.join(", ")
    ))
}

/// Writes fresh bindings into a directory; ends the process with the reason if bindgen fails.
#[cfg(feature = "bindgen")]
pub(crate) fn write_fresh(bindings: Result<Vec<(&'static str, String)>, String>, directory: &Path) {
    let written = bindings.and_then(|files| {
        let write = |(file, text)| fs::write(directory.join(file), text);
        files.into_iter().try_for_each(write).map_err(|error| error.to_string())
    });
    if let Err(reason) = written {
        eprintln!("{reason}");
        std::process::exit(1);
    }
}

/// Writes the committed bindings into `out`.
pub(crate) fn write_bindings(root: &Path, out: &Path) {
    for file in FILES {
        let path = root.join(DIRECTORY).join(file);
        fs::copy(&path, out.join(file)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}
