//! The findings that `nccl recorder diff` has to have for ranks of which the last one makes a mistake.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

pub(crate) const RANKS: usize = 3;
pub(crate) const FAULTY: usize = RANKS - 1;

/// The mistakes, the kinds of finding that name them, and the call that is named.
pub(crate) const MISTAKES: [(&str, &[&str], &str); 10] = [
    ("order", &["other_order", "other_operation"], "broadcast"),
    ("count", &["other_size"], "all_reduce"),
    ("type", &["other_type"], "all_reduce"),
    ("root", &["other_root"], "broadcast"),
    ("missing call", &["missing_call"], "all_reduce"),
    ("extra call", &["extra_call"], "all_reduce"),
    ("other communicator", &["circular_wait"], "all_reduce"),
    ("group against none", &["circular_wait", "missing_call"], "all_reduce"),
    ("message", &["other_message", "unmatched_message"], "recv"),
    ("dead rank", &["missing_rank"], "all_reduce"),
];

/// Compares the recordings in a folder. Returns the report if its first finding does not name the rank and the call.
pub(crate) fn unnamed(folder: &Path, kinds: &[&str], call: &str) -> Option<Value> {
    let mut diff = Command::new(env!("CARGO_BIN_EXE_nccl"));
    let output = diff.args(["recorder", "diff", "--json"]).arg(folder).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let finding = &report["findings"][0];
    let is_named = kinds.contains(&finding["kind"].as_str().unwrap_or_default())
        && finding["ranks"].as_array().is_some_and(|ranks| ranks.contains(&FAULTY.into()))
        && finding.to_string().contains(call);
    (!is_named).then_some(report)
}
