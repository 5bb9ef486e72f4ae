//! The findings that `nccl recorder diff` has to have for ranks of which the last one makes a mistake.

use std::path::Path;
use std::thread;

use serde_json::Value;

use crate::common::nccl;

pub(crate) const RANKS: usize = 3;
pub(crate) const FAULTY: usize = RANKS - 1;

/// The mistakes, the kinds of finding that name them, and the call that is named.
const MISTAKES: [(&str, &[&str], &str); 10] = [
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

/// Makes each mistake, whose recordings are written into a folder. Returns what is to be printed if it is not named.
type Make<'a> = &'a (dyn Fn(&str, &Path) -> String + Sync);

/// Makes the mistakes, some at a time. The first finding of each has to name the rank and the call.
pub(crate) fn check(make: Make<'_>) {
    // Recordings of C programs have the names of C's functions.
    let plain = |text: &str| text.to_lowercase().replace('_', "");
    let problem = |(mistake, kinds, call): &(&str, &[&str], &str)| {
        let folder = tempfile::tempdir().unwrap();
        let printed = make(mistake, folder.path());
        let output = nccl("recorder diff --json").arg(folder.path()).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let finding = &report["findings"][0];
        let is_named = kinds.contains(&finding["kind"].as_str().unwrap_or_default())
            && finding["ranks"].as_array().is_some_and(|ranks| ranks.contains(&FAULTY.into()))
            && plain(&finding.to_string()).contains(&plain(call));
        (!is_named).then(|| format!("{mistake}: {report:#}\n{printed}"))
    };
    for some in MISTAKES.chunks(5) {
        thread::scope(|scope| {
            let checks: Vec<_> = some.iter().map(|mistake| scope.spawn(|| problem(mistake))).collect();
            let problems: Vec<_> = checks.into_iter().filter_map(|check| check.join().unwrap()).collect();
            assert!(problems.is_empty(), "{}", problems.join("\n"));
        });
    }
}
