//! The report as text, in NCCL's words.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use super::job::{COUNTED, Communicator, Condition, HOST, Job, Presence, Rank};
use crate::shm::process::Process;

/// The states of a rank, the least first: a communicator has that of its highest rank.
const STATES: [&str; 3] = ["NOCOMM", "RUNNING", "ABORT"];

/// A communicator, and what the table shows of it: its size, state and errors.
struct Row<'a> {
    communicator: &'a Communicator,
    state: usize,
    is_incomplete: bool,
    has_errors: bool,
    is_mismatched: bool,
}

/// Returns the report. A verbose one lists more of the ranks that differ.
pub(super) fn report(job: &Job, version: &str, is_verbose: bool, elapsed: Duration) -> String {
    let mut out = format!(
        "NCCL version {version} compiled with CUDA 0.0\nCUDA runtime version -1, driver version -1\n\n"
    );
    write_summary(&mut out, job);
    let _ = write!(out, "\nCommunicators... ({:.3}s)\n=============\n\n", elapsed.as_secs_f64());
    let groups = groups(job);
    write_table(&mut out, &groups);
    out.push_str("\nErrors\n======\n\n");
    write_processes(&mut out, job, is_verbose);
    for (group, index, row) in numbered(&groups) {
        write_errors(
            &mut out,
            &format!("#{group}-{index} ({:016x})", row.communicator.hash),
            row,
            is_verbose,
        );
    }
    out.push_str("Warnings\n========\n\n");
    for (group, index, row) in numbered(&groups) {
        if row.is_mismatched {
            let _ = writeln!(out, "#{group}-{index} ({:016x}) MISMATCH", row.communicator.hash);
            write_mismatch(&mut out, row.communicator, is_verbose);
        }
    }
    out
}

fn write_summary(out: &mut String, job: &Job) {
    let processes = job.processes();
    let devices = || processes.iter().map(|(_, (devices, _))| devices.len());
    let total: usize = devices().sum();
    let count = processes.len();
    let sizes = frequencies(devices().map(|devices| devices as u64).collect());
    let nodes = usize::from(count > 0);
    out.push_str("Job summary\n===========\n\n");
    let _ = if let [(devices, _)] = sizes[..] {
        writeln!(
            out,
            "  Nodes  Processes         GPUs  Processes     GPUs\n(total)   per node  per process    (total)  (total)\n\
             {nodes:>7}  {count:>9}  {devices:>11}  {count:>9}  {total:>7}"
        )
    } else {
        let sizes: String = sizes
            .iter()
            .map(|(devices, processes)| format!("         {processes:>9}  {devices:>11}\n"))
            .collect();
        writeln!(
            out,
            "  Nodes  Processes\n          per node\n{nodes:>7}  {count:>9}\n\n         Processes         GPUs\n                    \
             per process\n{sizes}\n  Nodes  Processes         GPUs\n(total)    (total)      (total)\n\
             {nodes:>7}  {count:>9}  {total:>11}"
        )
    };
}

impl<'a> Row<'a> {
    fn new(communicator: &'a Communicator) -> Self {
        let states = || communicator.ranks.iter().filter_map(state);
        let mut launched = communicator.members().map(|rank| rank.launched);
        let first = launched.next();
        Self {
            communicator,
            state: states().max().unwrap_or(0),
            is_incomplete: communicator.ranks.iter().any(is_unresponsive),
            has_errors: communicator.members().any(Rank::has_error),
            is_mismatched: states().min() != states().max()
                || launched.any(|launched| Some(launched) != first),
        }
    }

    /// Returns what the communicators of a group have in common, by which groups are sorted.
    fn key(&self) -> (usize, usize, [bool; 3]) {
        let errors = [self.is_incomplete, self.has_errors, self.is_mismatched];
        (self.communicator.ranks.len(), self.state, errors)
    }

    fn errors(&self) -> String {
        let errors = [
            (self.is_incomplete, "INCOMPLETE"),
            (self.has_errors, "ERROR"),
            (self.is_mismatched, "MISMATCH"),
        ];
        let named: Vec<&str> = errors.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect();
        if named.is_empty() { "OK".into() } else { named.join(",") }
    }
}

/// Returns the state of a rank that has answered, by its place in [`STATES`].
fn state(rank: &Rank) -> Option<usize> {
    match rank.presence {
        Presence::Left => Some(0),
        Presence::Member { has_aborted, .. } => Some(1 + usize::from(has_aborted)),
        Presence::Stopped | Presence::Dead => None,
    }
}

fn is_unresponsive(rank: &Rank) -> bool {
    matches!(rank.presence, Presence::Stopped | Presence::Dead)
}

/// Returns the groups of like communicators, the largest first.
fn groups(job: &Job) -> Vec<Vec<Row<'_>>> {
    let mut groups = BTreeMap::new();
    for row in job.communicators.iter().map(Row::new) {
        groups.entry(Reverse(row.key())).or_insert_with(Vec::new).push(row);
    }
    groups.into_values().collect()
}

/// Returns the communicators with the numbers of their groups, and their own in them.
fn numbered<'a>(groups: &'a [Vec<Row<'a>>]) -> impl Iterator<Item = (usize, usize, &'a Row<'a>)> {
    let rows = groups.iter().enumerate();
    rows.flat_map(|(group, rows)| rows.iter().enumerate().map(move |(index, row)| (group, index, row)))
}

fn write_table(out: &mut String, groups: &[Vec<Row<'_>>]) {
    if groups.is_empty() {
        out.push_str("No communicator data collected!\n");
        return;
    }
    out.push_str(
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n    \
         #  in group  per comm  per node  per comm  in group\n",
    );
    for (number, rows) in groups.iter().enumerate() {
        let members = || rows.iter().map(|row| row.communicator.members().count());
        let (least, most) = (members().min().unwrap_or(0), members().max().unwrap_or(0));
        let per_node = if least == most { most.to_string() } else { format!("{least}-{most}") };
        let mut different = BTreeSet::new();
        for rank in rows.iter().flat_map(|row| row.communicator.members()) {
            different.insert((rank.process.pid, rank.device));
        }
        let _ = writeln!(
            out,
            "{number:>5}  {:>8}  {:>8}  {per_node:>8}  {:>8}  {:>8}  {:>8}  {:>6}",
            rows.len(),
            usize::from(most > 0),
            rows[0].communicator.ranks.len(),
            different.len(),
            STATES[rows[0].state],
            rows[0].errors()
        );
    }
}

/// Writes the processes that do not answer.
fn write_processes(out: &mut String, job: &Job, is_verbose: bool) {
    let all = job.processes();
    for wanted in [Condition::Stopped, Condition::Ended] {
        let found: Vec<_> = all.iter().filter(|(_, (_, condition))| *condition == wanted).collect();
        let count = found.len();
        let _ = match (wanted, count) {
            (_, 0) => continue,
            (Condition::Ended, 1) => {
                writeln!(out, "DEAD\n  1 job process is considered dead (unreachable via the RAS network)")
            }
            (Condition::Ended, _) => {
                writeln!(
                    out,
                    "DEAD\n  {count} job processes are considered dead (unreachable via the RAS network)"
                )
            }
            (_, 1) => writeln!(out, "INCOMPLETE\n  Missing communicator data from 1 job process"),
            _ => writeln!(out, "INCOMPLETE\n  Missing communicator data from {count} job processes"),
        };
        if is_outlier(count, is_verbose, all.len()) {
            for (Process { pid, .. }, (devices, _)) in found {
                let plural = if devices.len() > 1 { "s" } else { "" };
                let devices = devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
                let _ = writeln!(out, "  Process {pid} on node {HOST} managing GPU{plural} {devices}");
            }
        }
        out.push('\n');
    }
}

fn write_errors(out: &mut String, name: &str, row: &Row<'_>, is_verbose: bool) {
    let ranks = &row.communicator.ranks;
    let missing: Vec<&Rank> = ranks.iter().filter(|rank| is_unresponsive(rank)).collect();
    if row.is_incomplete {
        let plural = if missing.len() > 1 { "s" } else { "" };
        let _ = writeln!(
            out,
            "{name} INCOMPLETE\n  Missing communicator data from {} rank{plural}",
            missing.len()
        );
        if is_outlier(missing.len(), is_verbose, ranks.len()) {
            missing.iter().for_each(|rank| write_rank(out, rank, ""));
        }
        out.push('\n');
    }
    if row.has_errors {
        let failed: Vec<&Rank> = row.communicator.members().filter(|rank| rank.has_error()).collect();
        let plural = if failed.len() > 1 { "s" } else { "" };
        let _ = writeln!(out, "{name} ERROR\n  Asynchronous error{plural} on {} rank{plural}", failed.len());
        let failed: Vec<_> = failed.into_iter().map(|rank| (rank, 0)).collect();
        let many = |count, _| format!("{count} ranks reported Remote process error");
        let one = |_| " reported Remote process error".into();
        write_distribution(out, &failed, ranks.len(), is_verbose, &many, &one);
        out.push('\n');
    }
}

fn write_mismatch(out: &mut String, communicator: &Communicator, is_verbose: bool) {
    let size = communicator.ranks.len();
    let states = communicator.ranks.iter().filter_map(|rank| Some((rank, state(rank)? as u64)));
    let states: Vec<_> = states.collect();
    if states.windows(2).any(|pair| pair[0].1 != pair[1].1) {
        out.push_str("  Communicator ranks have different status\n");
        let many = |count, state| format!("{count} ranks have status {}", STATES[state as usize]);
        let one = |state| format!(" has status {}", STATES[state as usize]);
        write_distribution(out, &states, size, is_verbose, &many, &one);
    }
    for (index, (function, _)) in COUNTED.iter().enumerate() {
        let counts: Vec<_> = communicator.members().map(|rank| (rank, rank.launched[index])).collect();
        if counts.windows(2).all(|pair| pair[0].1 == pair[1].1) {
            continue;
        }
        let _ = writeln!(out, "  Communicator ranks have different {function} operation counts");
        let many = |count, launched| match launched {
            0 => format!("{count} ranks have not launched any operations"),
            _ => format!("{count} ranks have launched up to operation {launched}"),
        };
        let one = |launched| match launched {
            0 => " has not launched any operations".into(),
            _ => format!(" has launched up to operation {launched}"),
        };
        write_distribution(out, &counts, size, is_verbose, &many, &one);
        out.push('\n');
    }
}

/// Writes how many ranks have each value, the most frequent first, and the ranks that have one of the rare ones: `many`
/// and `one` describe what several ranks have, and a single one.
fn write_distribution(
    out: &mut String,
    values: &[(&Rank, u64)],
    size: usize,
    is_verbose: bool,
    many: &dyn Fn(usize, u64) -> String,
    one: &dyn Fn(u64) -> String,
) {
    for (value, count) in frequencies(values.iter().map(|(_, value)| *value).collect()) {
        if count > 1 {
            let _ = writeln!(out, "  {}", many(count, value));
        }
        if is_outlier(count, is_verbose, size) {
            let suffix = if count > 1 { String::new() } else { one(value) };
            let ranks = values.iter().filter(|(_, other)| *other == value);
            ranks.for_each(|(rank, _)| write_rank(out, rank, &suffix));
        }
    }
}

/// Returns the different values with their numbers, the most frequent first.
fn frequencies(mut values: Vec<u64>) -> Vec<(u64, usize)> {
    values.sort_unstable();
    let mut frequencies: Vec<(u64, usize)> = vec![];
    for equal in values.chunk_by(u64::eq) {
        let at = frequencies.partition_point(|(_, count)| *count >= equal.len());
        frequencies.insert(at, (equal[0], equal.len()));
    }
    frequencies
}

fn write_rank(out: &mut String, rank: &Rank, what: &str) {
    let Rank { rank, process, device, .. } = rank;
    let _ = writeln!(
        out,
        "  Rank {rank}{what} -- GPU {device} managed by process {} on node {HOST}",
        process.pid
    );
}

/// Returns `true` if so many of `total` are few enough to be listed.
fn is_outlier(count: usize, is_verbose: bool, total: usize) -> bool {
    count == 1 || if is_verbose { 2 * count < total } else { count <= 10 && 4 * count <= total }
}
