//! The bindings of a build: those that bindgen generates, or else the committed copy of them.

use std::path::Path;

use crate::committed;

/// What to do if bindgen cannot run, or generates other bindings than the committed ones from the same headers: `auto` compiles the
/// committed bindings, with a warning, `require` fails; `never` does not try bindgen. Default: `auto`.
const BINDGEN: &str = "LIBNCCL_BINDGEN";

/// Writes the bindings into `out`, from where the crate includes them.
pub(crate) fn write(root: &Path, out: &Path) {
    println!("cargo::rerun-if-env-changed={BINDGEN}");
    let mode = std::env::var(BINDGEN).ok().filter(|mode| !mode.is_empty());
    let is_required = match mode.as_deref() {
        Some("never") => return committed::copy(root, out, None),
        Some("require") => true,
        None | Some("auto") => false,
        Some(other) => panic!("{BINDGEN} is {other:?}; expected auto, require or never"),
    };
    match generate(root) {
        Ok(files) => files.into_iter().for_each(|(file, text)| committed::save(&out.join(file), &text)),
        Err(reason) if is_required => panic!("{BINDGEN}=require, but {reason}"),
        Err(reason) => committed::copy(root, out, Some(&reason)),
    }
}

/// Runs bindgen; an error gives the reason why it cannot run, or why its output is wrong.
#[cfg(feature = "bindgen")]
fn generate(root: &Path) -> Result<Vec<(&'static str, String)>, String> {
    for variable in ["LIBCLANG_PATH", "LLVM_CONFIG_PATH", "CLANG_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    // Cargo shows this if the process dies, as it does if it maps a truncated file (SIGBUS).
    eprintln!(
        "If this ends with a signal, the libclang that bindgen has loaded is damaged: LIBCLANG_PATH names the \
         directory of another, and LIBNCCL_BINDGEN=never builds libnccl without."
    );
    let generated = crate::bindings::catch(|| crate::bindings::Bindings::generate(root));
    let files = generated
        .map_err(|reason| format!("bindgen failed: {}", reason.trim().lines().next().unwrap_or_default()))?
        .0;
    let Some(difference) = committed::difference(root, &files) else { return Ok(files) };
    let libclang = crate::bindings::catch(|| Ok(bindgen::clang_version().full)).unwrap_or_default();
    Err(format!(
        "bindgen with libclang ({libclang}) generates other bindings from the same headers: {difference}"
    ))
}

#[cfg(not(feature = "bindgen"))]
fn generate(_: &Path) -> Result<Vec<(&'static str, String)>, String> {
    Err("the feature `bindgen` is off".into())
}
