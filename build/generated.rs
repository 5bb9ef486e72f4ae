//! The generated bindings of a build: fresh ones where libclang is available, otherwise the committed copy of the
//! same text.

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

/// Calls `generate`, which runs bindgen, as `LIBNCCL_BINDGEN` asks: `auto` (the default) returns `None` and prints
/// one warning on failure, `require` fails the build on failure, `never` does not call it.
#[cfg(feature = "bindgen")]
pub(crate) fn fresh_bindings(
    generate: impl FnOnce() -> Result<Vec<(&'static str, String)>, String> + std::panic::UnwindSafe,
) -> Option<Vec<(&'static str, String)>> {
    for variable in ["LIBNCCL_BINDGEN", "LIBCLANG_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let mode = std::env::var("LIBNCCL_BINDGEN").unwrap_or_else(|_| "auto".into());
    if mode == "never" {
        return None;
    }
    assert!(
        mode == "auto" || mode == "require",
        "LIBNCCL_BINDGEN is {mode:?}; expected auto, require or never"
    );
    match catch_panic(generate) {
        Ok(files) => Some(files),
        Err(reason) if mode == "require" => panic!("LIBNCCL_BINDGEN=require, but bindgen failed: {reason}"),
        Err(reason) => {
            let reason = reason.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
            println!("cargo::warning=using the committed bindings, which are the same text ({reason})");
            None
        }
    }
}

/// Turns a panic of `generate` into an error, without a backtrace on stderr: bindgen returns an `Err` for a header
/// that it cannot read, but panics when libclang is missing.
#[cfg(feature = "bindgen")]
fn catch_panic<T>(
    generate: impl FnOnce() -> Result<T, String> + std::panic::UnwindSafe,
) -> Result<T, String> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = std::panic::catch_unwind(generate);
    std::panic::set_hook(hook);
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string())).unwrap_or_default())
    })
}

/// Writes every file of the bindings into `out`: the fresh text if there is one, otherwise the committed text.
pub(crate) fn write_bindings(root: &Path, out: &Path, fresh: Option<Vec<(&'static str, String)>>) {
    let committed = || {
        FILES
            .map(|file| {
                let path = root.join(DIRECTORY).join(file);
                let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                (file, text)
            })
            .to_vec()
    };
    for (file, text) in fresh.unwrap_or_else(committed) {
        let path = out.join(file);
        fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}
