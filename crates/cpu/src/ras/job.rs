//! A snapshot of this process's communicators: their ranks, and how many collectives each has launched.

use std::collections::{BTreeMap, BTreeSet};

use crate::bootstrap::unique_id::fnv1a;
use crate::coll::function::Function;
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

/// All ranks are on this host. NCCL reports the address of its bootstrap interface.
pub(super) const HOST: &str = "127.0.0.1";

#[derive(Debug)]
pub(super) struct Communicator {
    pub(super) hash: u64,
    /// The identity and the process id of the first rank.
    pub(super) secondary_hash: [u64; 2],
    pub(super) ranks: Vec<Rank>,
}

#[derive(Debug)]
pub(super) struct Rank {
    pub(super) rank: usize,
    pub(super) process: Process,
    /// -1 if the rank has not recorded it.
    pub(super) device: i64,
    pub(super) state: State,
    /// The number of launched collectives, in the order of [`COUNTED`].
    pub(super) launched: [u64; COUNTED.len()],
}

/// The state of a rank or a process. A process is never `Failed`, `Aborted` or `Left`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Running,
    /// The rank's error is another rank's death or abort.
    Failed,
    Aborted,
    /// The rank has destroyed its communicator.
    Left,
    /// The process is stopped.
    Stopped,
    /// The process has ended, or executed another program.
    Dead,
}

/// The processes with communicators, their devices and states.
pub(super) type Processes = BTreeMap<Process, (BTreeSet<i64>, State)>;

/// Collects this process's communicators, ordered by hash.
pub(super) fn communicators() -> Vec<Communicator> {
    let mut processes = BTreeMap::new();
    let states = SharedState::registered();
    // If all ranks have left, the communicator is about to be freed.
    let living = states.iter().filter(|state| (0..state.ranks()).any(|rank| !state.has_departed(rank)));
    let mut communicators: Vec<_> = living.map(|state| Communicator::new(state, &mut processes)).collect();
    communicators.sort_by_key(|communicator| (communicator.hash, communicator.secondary_hash));
    communicators
}

/// Returns the processes that have not left all communicators.
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
        // Does not reveal the secret.
        let hash = fnv1a(&[b"RAS", &state.nonce()]);
        let first = state.process(0);
        Self {
            hash: (hash >> 64) as u64 ^ hash as u64,
            secondary_hash: [first.identity, first.pid],
            ranks: (0..state.ranks()).map(|rank| Rank::new(state, rank, processes)).collect(),
        }
    }

    /// Returns the ranks that have the communicator.
    pub(super) fn members(&self) -> impl Iterator<Item = &Rank> {
        self.ranks.iter().filter(|rank| rank.is_member())
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
