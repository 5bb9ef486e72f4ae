//! The ranks of this process's communicators, and what they did, at one moment.

use std::collections::{BTreeMap, BTreeSet};

use crate::bootstrap::unique_id::fnv1a;
use crate::coll::function::Function;
use crate::shm::process::Process;
use crate::shm::shared_state::SharedState;

/// The collectives that NCCL counts, in its order: the others are made of sends and receives.
pub(super) const COUNTED: [(&str, Function); 5] = [
    ("Broadcast", Function::named("broadcast")),
    ("Reduce", Function::named("reduce")),
    ("AllGather", Function::named("all_gather")),
    ("ReduceScatter", Function::named("reduce_scatter")),
    ("AllReduce", Function::ALL_REDUCE),
];

/// NCCL gives the address of the interface that it bootstraps by. All ranks are on this host.
pub(super) const HOST: &str = "127.0.0.1";

/// The communicators, by their hashes.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) communicators: Vec<Communicator>,
}

#[derive(Debug)]
pub(super) struct Communicator {
    pub(super) hash: u64,
    /// The identity and the process id of its first rank.
    pub(super) secondary_hash: [u64; 2],
    pub(super) ranks: Vec<Rank>,
}

#[derive(Debug)]
pub(super) struct Rank {
    pub(super) rank: usize,
    pub(super) process: Process,
    /// -1 if it has not recorded it.
    pub(super) device: i64,
    pub(super) presence: Presence,
    /// The number of launched collectives, in the order of [`COUNTED`].
    pub(super) launched: [u64; COUNTED.len()],
}

/// The processes, with the devices of their ranks and their conditions.
pub(super) type Processes = BTreeMap<Process, (BTreeSet<i64>, Condition)>;

/// The answer of a rank, had it been asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// It has the communicator.
    Member {
        has_aborted: bool,
        /// Another rank's end is its error.
        has_error: bool,
    },
    /// It has it no more.
    Left,
    /// Its process is stopped.
    Stopped,
    /// Its process has ended, or executed another program.
    Dead,
}

/// The condition of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Runs,
    Stopped,
    Ended,
}

impl Condition {
    fn new(process: Process) -> Self {
        if process.pid == u64::from(std::process::id()) {
            Self::Runs
        } else if process.ended() {
            Self::Ended
        } else if process.is_stopped() {
            Self::Stopped
        } else {
            Self::Runs
        }
    }
}

impl Job {
    /// Collects what this process knows.
    pub(super) fn collect() -> Self {
        let mut conditions = BTreeMap::new();
        let states = SharedState::registered();
        // If all ranks have left, nobody has it any more but a call that is about to return.
        let living = states.iter().filter(|state| (0..state.ranks()).any(|rank| !state.has_departed(rank)));
        let mut communicators: Vec<Communicator> =
            living.map(|state| Communicator::new(state, &mut conditions)).collect();
        communicators.sort_by_key(|communicator| (communicator.hash, communicator.secondary_hash));
        Self { communicators }
    }

    /// Returns the processes but those whose ranks have all left.
    pub(super) fn processes(&self) -> Processes {
        let mut processes = Processes::new();
        for rank in self.communicators.iter().flat_map(|communicator| &communicator.ranks) {
            let condition = match rank.presence {
                Presence::Member { .. } => Condition::Runs,
                Presence::Stopped => Condition::Stopped,
                Presence::Dead => Condition::Ended,
                Presence::Left => continue,
            };
            let (devices, _) = processes.entry(rank.process).or_insert_with(|| (BTreeSet::new(), condition));
            devices.insert(rank.device);
        }
        processes
    }
}

impl Communicator {
    fn new(state: &SharedState, conditions: &mut BTreeMap<Process, Condition>) -> Self {
        // A number that tells nothing of the secret.
        let hash = fnv1a(&[b"RAS", &state.nonce()]);
        let first = state.process(0);
        Self {
            hash: (hash >> 64) as u64 ^ hash as u64,
            secondary_hash: [first.identity, first.pid],
            ranks: (0..state.ranks()).map(|rank| Rank::new(state, rank, conditions)).collect(),
        }
    }

    /// Returns the ranks that have answered.
    pub(super) fn members(&self) -> impl Iterator<Item = &Rank> {
        self.ranks.iter().filter(|rank| rank.is_member())
    }

    /// Returns the others.
    pub(super) fn missing(&self) -> impl Iterator<Item = &Rank> {
        self.ranks.iter().filter(|rank| !rank.is_member())
    }
}

impl Rank {
    fn new(state: &SharedState, rank: usize, conditions: &mut BTreeMap<Process, Condition>) -> Self {
        let process = state.process(rank);
        let condition = *conditions.entry(process).or_insert_with(|| Condition::new(process));
        let has_executed_another = || condition == Condition::Runs && state.has_executed_another(rank);
        let ended_by = state.ended_by();
        let presence = if state.has_departed(rank) {
            if ended_by == Some(rank) && condition == Condition::Runs {
                Presence::Member { has_aborted: true, has_error: false }
            } else {
                Presence::Left
            }
        } else {
            match condition {
                Condition::Ended => Presence::Dead,
                Condition::Runs if has_executed_another() => Presence::Dead,
                Condition::Stopped => Presence::Stopped,
                Condition::Runs => {
                    let has_aborted = ended_by == Some(rank);
                    Presence::Member { has_aborted, has_error: !has_aborted && state.check_abort().is_err() }
                }
            }
        };
        // NCCL runs the collectives of a single rank without launching anything.
        let all = if state.ranks() > 1 { state.launched(rank) } else { Default::default() };
        let launched = COUNTED.map(|(_, function)| all[usize::from(function.number())]);
        let device = state.device(rank).and_then(|device| i64::try_from(device).ok()).unwrap_or(-1);
        Self { rank, process, device, presence, launched }
    }

    pub(super) fn is_member(&self) -> bool {
        matches!(self.presence, Presence::Member { .. })
    }

    pub(super) fn has_aborted(&self) -> bool {
        matches!(self.presence, Presence::Member { has_aborted: true, .. })
    }

    pub(super) fn has_error(&self) -> bool {
        matches!(self.presence, Presence::Member { has_error: true, .. })
    }
}
