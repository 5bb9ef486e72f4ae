//! The help of `nccl`, its completions, manual pages, version, and variables.

use std::fs;
use std::process::Command;

use crate::common::{assert_has, nccl, read, run};

/// Returns what is printed to stdout by a success.
fn text(arguments: &str) -> String {
    run(&mut nccl(arguments), 0).0
}

const SUBCOMMANDS: [&str; 6] = ["doctor", "env", "run", "trace", "completions", "man"];

#[test]
fn help_has_an_example_and_fits_a_screen() {
    for name in SUBCOMMANDS.into_iter().chain([""]) {
        let help = text(&format!("{name} -h"));
        let example = help.split("\nExample").nth(1).unwrap_or_default();
        assert!(example.contains("\n  nccl "), "{help}");
        assert!(help.lines().count() <= 40, "{help}");
    }
}

#[test]
fn completions_are_valid_and_name_all_subcommands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&format!("completions {shell}"));
        assert_has(&script, &SUBCOMMANDS);
        assert!(!script.contains("device_implementation"), "an option that is refused is in\n{script}");
        if shell == "bash" {
            assert_has(
                &script,
                &["compgen -W \"int8 uint8 ", "compgen -W \"sum prod max min avg mulsum all\""],
            );
            run(Command::new(shell).args(["-n", "-c", &script]), 0);
        }
    }
}

#[test]
fn manual_has_a_page_for_each_subcommand() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pages = folder.path().join("share/man/man1");
    run(nccl("man").arg(&pages), 0);
    for name in SUBCOMMANDS {
        assert_has(&read(&pages.join(format!("nccl-{name}.1"))), &[".SH SYNOPSIS", "Example"]);
    }
    assert!(pages.join("nccl.1").is_file());

    let file = folder.path().join("file");
    fs::write(&file, "").expect("it is writable");
    let (_, error) = run(nccl("man").arg(&file), 1);
    let problem = format!("error: cannot write the manual pages into {}: ", file.display());
    assert!(error.starts_with(&problem), "{error}");
}

#[test]
fn version_says_what_the_program_was_built_with() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(text("-V"), format!("nccl {version}\n"));
    let long = text("--version");
    assert!(long.starts_with(&format!("nccl {version}\nlibnccl:  {version}\nheader:   NCCL 2.")), "{long}");
    assert_has(&long, &["\nfeatures: dlopen", "\ntarget:   "]);
}

#[test]
fn env_explains_a_default_that_is_not_told() {
    // With the system's library, if there is one, or without any.
    let (stdout, _) = run(nccl("env nccl_debug").env_remove("NCCL_DEBUG"), 0);
    assert_has(&stdout, &["NCCL_DEBUG="]);
    let is_explained = stdout.contains("# ?: not set, and the library does not tell its default\n");
    assert_eq!(is_explained, stdout.contains("=?  (default)\n"), "{stdout}");
}

#[test]
fn env_without_the_library_that_is_named_is_an_error() {
    let (_, error) = run(&mut nccl("env --library /nonexistent"), 1);
    assert!(error.starts_with("error: "), "{error}");
    assert_has(&error, &["/nonexistent"]);
}
