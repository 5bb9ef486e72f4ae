//! The bindings of a build: bindgen's output, or the committed copy of it.

use std::fs;
use std::path::{Path, PathBuf};

/// The directory of the committed copy, relative to the package root.
pub(crate) const DIRECTORY: &str = "src/sys/generated";

/// The file in that directory with the hash of the headers that the copy was generated from.
pub(crate) const HASH: &str = "headers.hash";

/// The action if bindgen cannot run, or generates other bindings than the committed ones from the same headers: `auto`
/// compiles the committed bindings, with a warning; `require` fails; `never` does not run bindgen. Default: `auto`.
const BINDGEN: &str = "LIBNCCL_BINDGEN";

/// Writes the bindings into `out`, from where the crate includes them.
pub(crate) fn write(root: &Path, out: &Path) {
    println!("cargo::rerun-if-env-changed={BINDGEN}");
    let mode = std::env::var(BINDGEN).ok().filter(|mode| !mode.is_empty());
    let is_required = match mode.as_deref() {
        Some("never") => return copy(root, out, None),
        Some("require") => true,
        None | Some("auto") => false,
        Some(other) => panic!("{BINDGEN} is {other:?}; expected auto, require or never"),
    };
    match generate(root) {
        Ok(files) => files.into_iter().for_each(|(file, text)| save(&out.join(file), &text)),
        Err(reason) if is_required => panic!("{BINDGEN}=require, but {reason}"),
        Err(reason) => copy(root, out, Some(&reason)),
    }
}

/// Runs bindgen. Returns an error if bindgen cannot run, or if its output differs from the committed copy.
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
    let Some(difference) = difference(root, &files) else { return Ok(files) };
    let libclang = crate::bindings::catch(|| Ok(bindgen::clang_version().full)).unwrap_or_default();
    Err(format!(
        "bindgen with libclang ({libclang}) generates other bindings from the same headers: {difference}"
    ))
}

#[cfg(not(feature = "bindgen"))]
fn generate(_: &Path) -> Result<Vec<(&'static str, String)>, String> {
    Err("the feature `bindgen` is off".into())
}

/// Writes bindgen's output and the hash of the headers into a directory, for `cargo xtask bindings`.
#[cfg(feature = "bindgen")]
pub(crate) fn write_fresh(root: &Path, directory: &Path) -> Result<(), String> {
    let files =
        crate::bindings::Bindings::generate(root).map_err(|reason| format!("bindgen: {}", reason.trim()))?.0;
    files.iter().for_each(|(file, text)| save(&directory.join(file), text));
    save(&directory.join(HASH), &hash_of_headers(root));
    Ok(())
}

/// Copies the committed bindings into `out`. Warns with `reason`, if any, and if the headers have changed since the copy was
/// generated.
fn copy(root: &Path, out: &Path, reason: Option<&str>) {
    let directory = root.join(DIRECTORY);
    for entry in fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display())) {
        let file = entry.unwrap_or_else(|e| panic!("{}: {e}", directory.display())).path();
        let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        save(&out.join(file.file_name().unwrap_or_default()), &text);
    }
    let of_copy = fs::read_to_string(directory.join(HASH)).unwrap_or_default();
    let stale = (of_copy != hash_of_headers(root)).then_some(
        "the copy is stale, as the headers have changed since it was generated: `cargo xtask bindings` writes it anew",
    );
    let sentences: Vec<_> = reason.into_iter().chain(stale).collect();
    if !sentences.is_empty() {
        println!("cargo::warning=the committed copy of the bindings is compiled: {}", sentences.join("; "));
    }
}

/// Describes the first line in which bindgen's output differs from the copy. Compares nothing if the headers have changed
/// since the copy was generated.
#[allow(dead_code)] // in builds without bindgen
pub(crate) fn difference(root: &Path, generated: &[(&str, String)]) -> Option<String> {
    let copy = |file: &str| fs::read_to_string(root.join(DIRECTORY).join(file)).unwrap_or_default();
    if copy(HASH) != hash_of_headers(root) {
        return None;
    }
    generated.iter().find_map(|(file, text)| {
        let copy = copy(file);
        let equal = copy.lines().zip(text.lines()).take_while(|(ours, theirs)| ours == theirs).count();
        let [ours, theirs] = [&copy, text].map(|text| text.lines().nth(equal).map(str::trim));
        let item = copy.lines().take(equal + 1).filter_map(item_of).last();
        (ours != theirs).then(|| {
            format!(
                "{file}, line {}{}: the copy has `{}`, bindgen `{}`",
                equal + 1,
                item.map(|item| format!(", {item}")).unwrap_or_default(),
                ours.unwrap_or_default(),
                theirs.unwrap_or_default()
            )
        })
    })
}

/// Returns the name of the item whose declaration starts on the line.
fn item_of(line: &str) -> Option<&str> {
    let mut words = line.trim_start().strip_prefix("pub ")?.split(' ');
    words.find(|word| ["const", "fn", "struct", "type", "union"].contains(word))?;
    words.next()?.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

fn save(file: &Path, text: &str) {
    fs::write(file, text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
}

/// Returns the 64-bit FNV-1a hash of bindgen's inputs: `wrapper.h` and the headers below `vendor-headers`.
pub(crate) fn hash_of_headers(root: &Path) -> String {
    let mut headers = vec![root.join("wrapper.h")];
    headers_below(&root.join("vendor-headers"), &mut headers);
    headers.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for header in headers {
        let bytes = fs::read(&header).unwrap_or_else(|e| panic!("{}: {e}", header.display()));
        // A checkout may have other line endings.
        for byte in bytes.into_iter().filter(|byte| *byte != b'\r') {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{hash:016x}\n")
}

fn headers_below(directory: &Path, headers: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            headers_below(&path, headers);
        } else if path.extension().is_some_and(|extension| extension == "h") {
            headers.push(path);
        }
    }
}
