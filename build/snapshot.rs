//! Fresh bindings where libclang can be had, the committed snapshot of the same text where it cannot.

use std::fs;
use std::path::Path;

/// The committed bindings, below the package's root.
pub(crate) const DIRECTORY: &str = "src/sys/snapshot";

/// The generated files that make the raw layer.
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

/// Runs bindgen as `LIBNCCL_BINDGEN` says: `auto` (the default; `None` and one warning where it fails),
/// `require` (a failure fails the build) or `never`.
#[cfg(feature = "bindgen")]
pub(crate) fn fresh_bindings(root: &Path) -> Option<Vec<(&'static str, String)>> {
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
    match quietly(|| crate::bindings::Bindings::generate(root)) {
        Ok(bindings) => Some(bindings.0),
        Err(reason) if mode == "require" => panic!("LIBNCCL_BINDGEN=require, but bindgen failed: {reason}"),
        Err(reason) => {
            let reason = reason.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
            println!("cargo::warning=using the committed bindings, which are the same text ({reason})");
            None
        }
    }
}

/// bindgen answers a header it cannot read with an `Err`, but a missing libclang with a panic.
#[cfg(feature = "bindgen")]
fn quietly<T>(generate: impl FnOnce() -> Result<T, String> + std::panic::UnwindSafe) -> Result<T, String> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = std::panic::catch_unwind(generate);
    std::panic::set_hook(hook);
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string())).unwrap_or_default())
    })
}

/// Puts every file of the bindings into `out`: the fresh ones, else the snapshot's.
pub(crate) fn write_bindings(root: &Path, out: &Path, fresh: Option<Vec<(&'static str, String)>>) {
    let snapshot = || {
        FILES
            .map(|file| {
                let path = root.join(DIRECTORY).join(file);
                let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                (file, text)
            })
            .to_vec()
    };
    for (file, text) in fresh.unwrap_or_else(snapshot) {
        let path = out.join(file);
        fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}
