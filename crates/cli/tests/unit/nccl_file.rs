use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use libnccl::Version;
use libnccl_test_support::random_inputs::{Random, inputs};

use super::{Cuda, KNOWN, NcclFile};

/// Writes a shared object that contains only these constants.
pub(crate) fn write_library(file: &Path, constants: &[u8]) {
    const HEADER: usize = 64;
    let names = b"\0.rodata\0.shstrtab\0";
    let mut bytes = vec![0; HEADER];
    bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    let offset = (HEADER + constants.len() + names.len()) as u64;
    let fields: [(usize, &[u8]); 8] = [
        (16, &3u16.to_le_bytes()),
        (18, &62u16.to_le_bytes()),
        (20, &1u32.to_le_bytes()),
        (40, &offset.to_le_bytes()),
        (52, &64u16.to_le_bytes()),
        (58, &64u16.to_le_bytes()),
        (60, &3u16.to_le_bytes()),
        (62, &2u16.to_le_bytes()),
    ];
    for (at, field) in fields {
        bytes[at..at + field.len()].copy_from_slice(field);
    }
    bytes.extend(constants);
    bytes.extend(names);
    let section = |name: u32, kind: u32, offset: usize, size: usize| {
        let mut section = vec![0; 64];
        section[..4].copy_from_slice(&name.to_le_bytes());
        section[4..8].copy_from_slice(&kind.to_le_bytes());
        section[24..32].copy_from_slice(&(offset as u64).to_le_bytes());
        section[32..40].copy_from_slice(&(size as u64).to_le_bytes());
        section
    };
    bytes.extend(section(0, 0, 0, 0));
    bytes.extend(section(1, 1, HEADER, constants.len()));
    bytes.extend(section(9, 3, HEADER + constants.len(), names.len()));
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, bytes).unwrap();
}

#[test]
fn constants_give_the_version_and_the_variables_and_random_files_are_read_or_none() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("libnccl.so.2");
    write_library(
        &file,
        b"\x01\x02NCCL version 2.32.3+cuda12.9\0NCCL_DEBUG\0\x07MbP?NCCL_P2P_DISABLE\0wr_id == NCCL_IB_DUMMY\0NCCL_ is no name\0NCCL_lower\0",
    );
    let found = NcclFile::read(&file).unwrap();
    assert_eq!(found.version, Some(Version::new(2, 32, 3)));
    assert_eq!(found.cuda, Some(Cuda { major: 12, minor: 9 }));
    assert_eq!(found.variables.iter().collect::<Vec<_>>(), ["NCCL_DEBUG", "NCCL_P2P_DISABLE"]);
    let (good, mut random, mut read) = (fs::read(&file).unwrap(), Random(31), 0);
    for _ in inputs(5_000) {
        let mut bytes = good.clone();
        random.change_all(&mut bytes);
        fs::write(&file, bytes).unwrap();
        let found = NcclFile::read(&file);
        read += usize::from(found.is_some());
        let variables = found.map(|found| found.variables).unwrap_or_default();
        assert!(variables.iter().all(|name| name.starts_with("NCCL_")), "{variables:?}");
    }
    assert!(read > 0);
    for bytes in [&b""[..], b"GROUP ( libnccl.so.2 )", b"\x7fELF\x02\x01\x01"] {
        fs::write(&file, bytes).unwrap();
        assert_eq!(NcclFile::read(&file), None);
    }
}

#[test]
fn newest_version_is_the_headers() {
    assert_eq!(KNOWN.release().unwrap(), Version::HEADER);
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// Only a checkout has the sources.
#[test]
fn variables_of_the_cpu_backend_are_those_in_its_sources() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = BTreeSet::new();
    for file in ["cpu/src", "../cuda-emulation/common/src", "../cuda-emulation/driver/src"]
        .iter()
        .flat_map(|directory| sources(&crates.join(directory)))
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
    let listed: BTreeSet<_> = KNOWN.cpu_backend.clone();
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
