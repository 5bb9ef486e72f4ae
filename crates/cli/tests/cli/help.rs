//! The help of `nccl`, its completions, manual pages, version, and variables.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{NCCL, assert_has, json, nccl, read, repository, run};
use crate::doctor::has_library;
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

/// Returns bash's completions of the last of these words.
fn completed(directory: &Path, words: &[&str]) -> Vec<String> {
    let script = "source <(\"$1\" completions bash); shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1))
        compopt() { :; }; _nccl nccl \"${@: -1}\" \"${@: -2:1}\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut command = Command::new("bash");
    command.args(["-c", script, "bash", NCCL, "nccl"]).args(words).arg("").current_dir(directory);
    run(&mut command, 0).0.lines().map(str::to_owned).collect()
}

#[test]
fn completions_offer_what_is_accepted() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    fs::write(directory.path().join("a_file"), "").expect("it is writable");
    let has_link = cfg!(feature = "link");
    let check = |words: &str, accepted: &[&str], refused: &[&str]| {
        let words: Vec<_> = words.split(' ').collect();
        let offered = completed(directory.path(), &words);
        let is_offered = |word: &&&str| offered.iter().any(|offered| offered == **word);
        assert!(accepted.iter().all(|word| is_offered(&word)), "{words:?}: {offered:?}");
        assert_eq!(refused.iter().find(is_offered), None, "{words:?}: {offered:?}");
    };
    for words in [
        "bench -b",
        "bench all_reduce --ranks",
        "bench all_reduce -r",
        "bench pairs --max-latency",
        "bench compare a b --threshold",
        "recorder diff --pid",
        "run -n",
        "ras --addr",
    ] {
        check(words, &[], &["a_file"]);
    }
    for words in ["bench --library", "bench all_reduce --json", "recorder diff --html", "trace --recorder"] {
        check(words, &["a_file"], &[]);
    }
    let refused = if has_link { "a_file" } else { "link" };
    check("bench all_reduce --backend", &["dlopen", "cpu"], &[refused]);
    check("bench all_reduce -d", &["int8", "bfloat16", "all"], &["a_file"]);
    check("bench all_reduce -o", &["sum", "mulsum", "all"], &["a_file"]);
    check("bench all_reduce -z", &["0", "3"], &["a_file"]);
    check("bench", &["all_reduce", "hypercube", "pairs"], &["-D", "--device_cta_count", "a_file"]);
    check("ras", &["status", "monitor", "diagnostics"], &["a_file"]);
    check("completions", &["bash", "zsh", "fish"], &["a_file"]);
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

    let file = directory.path().join("file");
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
fn env_without_a_library_lists_the_newest_version() {
    if has_library() {
        return;
    }
    let table = json(&read(&repository().join("crates/cli/src/nccl_variables.json")));
    let release = table["release"].as_str().expect("a release");
    let newest = format!(
        "no NCCL library found: the variables of NCCL {release}, the newest version that this program lists\n"
    );
    let empty = tempfile::tempdir().expect("a temporary directory");
    let env = |arguments: &str| {
        let mut command = nccl(&format!("env {arguments}"));
        command
            .env_clear()
            .env("NCCL_IB_TIMEOUT", "22")
            .env("NCCL_IB_TIMEOUTS", "1")
            .env("HOME", empty.path());
        run(&mut command, 0)
    };
    let (stdout, stderr) = env("");
    assert!(
        stdout.starts_with(&format!("# {newest}# ?: not set, and its default is not known\n")),
        "{stdout}"
    );
    for line in [
        "NCCL_ALGO=?  (default)",
        "NCCL_IB_RETRY_CNT=7  (default)",
        "NCCL_IB_TIMEOUT=22  (environment)",
        "NCCL_IB_TIMEOUTS=1  (environment; unknown to this version)",
        "NCCL_MAX_CTAS=-2147483648  (default)",
    ] {
        assert!(stdout.lines().any(|printed| printed == line), "{line}: {stdout}");
    }
    assert_eq!(stderr, "");
    let (stdout, stderr) = env("--json retry_cnt");
    assert_eq!(json(&stdout)[0]["value"], "34", "{stdout}");
    assert_eq!(stderr, newest);
}
