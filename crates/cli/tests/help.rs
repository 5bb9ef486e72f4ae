//! Runs what `nccl` says of itself: help, completions, manual pages, version, and the variables.

use std::fs;
use std::process::{Command, Output};

fn nccl(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl"));
    command.args(arguments).env_remove("LIBNCCL_PATH").output().expect("the program starts")
}

fn text(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

const SUBCOMMANDS: [&str; 6] = ["doctor", "env", "run", "trace", "completions", "man"];

#[test]
fn help_has_an_example_and_fits_a_screen() {
    let of_all = ["-h"].map(|option| text(nccl(&[option])));
    let of_each = SUBCOMMANDS.map(|name| text(nccl(&[name, "-h"])));
    for help in of_all.iter().chain(&of_each) {
        let example = help.split("\nExample").nth(1).unwrap_or_default();
        assert!(example.contains("\n  nccl "), "{help}");
        assert!(help.lines().count() <= 40, "{help}");
    }
}

#[test]
fn completions_are_valid_and_name_all_subcommands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(nccl(&["completions", shell]));
        assert!(SUBCOMMANDS.iter().all(|name| script.contains(name)), "{shell}: {script}");
    }
    let script = text(nccl(&["completions", "bash"]));
    let checked = Command::new("bash").args(["-n", "-c", &script]).status().expect("bash starts");
    assert!(checked.success(), "{script}");
}

#[test]
fn manual_has_a_page_for_each_subcommand() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pages = folder.path().join("share/man/man1");
    text(nccl(&["man", pages.to_str().expect("text")]));
    for name in SUBCOMMANDS {
        let page = fs::read_to_string(pages.join(format!("nccl-{name}.1"))).expect(name);
        assert!(page.contains(".SH SYNOPSIS") && page.contains("Example"), "{page}");
    }
    assert!(pages.join("nccl.1").is_file());

    let file = folder.path().join("file");
    fs::write(&file, "").expect("it is writable");
    let failed = nccl(&["man", file.to_str().expect("text")]);
    assert_eq!(failed.status.code(), Some(1));
    let error = String::from_utf8_lossy(&failed.stderr);
    assert!(
        error.starts_with(&format!("error: cannot write the manual pages into {}: ", file.display())),
        "{error}"
    );
}

#[test]
fn version_says_what_the_program_was_built_with() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(text(nccl(&["-V"])), format!("nccl {version}\n"));
    let long = text(nccl(&["--version"]));
    assert!(long.starts_with(&format!("nccl {version}\nlibnccl:  {version}\nheader:   NCCL 2.")), "{long}");
    for line in ["features: dlopen", "target:   "] {
        assert!(long.lines().any(|found| found.starts_with(line)), "{long}");
    }
}

#[test]
fn env_without_a_library_is_an_error() {
    let output = nccl(&["env", "--library", "/nonexistent"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.starts_with("error: ") && error.contains("/nonexistent"), "{error}");
}
