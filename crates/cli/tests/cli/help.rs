//! The help of `nccl`, its completions, manual pages, version, and variables.

use std::process::Command;

use crate::common::{assert_has, nccl, read, run};
use crate::snapshot::Session;

/// Returns the stdout of a command, which must succeed.
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
    Session::new().replay("help", Session::shell);
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

/// In the commands, `bash complete WORDS` prints the completions of the word after these.
#[test]
fn completions_offer_what_is_accepted() {
    let session = Session::new();
    session.write("a_file", "");
    let script = "source <(nccl completions bash); COMP_WORDS=(nccl \"$@\" ''); COMP_CWORD=$(($# + 1))
        compopt() { :; }; _nccl nccl '' \"${@: -1}\"; echo \"${COMPREPLY[@]}\"";
    session.write("complete", script);
    session.replay("completions", Session::shell);
}

#[test]
fn manual_has_a_page_for_each_subcommand() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let pages = directory.path().join("share/man/man1");
    run(nccl("man").arg(&pages), 0);
    for name in SUBCOMMANDS {
        assert_has(&read(&pages.join(format!("nccl-{name}.1"))), &[".SH SYNOPSIS", "Example"]);
    }
    assert!(pages.join("nccl.1").is_file());
}

#[test]
fn version_says_what_the_program_was_built_with() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(text("-V"), format!("nccl {version}\n"));
    let long = text("--version");
    assert!(long.starts_with(&format!("nccl {version}\nlibnccl:  {version}\nheader:   NCCL 2.")), "{long}");
    assert_has(&long, &["\nfeatures: dlopen", "\ntarget:   "]);
}
