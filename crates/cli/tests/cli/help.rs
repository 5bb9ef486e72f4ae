//! The help of `nccl`, its completions, manual pages and version.

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
