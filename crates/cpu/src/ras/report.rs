//! Reports on this process's communicators: their ranks, and how many collectives each rank has launched. The formats are JSON
//! with NCCL's fields, text with NCCL's sections, and events for monitoring clients.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use libnccl::sys::{NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH, ncclResult_t};
use serde_json::{Value, json};

use crate::coll::call::Function;
use crate::diag::debug;
use crate::shm::process::Process;
use crate::shm::shared_state::SharedState;

/// The collectives that NCCL counts, in NCCL's order. NCCL implements the others as sends and receives.
pub(super) const COUNTED: [(&str, Function); 5] = [
    ("Broadcast", Function::named("broadcast")),
    ("Reduce", Function::named("reduce")),
    ("AllGather", Function::named("all_gather")),
    ("ReduceScatter", Function::named("reduce_scatter")),
    ("AllReduce", Function::ALL_REDUCE),
];

/// The address of all ranks: they are on this host. NCCL reports the address of its bootstrap interface.
pub(super) const HOST: &str = "127.0.0.1";

pub(super) struct Communicator {
    pub(super) hash: u64,
    /// The identity and the process id of the first rank.
    pub(super) secondary_hash: [u64; 2],
    pub(super) ranks: Vec<Rank>,
}

pub(super) struct Rank {
    pub(super) rank: usize,
    pub(super) process: Process,
    /// The device, or -1 if the rank has not recorded it.
    pub(super) device: i64,
    pub(super) state: State,
    /// The number of launched collectives, in the order of [`COUNTED`].
    pub(super) launched: [u64; COUNTED.len()],
}

/// The state of a rank or a process. A process is never `Failed`, `Aborted` or `Left`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Running,
    /// The rank's process runs, but another rank's death or abort ended the communicator.
    Failed,
    Aborted,
    Left,
    Stopped,
    /// The process has ended, or executed another program.
    Dead,
}

/// The processes with communicators, their devices and states.
pub(super) type Processes = BTreeMap<Process, (BTreeSet<i64>, State)>;

pub(super) fn communicators() -> Vec<Communicator> {
    let mut processes = BTreeMap::new();
    let states = SharedState::registered();
    // The hash is set when all ranks have joined. If all have departed, the communicator is about to be freed.
    let living = states.iter().filter(|state| state.hash() != 0);
    let living = living.filter(|state| (0..state.ranks()).any(|rank| !state.has_departed(rank)));
    let mut communicators: Vec<_> = living.map(|state| Communicator::new(state, &mut processes)).collect();
    communicators.sort_by_key(|communicator| (communicator.hash, communicator.secondary_hash));
    communicators
}

/// Returns the processes that still have at least one communicator.
pub(super) fn processes(communicators: &[Communicator]) -> Processes {
    let mut processes = Processes::new();
    let ranks = communicators.iter().flat_map(|communicator| &communicator.ranks);
    for rank in ranks.filter(|rank| rank.state != State::Left) {
        let state = if rank.is_member() { State::Running } else { rank.state };
        processes.entry(rank.process).or_insert_with(|| (BTreeSet::new(), state)).0.insert(rank.device);
    }
    processes
}

impl Communicator {
    fn new(state: &SharedState, processes: &mut BTreeMap<Process, State>) -> Self {
        let first = state.process(0);
        Self {
            hash: state.hash(),
            secondary_hash: [first.identity, first.pid],
            ranks: (0..state.ranks()).map(|rank| Rank::new(state, rank, processes)).collect(),
        }
    }
}

impl Rank {
    fn new(shared: &SharedState, rank: usize, processes: &mut BTreeMap<Process, State>) -> Self {
        let process = shared.process(rank);
        let of_process = *processes.entry(process).or_insert_with(|| state_of(process));
        let has_aborted = shared.ended_by() == Some(rank);
        let state = match of_process {
            State::Running if has_aborted => State::Aborted,
            _ if shared.has_departed(rank) => State::Left,
            State::Running if shared.has_executed_another(rank) => State::Dead,
            State::Running if shared.check_abort().is_err() => State::Failed,
            other => other,
        };
        // NCCL runs the collectives of single-rank communicators without launching anything.
        let all = if shared.ranks() > 1 { shared.launched(rank) } else { Default::default() };
        let launched = COUNTED.map(|(_, function)| all[usize::from(function.number())]);
        let device = shared.device(rank).and_then(|device| i64::try_from(device).ok()).unwrap_or(-1);
        Self { rank, process, device, state, launched }
    }

    pub(super) fn is_member(&self) -> bool {
        matches!(self.state, State::Running | State::Failed | State::Aborted)
    }
}

fn state_of(process: Process) -> State {
    if process.pid == u64::from(std::process::id()) {
        State::Running
    } else if process.ended() {
        State::Dead
    } else if process.is_stopped() {
        State::Stopped
    } else {
        State::Running
    }
}

fn version() -> String {
    format!("{NCCL_MAJOR}.{NCCL_MINOR}.{NCCL_PATCH}+cpu{}", env!("CARGO_PKG_VERSION"))
}

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

/// Returns the report as text in NCCL's sections. A verbose report has a line for each rank.
pub(super) fn text(is_verbose: bool) -> String {
    let began = Instant::now();
    let communicators = communicators();
    let (mut table, mut errors) = (String::new(), String::new());
    for communicator in &communicators {
        let Communicator { hash, ranks, .. } = communicator;
        let lines_of = |states: &[State]| {
            let ranks = ranks.iter().filter(|rank| states.contains(&rank.state));
            ranks.map(describe).collect::<String>()
        };
        let mut kinds = vec![];
        for (kind, states) in
            [("INCOMPLETE", &[State::Stopped, State::Dead][..]), ("ERROR", &[State::Failed])]
        {
            let lines = lines_of(states);
            if !lines.is_empty() {
                kinds.push(kind);
                errors += &format!("{hash:016x} {kind}\n{lines}\n");
            }
        }
        let kinds = if kinds.is_empty() { "OK".into() } else { kinds.join(",") };
        let (size, missing) = (ranks.len(), ranks.iter().filter(|rank| !rank.is_member()).count());
        let has_aborted = ranks.iter().any(|rank| rank.state == State::Aborted);
        let status = if has_aborted { "ABORT" } else { "RUNNING" };
        table += &format!("{hash:016x}  {size:>8}  {missing:>8}  {status:>8}  {kinds:>6}\n");
        if is_verbose {
            table.extend(ranks.iter().map(describe));
        }
    }
    if communicators.is_empty() {
        table += "No communicator data collected!\n";
    }
    let processes = processes(&communicators);
    let devices: usize = processes.values().map(|(devices, _)| devices.len()).sum();
    let (nodes, processes) = (usize::from(!processes.is_empty()), processes.len());
    let (version, elapsed) = (version(), began.elapsed().as_secs_f64());
    format!(
        "NCCL version {version} compiled with CUDA 0.0\nCUDA runtime version -1, driver version -1\n\n\
         Job summary\n===========\n\n  Nodes  Processes     GPUs\n{nodes:>7}  {processes:>9}  {devices:>7}\n\n\
         Communicators... ({elapsed:.3}s)\n=============\n\n\
         \u{20}   Communicator     Ranks   Missing    Status  Errors\n{table}\n\
         Errors\n======\n\n{errors}Warnings\n========\n\n"
    )
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
    format!("  Rank {rank} {what} -- GPU {device} managed by process {} on node {HOST}\n", process.pid)
}

/// Returns the diagnostics, which only cover how the ranks reach each other.
pub(super) fn diagnostics() -> String {
    let (pid, peers) = (std::process::id(), processes(&communicators()).len());
    let lines = [
        "=== RAS Diagnostics ===",
        "[OK]   transport: shared memory of one host",
        &format!("RAS diagnostics completed across {peers} RAS peers"),
    ];
    lines.map(|line| format!("{HOST}:{pid} NCCL DIAG {line}\n")).concat()
}

pub(super) struct Event {
    name: &'static str,
    pub(super) group: &'static str,
    pid: u64,
    devices: Vec<i64>,
}

/// Returns the events that lead from the processes `before` to the current ones. A process that has destroyed its
/// communicators is not an event.
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
