//! Runs `nccl bench plot`, and `nccl bench --plot`, as a user does.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// Runs `nccl bench` in a folder. Returns the error. The status has to be `status`.
fn bench(folder: &Path, arguments: &str, status: i32) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl"));
    command.arg("bench").args(arguments.split_whitespace()).current_dir(folder);
    let Output { status: ended, stderr, .. } = command.output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(ended.code(), Some(status), "{arguments}\n{stderr}");
    stderr
}

#[test]
fn results_are_drawn_in_one_picture() {
    let folder = TempDir::new().expect("a folder");
    let folder = folder.path();
    bench(folder, "all_reduce --cpu --ranks 2 -b 8 -e 64K -f 8 -n 2 --json=two.json", 0);
    bench(folder, "all_reduce --cpu --ranks 3 -b 8 -e 64K -f 8 -n 2 -o all --json=three.json", 0);
    bench(folder, "plot two.json three.json -o both.svg", 0);
    let svg = fs::read_to_string(folder.join("both.svg")).expect("the picture");
    let labels = ["two: all_reduce float sum, 2 ranks, cpu", "three: all_reduce float mulsum, 3 ranks, cpu"];
    for text in
        labels.into_iter().chain(["Bus bandwidth", "GB/s", "Time", "microseconds", "size in bytes", "32K"])
    {
        assert!(svg.contains(text), "{text}: {svg}");
    }
    // One and six reductions, in two charts.
    let lines =
        svg.lines().filter(|line| line.starts_with("<polyline") && line.contains("stroke-width=\"2\""));
    assert_eq!(lines.count(), 14, "{svg}");
    assert!(svg.contains("@media (prefers-color-scheme: dark)"), "{svg}");
    for placeholder in ["#010101", "#020202", "#FEFEFE", "#0303"] {
        assert!(!svg.contains(placeholder), "{placeholder}: {svg}");
    }
}

#[test]
fn measurement_draws_itself() {
    let folder = TempDir::new().expect("a folder");
    bench(folder.path(), "broadcast --cpu --ranks 2 -b 8 -e 1K -f 8 -n 2 --plot own.svg", 0);
    let svg = fs::read_to_string(folder.path().join("own.svg")).expect("the picture");
    assert!(svg.contains(": broadcast float root 0, 2 ranks, cpu"), "{svg}");
}

#[test]
fn file_that_is_no_result_is_an_error_that_names_it() {
    let folder = TempDir::new().expect("a folder");
    fs::write(folder.path().join("other.json"), "{}").expect("the file is written");
    let stderr = bench(folder.path(), "plot other.json -o x.svg", 1);
    assert!(stderr.starts_with("error: other.json: not a result of nccl bench --json: "), "{stderr}");
    let stderr = bench(folder.path(), "plot none.json -o x.svg", 1);
    assert!(stderr.starts_with("error: cannot read none.json: "), "{stderr}");
    assert!(bench(folder.path(), "plot none.json", 2).contains("--output <FILE>"));
}
