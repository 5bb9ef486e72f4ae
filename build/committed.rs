//! The committed copy of the bindings, and of which headers it is.

use std::fs;
use std::path::{Path, PathBuf};

/// The directory of the copy, relative to the package root.
pub(crate) const DIRECTORY: &str = "src/sys/generated";

/// The file there with the hash of the headers from which the copy was generated.
pub(crate) const HASH: &str = "headers.hash";

/// Copies the committed bindings into `out`, and warns with the reason if that was not asked for, and if they are not of
/// the present headers.
pub(crate) fn copy(root: &Path, out: &Path, reason: Option<&str>) {
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

/// Describes the first line in which bindgen's output differs from the copy. If the headers have changed since the copy was
/// generated, it has to differ, and nothing is compared.
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

pub(crate) fn save(file: &Path, text: &str) {
    fs::write(file, text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
}

/// Returns a hash (FNV-1a) of all that bindgen reads: `wrapper.h` and the headers below `vendor-headers`.
pub(crate) fn hash_of_headers(root: &Path) -> String {
    let mut headers = vec![root.join("wrapper.h")];
    headers_below(&root.join("vendor-headers"), &mut headers);
    headers.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for header in headers {
        let bytes = fs::read(&header).unwrap_or_else(|e| panic!("{}: {e}", header.display()));
        // A checkout may have other line ends.
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
