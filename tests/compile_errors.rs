//! The compiler's messages for likely mistakes: they say what to do instead.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// A statement that does not compile, and texts that the message has.
#[rustfmt::skip]
const MISTAKES: &[(&str, &[&str])] = &[
    ("comm.recv(&mut ['a'], 0, StreamRef::DEFAULT)",
        &["NCCL has no data type for `char`", "elements are i8, u8"]),
    ("std::thread::scope(|s| drop(s.spawn(|| comm.rank())))",
        &["OneThreadAtATime", "cannot be shared between threads safely"]),
];

/// Returns the newest library of this crate beside the test program.
fn library() -> PathBuf {
    let program = env::current_exe().unwrap();
    let files = fs::read_dir(program.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("liblibnccl-") && name.ends_with(".rlib")
    };
    files.filter(is_library).max_by_key(|path| path.metadata().unwrap().modified().unwrap()).unwrap()
}

/// Compiles a program with one statement, and returns the compiler's success and messages.
fn compile(directory: &Path, statement: &str) -> (bool, String) {
    let program = format!(
        "#![allow(unused)]\nuse libnccl::*;\npub fn f(comm: &Communicator) {{ let _ = {statement}; }}\n"
    );
    let (file, library) = (directory.join("mistake.rs"), library());
    fs::write(&file, program).unwrap();
    let output = Command::new(env::var_os("RUSTC").unwrap_or("rustc".into()))
        .args(["--edition=2024", "--crate-type=lib", "--emit=metadata", "--out-dir"])
        .arg(directory)
        .arg("-L")
        .arg(format!("dependency={}", library.parent().unwrap().display()))
        .arg("--extern")
        .arg(format!("libnccl={}", library.display()))
        .arg(&file)
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn likely_mistake_is_answered_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let (compiles, messages) = compile(directory.path(), "comm.send(&[1_u8], 0, StreamRef::DEFAULT)");
    assert!(compiles, "a statement without mistake:\n{messages}");
    for (statement, expected) in MISTAKES {
        let (compiles, messages) = compile(directory.path(), statement);
        assert!(!compiles, "{statement} compiles");
        for text in *expected {
            assert!(messages.contains(text), "{statement}: no {text:?} in\n{messages}");
        }
        assert!(!messages.contains("RwLock"), "{statement}:\n{messages}");
    }
}
