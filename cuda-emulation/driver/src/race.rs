//! Races: two accesses to the same bytes, at least one of them a write, that are not ordered.
//!
//! When an operation begins, its vector clock is known. Its accesses are then compared with the accesses of all operations that
//! began before it. A pair is a race if the clock of the later operation does not include the earlier operation, even if that
//! operation ended long ago.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::access::{Access, Call, History, Kept, Past, Side};
use crate::allocation::Allocation;
use crate::handle::StreamId;
use crate::scheduler::{Clock, OperationId, Position};
use cuda_common::finding::Finding;
use cuda_common::stack::Stack;

/// The common properties of races that are reported only once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) finding: Finding,
    /// The two functions, sorted.
    functions: [Cow<'static, str>; 2],
    memory: &'static str,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { functions: [one, two], memory, .. } = self;
        write!(f, "of {one} and {two} in {memory}")
    }
}

/// Returns the functions of a label, each once, without arguments or numbers of ranks and calls.
fn functions(label: &str) -> String {
    let mut depth = 0_usize;
    let mut outside = String::new();
    for character in label.chars() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => break,
            other if depth == 0 => outside.push(other),
            _ => {}
        }
    }
    // The label of a long group ends with the number of the other functions.
    let named = outside.split(" + ").filter(|name| !name.ends_with(" more"));
    named.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" + ")
}

#[derive(Clone)]
pub(crate) struct Race {
    allocation: Arc<Allocation>,
    sides: [Side; 2],
    pub(crate) is_new: bool,
}

impl Race {
    fn new(allocation: &Arc<Allocation>, one: &Side, two: &Side) -> Self {
        let mut sides = [one.clone(), two.clone()];
        sides.sort_by_key(|side| side.call.number);
        Self { allocation: Arc::clone(allocation), sides, is_new: false }
    }

    fn place(&self) -> Place {
        let mut functions = self.sides.each_ref().map(|side| side.call.functions.clone());
        functions.sort();
        Place { finding: self.finding(), functions, memory: self.allocation.kind.memory() }
    }

    pub(crate) fn finding(&self) -> Finding {
        // The only host calls that are checked free memory.
        let frees = |side: &Side| side.call.stream.is_none() || side.call.label == "cuMemFreeAsync";
        if self.sides.iter().any(frees) { Finding::FreeUnderWork } else { Finding::Race }
    }

    pub(crate) fn stacks(&self) -> [Vec<String>; 2] {
        let stacks = self.sides.each_ref().map(|side| side.call.stack.as_ref());
        stacks.map(|stack| stack.map(|stack| stack.frames()).unwrap_or_default())
    }

    pub(crate) fn streams(&self) -> impl Iterator<Item = StreamId> {
        self.sides.iter().filter_map(|side| side.call.stream)
    }
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "race in {}: nothing orders these calls", self.allocation.description())?;
        writeln!(f, "    {}", self.sides[0])?;
        writeln!(f, "    {}", self.sides[1])
    }
}

struct Queued {
    position: Position,
    call: Arc<Call>,
    accesses: Vec<Access>,
}

impl Queued {
    fn side(&self, access: &Access) -> Side {
        Side { call: Arc::clone(&self.call), bytes: access.bytes, writes: access.writes }
    }
}

#[derive(Default)]
pub(crate) struct Detector {
    history: HashMap<u64, History>,
    /// The components whose steps can still be in a race.
    pub(crate) kept: Kept,
    queued: BTreeMap<OperationId, Queued>,
    /// For each place, the number of operations with races. The first race is reported.
    found: BTreeMap<Place, u64>,
}

impl Detector {
    /// The maximum number of similar racing accesses that are kept for comparison. They are reported already, and each of them
    /// slows down all later comparisons.
    const ALIKE: usize = 16;

    pub(crate) fn enqueue(
        &mut self,
        position: Position,
        number: u64,
        label: Cow<'static, str>,
        stack: Option<Arc<Stack>>,
        accesses: Vec<Access>,
    ) {
        let parts = accesses.into_iter().flat_map(Access::split);
        let accesses = parts.filter(|access| !access.bytes.is_empty()).collect::<Vec<_>>();
        if accesses.is_empty() {
            return;
        }
        for access in &accesses {
            self.history.entry(access.allocation.id).or_default().queued.insert(position.id);
        }
        let functions = match &label {
            Cow::Borrowed(function) => Cow::Borrowed(*function),
            Cow::Owned(label) => Cow::Owned(functions(label)),
        };
        let call = Arc::new(Call { stream: Some(position.stream), label, functions, number, stack });
        self.queued.insert(position.id, Queued { position, call, accesses });
    }

    /// Returns the races of an operation with the operations that began before it.
    ///
    /// `clock` is the work before the operation; `host` is the work before all operations that are not enqueued yet.
    pub(crate) fn begin(&mut self, operation: OperationId, clock: &Clock, host: &Clock) -> Vec<Race> {
        // The host had waited for least when the oldest queued operation, possibly this one, was enqueued. What it had waited for
        // precedes all operations that are still compared.
        let known = self.queued.first_key_value().map(|(_, queued)| Arc::clone(&queued.position.host));
        let known = known.as_deref().unwrap_or(host);
        let Some(begun) = self.queued.remove(&operation) else { return Vec::new() };
        let mut races = Vec::new();
        for access in &begun.accesses {
            let allocation = &access.allocation;
            let side = begun.side(access);
            let history = self.history.entry(allocation.id).or_default();
            let mut alike = 0;
            history.retain_touching(side.bytes.range(), &mut self.kept, |past| {
                let is_before = clock.includes(past.step);
                if !is_before && past.operation != operation && past.side.conflicts_with(&side) {
                    races.push(Race::new(allocation, &past.side, &side));
                    alike += usize::from(side.is_like(&past.side) && side.outdoes(&past.side));
                    return alike <= Self::ALIKE && !known.includes(past.step);
                }
                // What is not ordered with a replaced access is not ordered with this one either.
                let is_replaced = is_before && side.outdoes(&past.side);
                !is_replaced && !known.includes(past.step)
            });
            let Position { step, first_step, .. } = begun.position;
            let step = if access.is_known_to_peers { first_step } else { step };
            history.add(Past { operation, step, side }, &mut self.kept, known);
            history.queued.remove(&operation);
        }
        begun.accesses.iter().for_each(|access| self.drop_freed(access.allocation.id));
        self.note(races)
    }

    /// Returns the races between a host call and operations that the host has not waited for.
    pub(crate) fn check_host(
        &mut self,
        host: &Clock,
        function: &'static str,
        number: u64,
        stack: Option<Arc<Stack>>,
        access: &Access,
    ) -> Vec<Race> {
        let Access { allocation, bytes, writes, .. } = access;
        let (label, functions) = (Cow::Borrowed(function), Cow::Borrowed(function));
        let call = Arc::new(Call { stream: None, label, functions, number, stack });
        let side = Side { call, bytes: *bytes, writes: *writes };
        let Some(history) = self.history.get(&allocation.id) else { return Vec::new() };
        let begun = history.touching(bytes.range());
        let unknown = begun.filter(|(_, past)| !host.includes(past.step)).map(|(_, past)| past.side.clone());
        let queued = history.queued.iter().filter_map(|operation| self.queued.get(operation));
        let queued = queued.flat_map(|queued| {
            let accesses = queued.accesses.iter().filter(|access| access.allocation.id == allocation.id);
            accesses.map(|access| queued.side(access))
        });
        let conflicts = unknown.chain(queued).filter(|other| other.conflicts_with(&side));
        let races = conflicts.map(|other| Race::new(allocation, &other, &side)).collect();
        self.note(races)
    }

    /// Records that an allocation is freed, so that no further operation on it is enqueued.
    pub(crate) fn forget(&mut self, allocation: u64) {
        if let Some(history) = self.history.get_mut(&allocation) {
            history.is_freed = true;
        }
        self.drop_freed(allocation);
    }

    fn drop_freed(&mut self, allocation: u64) {
        let is_over = |history: &&mut History| history.is_freed && history.queued.is_empty();
        if let Some(history) = self.history.get_mut(&allocation).filter(is_over) {
            history.retain_touching(0..usize::MAX, &mut self.kept, |_| false);
            self.history.remove(&allocation);
        }
    }

    fn note(&mut self, mut races: Vec<Race>) -> Vec<Race> {
        let mut places = BTreeSet::new();
        for race in &mut races {
            let place = race.place();
            if !places.contains(&place) {
                let found = self.found.entry(place.clone()).or_default();
                *found += 1;
                race.is_new = *found == 1;
                places.insert(place);
            }
        }
        races
    }

    /// Returns the places at which several operations had races, with the number of operations after the reported one.
    pub(crate) fn repeated(&self) -> impl Iterator<Item = (&Place, u64)> {
        self.found.iter().filter(|&(_, &found)| found > 1).map(|(place, found)| (place, found - 1))
    }
}
