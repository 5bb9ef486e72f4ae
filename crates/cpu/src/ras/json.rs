//! The report in JSON. None of its texts has a character that would have to be escaped.

use std::fmt::Write;
use std::time::Duration;

use libnccl::sys::ncclResult_t;

use super::job::{COUNTED, Communicator, HOST, Job, Presence, Rank};

/// Returns the report, with a field on each line, as NCCL formats it.
pub(super) fn report(job: &Job, version: &str, timestamp: &str, elapsed: Duration) -> String {
    let mut out = String::new();
    let communicators: Vec<String> = job.communicators.iter().map(communicator).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{{\n  \"nccl_version\": \"{version}\",\n  \"cuda_runtime_version\": -1,\n  \"cuda_driver_version\": -1,\n  \
         \"timestamp\": \"{timestamp}\",\n  \"communicators_count\": {},\n  \"communicators\": [\n{}\n  ],\n  \
         \"ras\": {{\n    \"collection_time_sec\": {:.3},\n    \"timeouts_count\": 0\n  }}\n}}",
        communicators.len(),
        communicators.join(",\n"),
        elapsed.as_secs_f64()
    );
    out
}

fn communicator(communicator: &Communicator) -> String {
    let ranks: Vec<String> = communicator.members().map(member).collect();
    let missing: Vec<String> = communicator.missing().map(missing).collect();
    let [identity, pid] = communicator.secondary_hash;
    format!(
        "    {{\n      \"hash\": \"{:#x}\",\n      \"secondary_hash\": \"{identity:#x}:{pid:#x}\",\n      \"size\": {},\n      \
         \"ranks_count\": {},\n      \"missing_ranks_count\": {},\n      \"ranks\": [\n{}\n      ],\n      \
         \"missing_ranks\": [\n{}\n      ]\n    }}",
        communicator.hash,
        communicator.ranks.len(),
        ranks.len(),
        missing.len(),
        ranks.join(",\n"),
        missing.join(",\n")
    )
}

/// Returns the fields that all ranks have.
fn identity(rank: &Rank) -> String {
    let Rank { rank, process, device, .. } = rank;
    format!(
        "          \"rank\": {rank},\n          \"host\": \"{HOST}\",\n          \"pid\": {},\n          \
         \"cuda_dev\": {device},\n          \"nvml_dev\": {device},\n",
        process.pid
    )
}

fn member(rank: &Rank) -> String {
    let error = if rank.has_error() { ncclResult_t::ncclRemoteError } else { ncclResult_t::ncclSuccess };
    let counts = COUNTED.iter().zip(rank.launched);
    let counts: Vec<String> =
        counts.map(|((name, _), count)| format!("            \"{name}\": {count}")).collect();
    format!(
        "        {{\n{}          \"status\": {{\n            \"init_state\": 0,\n            \"async_error\": {},\n            \
         \"finalize_called\": false,\n            \"destroy_flag\": false,\n            \"abort_flag\": {}\n          }},\n          \
         \"collective_counts\": {{\n{}\n          }}\n        }}",
        identity(rank),
        error.0,
        rank.has_aborted(),
        counts.join(",\n")
    )
}

fn missing(rank: &Rank) -> String {
    format!(
        "        {{\n{}          \"status\": {{\n            \"unresponsive\": {},\n            \"considered_dead\": {}\n          \
         }}\n        }}",
        identity(rank),
        matches!(rank.presence, Presence::Stopped | Presence::Dead),
        rank.presence == Presence::Dead
    )
}
