//! The reports on a job: in JSON with NCCL's fields, as text with NCCL's sections, and the events of a monitor.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Instant;

use libnccl::sys::{NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH, ncclResult_t};
use serde_json::{Value, json};

use super::job::{COUNTED, Communicator, HOST, Processes, Rank, State, communicators, processes};
use crate::diag::debug;

/// Ranks that the sections of a text list. A verbose text lists all ranks in the table.
const MAX_LISTED: usize = 10;

fn version() -> String {
    format!("{NCCL_MAJOR}.{NCCL_MINOR}.{NCCL_PATCH}+cpu{}", env!("CARGO_PKG_VERSION"))
}

/// Returns the report in JSON.
pub(super) fn json() -> String {
    let began = Instant::now();
    let communicators: Vec<Value> = communicators().iter().map(communicator).collect();
    let report = json!({
        "nccl_version": version(),
        "cuda_runtime_version": -1,
        "cuda_driver_version": -1,
        "timestamp": debug::now(),
        "communicators_count": communicators.len(),
        "communicators": communicators,
        "ras": { "collection_time_sec": began.elapsed().as_secs_f64(), "timeouts_count": 0 },
    });
    format!("{report:#}\n")
}

fn communicator(communicator: &Communicator) -> Value {
    let (members, missing): (Vec<_>, Vec<_>) = communicator.ranks.iter().partition(|rank| rank.is_member());
    let ranks: Vec<Value> = members.into_iter().map(member).collect();
    let missing: Vec<Value> = missing.into_iter().map(missing_rank).collect();
    let [identity, pid] = communicator.secondary_hash;
    json!({
        "hash": format!("{:#x}", communicator.hash),
        "secondary_hash": format!("{identity:#x}:{pid:#x}"),
        "size": communicator.ranks.len(),
        "ranks_count": ranks.len(),
        "missing_ranks_count": missing.len(),
        "ranks": ranks,
        "missing_ranks": missing,
    })
}

fn identity(rank: &Rank) -> Value {
    let Rank { rank, process, device, .. } = rank;
    json!({ "rank": rank, "host": HOST, "pid": process.pid, "cuda_dev": device, "nvml_dev": device })
}

fn member(rank: &Rank) -> Value {
    let has_failed = rank.state == State::Failed;
    let error = if has_failed { ncclResult_t::ncclRemoteError } else { ncclResult_t::ncclSuccess };
    let mut value = identity(rank);
    value["status"] = json!({
        "init_state": 0,
        "async_error": error.0,
        "finalize_called": false,
        "destroy_flag": false,
        "abort_flag": rank.state == State::Aborted,
    });
    for ((name, _), launched) in COUNTED.iter().zip(rank.launched) {
        value["collective_counts"][name] = launched.into();
    }
    value
}

fn missing_rank(rank: &Rank) -> Value {
    let mut value = identity(rank);
    value["status"] = json!({
        "unresponsive": rank.state != State::Left,
        "considered_dead": rank.state == State::Dead,
    });
    value
}

/// Returns the report as text.
pub(super) fn text(is_verbose: bool) -> String {
    let began = Instant::now();
    let communicators = communicators();
    let processes = processes(&communicators);
    let devices: usize = processes.values().map(|(devices, _)| devices.len()).sum();
    let mut out = format!(
        "NCCL version {} compiled with CUDA 0.0\nCUDA runtime version -1, driver version -1\n\n\
         Job summary\n===========\n\n  Nodes  Processes     GPUs\n{:>7}  {:>9}  {devices:>7}\n\n\
         Communicators... ({:.3}s)\n=============\n\n",
        version(),
        usize::from(!processes.is_empty()),
        processes.len(),
        began.elapsed().as_secs_f64()
    );
    match communicators.is_empty() {
        true => out.push_str("No communicator data collected!\n"),
        false => out.push_str("    Communicator     Ranks   Missing    Status  Errors\n"),
    }
    let described: Vec<_> = communicators.iter().map(|each| (each, errors(each), warnings(each))).collect();
    for (communicator, errors, warnings) in &described {
        let Communicator { hash, ranks, .. } = communicator;
        let missing = ranks.len() - communicator.members().count();
        let has_aborted = communicator.ranks_in(&[State::Aborted]).next().is_some();
        let status = if has_aborted { "ABORT" } else { "RUNNING" };
        let mut found: Vec<&str> = errors.iter().map(|(name, _)| *name).collect();
        if !warnings.is_empty() {
            found.push("MISMATCH");
        }
        let found = if found.is_empty() { "OK".into() } else { found.join(",") };
        write_line(
            &mut out,
            format_args!("{hash:016x}  {:>8}  {missing:>8}  {status:>8}  {found:>6}", ranks.len()),
        );
        if is_verbose {
            ranks.iter().for_each(|rank| write_line(&mut out, format_args!("  {}", describe(rank))));
        }
    }
    out.push_str("\nErrors\n======\n\n");
    for (communicator, errors, _) in &described {
        for (name, ranks) in errors {
            write_line(&mut out, format_args!("{:016x} {name}", communicator.hash));
            let listed = ranks.iter().take(MAX_LISTED);
            listed.for_each(|rank| write_line(&mut out, format_args!("  {}", describe(rank))));
            if ranks.len() > MAX_LISTED {
                write_line(&mut out, format_args!("  ... and {} more ranks", ranks.len() - MAX_LISTED));
            }
            out.push('\n');
        }
    }
    out.push_str("Warnings\n========\n\n");
    for (communicator, _, warnings) in described.iter().filter(|(_, _, warnings)| !warnings.is_empty()) {
        write_line(&mut out, format_args!("{:016x} MISMATCH\n{warnings}", communicator.hash));
    }
    out
}

fn write_line(out: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{line}");
}

/// Returns the kinds of errors of a communicator, each with the ranks that have it.
fn errors(communicator: &Communicator) -> Vec<(&'static str, Vec<&Rank>)> {
    let kinds = [("INCOMPLETE", &[State::Stopped, State::Dead][..]), ("ERROR", &[State::Failed])];
    let found = kinds.map(|(name, states)| (name, communicator.ranks_in(states).collect::<Vec<_>>()));
    found.into_iter().filter(|(_, ranks)| !ranks.is_empty()).collect()
}

/// Returns the differences between the ranks of a communicator, a line for each.
fn warnings(communicator: &Communicator) -> String {
    let mut out = String::new();
    let left: Vec<usize> = communicator.ranks_in(&[State::Left]).map(|rank| rank.rank).collect();
    if !left.is_empty() {
        write_line(&mut out, format_args!("  Destroyed by {}", list(&left)));
    }
    for (index, (function, _)) in COUNTED.iter().enumerate() {
        let mut ranks_by_count: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for rank in communicator.members() {
            ranks_by_count.entry(rank.launched[index]).or_default().push(rank.rank);
        }
        if ranks_by_count.len() > 1 {
            for (count, ranks) in ranks_by_count {
                let ranks = list(&ranks);
                write_line(&mut out, format_args!("  {count} {function} launched by {ranks}"));
            }
        }
    }
    out
}

fn list(ranks: &[usize]) -> String {
    match ranks {
        [rank] => format!("rank {rank}"),
        _ if ranks.len() <= MAX_LISTED => {
            let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
            format!("ranks {}", ranks.join(","))
        }
        _ => format!("{} ranks", ranks.len()),
    }
}

fn describe(rank: &Rank) -> String {
    let Rank { rank, process, device, state, .. } = rank;
    let what = match state {
        State::Running => "runs",
        State::Failed => "reported Remote process error",
        State::Aborted => "has aborted",
        State::Left => "has destroyed its communicator",
        State::Stopped => "does not respond: its process is stopped",
        State::Dead => "is dead: its process has ended",
    };
    format!("Rank {rank} {what} -- GPU {device} managed by process {} on node {HOST}", process.pid)
}

/// Returns the diagnostics: there is nothing to diagnose except how the ranks reach each other.
pub(super) fn diagnostics() -> String {
    let peers = processes(&communicators()).len();
    let lines = [
        "=== RAS Diagnostics ===",
        "[INFO] GPU inventory: none, this is the CPU backend",
        "[OK]   transport: shared memory of one host",
        &format!("RAS diagnostics completed across {peers} RAS peers"),
    ];
    let pid = std::process::id();
    lines.map(|line| format!("{HOST}:{pid} NCCL DIAG {line}\n")).concat()
}

/// The change of a process that a monitor reports.
#[derive(Debug)]
pub(super) struct Event {
    name: &'static str,
    group: &'static str,
    pid: u64,
    devices: Vec<i64>,
}

/// Returns the events that make `before` what the processes are now. Processes that have left are not an event.
pub(super) fn events(before: &Processes, now: &Processes) -> Vec<Event> {
    let mut events = Vec::new();
    for (process, (devices, state)) in now {
        let mut push = |name, group| {
            let devices = devices.iter().copied().collect();
            events.push(Event { name, group, pid: process.pid, devices });
        };
        let earlier = before.get(process).map(|(_, state)| *state);
        if earlier.is_none() {
            push("PEER_NEW", "LIFECYCLE");
        }
        match (earlier.unwrap_or(State::Running), *state) {
            (State::Stopped, State::Running) => push("PEER_RECOVERED", "TRACE"),
            (State::Running, State::Stopped) => push("PEER_UNRESPONSIVE", "TRACE"),
            (State::Running | State::Stopped, State::Dead) => push("PEER_DEAD", "LIFECYCLE"),
            _ => {}
        }
    }
    events
}

impl Event {
    pub(super) fn group(&self) -> &'static str {
        self.group
    }

    pub(super) fn format(&self, is_json: bool) -> String {
        let Self { name, group, pid, devices } = self;
        if !is_json {
            let devices: Vec<String> = devices.iter().map(i64::to_string).collect();
            let (time, devices) = (debug::now(), devices.join(","));
            return format!("[{time}] {name}: Process {pid} on node {HOST} managing GPU {devices}\n");
        }
        let peer = json!({ "host": HOST, "pid": pid, "cuda_devs": devices, "nvml_devs": devices });
        let event = json!({
            "timestamp": debug::now(), "group": group, "event": name, "peer": peer, "details": ""
        });
        format!("{event:#}\n")
    }
}
