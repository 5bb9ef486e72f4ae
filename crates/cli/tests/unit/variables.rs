use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use libnccl::Version;

use super::{Newest, OF_CPU};

#[test]
fn newest_release_is_that_of_the_header() {
    assert_eq!(Newest::read().unwrap().release().unwrap(), Version::HEADER);
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// Only a checkout has the sources.
#[test]
fn variables_of_the_cpu_backend_are_those_in_its_sources() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = BTreeSet::new();
    for file in ["cpu/src", "../cuda-emulation/common/src", "../cuda-emulation/driver/src"]
        .iter()
        .flat_map(|folder| sources(&crates.join(folder)))
    {
        let text = fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap();
        // C strings are the keys of parameters.
        let pieces: Vec<_> = text.split('"').collect();
        let strings = pieces.windows(2).filter(|pair| !pair[0].ends_with('c')).map(|pair| pair[1]);
        let names = strings.filter(|text| {
            let name = text.strip_prefix("LIB").unwrap_or(text);
            let is_name = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
            // Error texts name the macros.
            let is_macro = name.ends_with("_INITIALIZER");
            name.starts_with("NCCL_") && name.len() > 5 && name.bytes().all(is_name) && !is_macro
        });
        found.extend(names.map(str::to_owned));
    }
    let listed: BTreeSet<_> = OF_CPU.map(String::from).into();
    let missing: Vec<_> = found.difference(&listed).collect();
    let idle: Vec<_> = listed.difference(&found).collect();
    assert!(missing.is_empty() && idle.is_empty(), "not listed: {missing:?}, not in the sources: {idle:?}");
}

/// Only a checkout has the page and the sources.
#[test]
fn variables_of_this_project_are_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/environment.md")).unwrap();
    let mut count = 0;
    for file in ["build", "src", "crates", "cuda-emulation"].iter().flat_map(|part| sources(&root.join(part)))
    {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let names =
            text.lines().filter_map(|line| line.split_once("const ")?.1.split_once(": &str = \"LIBNCCL_"));
        for name in names.filter_map(|(_, rest)| rest.strip_suffix("\";")) {
            assert!(
                name.starts_with("TEST_") || page.contains(&format!("`LIBNCCL_{name}`")),
                "{name} of {file:?}"
            );
            count += 1;
        }
    }
    assert!(count >= 25, "only {count} constants name variables");
}
