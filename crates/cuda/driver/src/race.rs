//! Races: two accesses to the same bytes, one of them a write, that nothing orders.
//!
//! Order is known, as a vector clock, when an operation begins. Its accesses are then compared with those of all
//! operations that have begun before it: the pair is a race if the earlier one is not in the clock of the later one,
//! even if it ended long ago.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::allocation::{Allocation, Part};
use crate::clock::{Clock, Component};
use crate::handle::StreamId;
use crate::history::{History, Kept, Past};
use crate::operation::Rows;
use crate::scheduler::{OperationId, Position};

/// The text before the numbers of calls in a label.
const CALL: &str = ", call";

/// Memory that an operation uses.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    allocation: Arc<Allocation>,
    bytes: Bytes,
    writes: bool,
    /// True if a peer can know that the access is over before its operation ends.
    is_known_to_peers: bool,
}

impl Access {
    /// Creates an access to the bytes of a part.
    pub(crate) fn new(part: &Part, length: usize, writes: bool) -> Self {
        Self::of_rows(part, Rows { width: length, height: 1 }, length, writes)
    }

    /// Creates an access to rows that begin at a part.
    pub(crate) fn of_rows(part: &Part, rows: Rows, pitch: usize, writes: bool) -> Self {
        let is_dense = rows.width == pitch;
        let rows = if is_dense { Rows { width: rows.width * rows.height, height: 1 } } else { rows };
        let bytes = Bytes { start: part.offset, rows, pitch };
        // Peers have what an operation reads.
        Self { allocation: Arc::clone(&part.allocation), bytes, writes, is_known_to_peers: !writes }
    }

    /// Creates a write that a peer is told about.
    pub(crate) fn put(part: &Part, length: usize) -> Self {
        Self { is_known_to_peers: true, ..Self::new(part, length, true) }
    }

    /// The allocation, which has to live as long as the operation.
    pub(crate) fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }
}

/// Bytes of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes {
    start: usize,
    rows: Rows,
    pitch: usize,
}

impl Bytes {
    fn is_empty(&self) -> bool {
        self.rows.width == 0 || self.rows.height == 0
    }

    /// The bytes from the first to the last.
    pub(crate) fn range(&self) -> Range<usize> {
        let last = self.start + self.pitch * self.rows.height.saturating_sub(1);
        self.start..last + self.rows.width
    }

    fn row(&self, row: usize) -> Range<usize> {
        let start = self.start + self.pitch * row;
        start..start + self.rows.width
    }

    /// Returns whether one of the rows has one of the bytes.
    fn touches(&self, bytes: &Range<usize>) -> bool {
        // The first row that ends behind the first of the bytes.
        let row = match bytes.start.checked_sub(self.start + self.rows.width) {
            Some(distance) => distance.checked_div(self.pitch).map_or(0, |rows| rows + 1),
            None => 0,
        };
        row < self.rows.height && self.row(row).start < bytes.end && bytes.start < self.row(row).end
    }

    fn overlaps(&self, other: &Self) -> bool {
        let (one, two) = (self.range(), other.range());
        one.start < two.end
            && two.start < one.end
            && (0..self.rows.height).any(|row| other.touches(&self.row(row)))
    }

    fn covers(&self, other: &Self) -> bool {
        let (own, others) = (self.range(), other.range());
        self == other || self.rows.height == 1 && own.start <= others.start && others.end <= own.end
    }
}

/// One side of a race.
#[derive(Debug, Clone)]
pub(crate) struct Side {
    /// The stream, or nothing if the host itself did it.
    stream: Option<StreamId>,
    label: Cow<'static, str>,
    call: u64,
    /// The bytes that it uses.
    pub(crate) bytes: Bytes,
    writes: bool,
}

/// A function, without the numbers of its calls, and whether it writes.
type Place = (String, bool);

impl Side {
    fn conflicts_with(&self, other: &Self) -> bool {
        (self.writes || other.writes) && self.bytes.overlaps(&other.bytes)
    }

    /// Returns whether whatever conflicts with another access conflicts with this one.
    fn outdoes(&self, other: &Self) -> bool {
        (self.writes || !other.writes) && self.bytes.covers(&other.bytes)
    }

    /// The function, without the numbers of its calls.
    fn function(&self) -> &str {
        self.label.split_once(CALL).map_or(&self.label, |(function, _)| function)
    }

    /// Returns whether both are accesses of the same function and kind.
    fn is_like(&self, other: &Self) -> bool {
        self.function() == other.function() && self.writes == other.writes
    }

    fn place(&self) -> Place {
        (self.function().to_owned(), self.writes)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, label, call, bytes, writes } = self;
        let verb = if *writes { "writes" } else { "reads" };
        write!(f, "call {call}, {label}")?;
        match stream {
            Some(stream) => write!(f, " on stream {:#x}", stream.0)?,
            None => write!(f, " by the host")?,
        }
        let range = bytes.range();
        write!(f, ", {verb} bytes {} to {}", range.start, range.end)?;
        match bytes.rows {
            Rows { height: 1, .. } => Ok(()),
            Rows { width, height } => write!(f, " ({height} rows of {width})"),
        }
    }
}

/// A race.
#[derive(Debug, Clone)]
pub(crate) struct Race {
    allocation: Arc<Allocation>,
    sides: [Side; 2],
    /// True if it is the first one of its places.
    pub(crate) is_new: bool,
}

impl Race {
    fn new(allocation: &Arc<Allocation>, one: &Side, two: &Side) -> Self {
        let mut sides = [one.clone(), two.clone()];
        sides.sort_by_key(|side| side.call);
        Self { allocation: Arc::clone(allocation), sides, is_new: false }
    }

    /// The places of its sides, in either order of the calls.
    fn places(&self) -> [Place; 2] {
        let mut places = self.sides.each_ref().map(Side::place);
        places.sort();
        places
    }

    /// The streams of the operations.
    pub(crate) fn streams(&self) -> impl Iterator<Item = StreamId> {
        self.sides.iter().filter_map(|side| side.stream)
    }
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "libnccl: race in {}; nothing orders", self.allocation.description())?;
        writeln!(f, "    {}", self.sides[0])?;
        writeln!(f, "    {}", self.sides[1])
    }
}

/// An operation that has not begun.
#[derive(Debug)]
struct Queued {
    position: Position,
    label: Cow<'static, str>,
    call: u64,
    accesses: Vec<Access>,
}

impl Queued {
    fn past(&self, access: &Access) -> Past {
        let Self { position, label, call, .. } = self;
        let side = Side {
            stream: Some(position.stream),
            label: label.clone(),
            call: *call,
            bytes: access.bytes,
            writes: access.writes,
        };
        let step = if access.is_known_to_peers { position.first_step } else { position.step };
        Past { operation: position.id, step, side }
    }
}

/// The memory of accesses in which races are found.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    /// For each allocation, the accesses to it.
    history: HashMap<u64, History>,
    kept: Kept,
    queued: BTreeMap<OperationId, Queued>,
    /// The places whose races were reported.
    reported: BTreeSet<[Place; 2]>,
    /// The number of further operations in races of these places alone.
    pub(crate) repeated: u64,
}

impl Detector {
    /// The number of accesses that stay, of those of one function to the same bytes that are in races with each other. They are
    /// reported; any number of them would be compared with all that follow.
    const ALIKE: usize = 16;

    /// Adds an operation that is enqueued: the number of the call, the function that was called, and its accesses.
    pub(crate) fn enqueue(
        &mut self,
        position: Position,
        call: u64,
        label: Cow<'static, str>,
        mut accesses: Vec<Access>,
    ) {
        accesses.retain(|access| !access.bytes.is_empty());
        if accesses.is_empty() {
            return;
        }
        for access in &accesses {
            self.history.entry(access.allocation.id).or_default().queued.insert(position.id);
        }
        self.queued.insert(position.id, Queued { position, label, call, accesses });
    }

    /// Notes that an operation begins, after those in `clock`; returns its races with those that have begun.
    ///
    /// What the host knows comes before all operations that are not enqueued yet.
    pub(crate) fn begin(&mut self, operation: OperationId, clock: &Clock, host: &Clock) -> Vec<Race> {
        let Some(begun) = self.queued.remove(&operation) else { return Vec::new() };
        // The host knew least when the oldest of the others was enqueued.
        let known = self.queued.first_key_value().map_or(host, |(_, queued)| &queued.position.host);
        let mut races = Vec::new();
        for access in &begun.accesses {
            let allocation = &access.allocation;
            let fresh = begun.past(access);
            let side = &fresh.side;
            let history = self.history.entry(allocation.id).or_default();
            let mut alike = 0;
            history.retain_touching(&side.bytes.range(), &mut self.kept, |past| {
                let is_before = clock.includes(past.step);
                if !is_before && past.operation != operation && past.side.conflicts_with(side) {
                    races.push(Race::new(allocation, &past.side, side));
                    alike += usize::from(side.is_like(&past.side) && side.outdoes(&past.side));
                    return alike <= Self::ALIKE && !known.includes(past.step);
                }
                // Whatever is not ordered with an access that this one replaces is not ordered with this one either.
                let is_replaced = is_before && side.outdoes(&past.side);
                !is_replaced && !known.includes(past.step)
            });
            history.add(fresh, &mut self.kept, known);
            history.queued.remove(&operation);
        }
        begun.accesses.iter().for_each(|access| self.drop_freed(access.allocation.id));
        self.note(races)
    }

    /// Returns the races of an access that the host itself makes with operations of which it does not know the end.
    pub(crate) fn check_host(
        &mut self,
        host: &Clock,
        function: &'static str,
        call: u64,
        access: &Access,
    ) -> Vec<Race> {
        let Access { allocation, bytes, writes, .. } = access;
        let label = Cow::Borrowed(function);
        let side = Side { stream: None, label, call, bytes: *bytes, writes: *writes };
        let Some(history) = self.history.get(&allocation.id) else { return Vec::new() };
        let begun = history.touching(bytes.range());
        let unknown = begun.filter(|past| !host.includes(past.step)).map(|past| past.side.clone());
        let queued = history.queued.iter().filter_map(|operation| self.queued.get(operation));
        let queued = queued.flat_map(|queued| {
            let accesses = queued.accesses.iter().filter(|access| access.allocation.id == allocation.id);
            accesses.map(|access| queued.past(access).side)
        });
        let conflicts = unknown.chain(queued).filter(|other| other.conflicts_with(&side));
        let races = conflicts.map(|other| Race::new(allocation, &other, &side)).collect();
        self.note(races)
    }

    /// Notes that an allocation is freed: no operation with it is enqueued any more.
    pub(crate) fn forget(&mut self, allocation: u64) {
        if let Some(history) = self.history.get_mut(&allocation) {
            history.is_freed = true;
        }
        self.drop_freed(allocation);
    }

    /// Returns whether an operation can still be in a race with a step of a component that has begun.
    pub(crate) fn has(&self, component: Component) -> bool {
        self.kept.has(component)
    }

    fn drop_freed(&mut self, allocation: u64) {
        let is_over = |history: &&mut History| history.is_freed && history.queued.is_empty();
        if let Some(history) = self.history.get_mut(&allocation).filter(is_over) {
            history.clear(&mut self.kept);
            self.history.remove(&allocation);
        }
    }

    /// Notes the races of an operation: which of them are new, and whether others are like those of before.
    fn note(&mut self, mut races: Vec<Race>) -> Vec<Race> {
        for race in &mut races {
            race.is_new = self.reported.insert(race.places());
        }
        self.repeated += u64::from(!races.is_empty() && !races.iter().any(|race| race.is_new));
        races
    }
}
