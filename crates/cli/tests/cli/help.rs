//! The help of `nccl`, its completions, manual pages and version.

use crate::common::{assert_has, nccl, run};
use crate::snapshot::Session;

#[test]
fn help_manual_and_errors_are_printed() {
    Session::new().replay("help", Session::shell);
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
fn version_says_what_the_program_was_built_with() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(run(&mut nccl("-V"), 0).0, format!("nccl {version}\n"));
    let (long, _) = run(&mut nccl("--version"), 0);
    assert!(long.starts_with(&format!("nccl {version}\nlibnccl:  {version}\nheader:   NCCL 2.")), "{long}");
    assert_has(&long, &["\nfeatures: dlopen", "\ntarget:   "]);
}
