use std::fs;
use std::path::Path;

use libnccl_test_support::random_inputs::{Random, inputs};

use super::{Line, Settings, integer};
use crate::system::System;

#[test]
fn random_files_are_settings_or_lines_that_are_ignored() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("nccl.conf");
    let mut random = Random(37);
    for _ in inputs(5_000) {
        let mut bytes = b"# a comment\nNCCL_ALGO=Tree\nNCCL_SOCKET_IFNAME==eth0\r\nno value\n\n=\n".to_vec();
        random.change_all(&mut bytes);
        fs::write(&file, bytes).unwrap();
        let settings = Settings::of(&System::at(root.path(), &[("NCCL_CONF_FILE", "/nccl.conf")]));
        let lines = settings.files[0].lines.as_deref().unwrap();
        let set = lines.iter().filter(|line| matches!(line, Line::Set { overridden_by: None, .. }));
        assert_eq!(set.count() + 1, settings.iter().count());
    }
}

#[test]
fn values_of_files_are_those_that_the_library_added() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("nccl.conf"), "NCCL_ALGO=Ring\nNCCL_PROTO=LL\nNCCL_DEBUG=INFO\n").unwrap();
    let system = System::at(root.path(), &[("NCCL_CONF_FILE", "/nccl.conf"), ("NCCL_NET", "IB")]);
    let mut settings = Settings::of(&system);
    let paths: Vec<_> = settings.files.iter().map(|file| (file.path.as_path(), file.is_named)).collect();
    assert_eq!(paths, [(Path::new("/nccl.conf"), true), (Path::new("/etc/nccl.conf"), false)]);
    let added = [("NCCL_ALGO", "Ring\r"), ("NCCL_NTHREADS", "64")];
    let added = added.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let unread = settings.correct(&added, |name| name == "NCCL_DEBUG");
    assert_eq!(unread, [("NCCL_PROTO".to_owned(), Path::new("/nccl.conf").to_owned())]);
    let texts = ["NCCL_ALGO", "NCCL_PROTO", "NCCL_DEBUG", "NCCL_NET", "NCCL_NTHREADS"]
        .map(|name| settings.text(name));
    let expected = [
        "NCCL_ALGO=Ring\r (/nccl.conf)",
        "NCCL_PROTO (not set)",
        "NCCL_DEBUG=INFO (/nccl.conf)",
        "NCCL_NET=IB (environment)",
        "NCCL_NTHREADS=64 (another configuration file of the library)",
    ];
    assert_eq!(texts, expected);
}

#[test]
fn numbers_are_those_of_c() {
    for (text, expected) in [
        ("1", (1, "")),
        (" \t+12x", (12, "x")),
        ("-3", (-3, "")),
        ("0x1F", (31, "")),
        ("0x", (0, "x")),
        ("010", (8, "")),
        ("4M", (4, "M")),
        ("true", (0, "true")),
        ("\"1\"", (0, "\"1\"")),
        ("", (0, "")),
        ("99999999999999999999", (i64::MAX, "")),
    ] {
        assert_eq!(integer(text), expected, "{text:?}");
    }
}
