//! Races: two accesses to the same bytes, one of them a write, that nothing orders.
//!
//! Order is known, as a vector clock, when an operation begins. Its accesses are then compared with those of all
//! operations that have begun before it: the pair is a race if the earlier one is not in the clock of the later one,
//! even if it ended long ago.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::allocation::{Allocation, Part};
use crate::clock::{Clock, Step};
use crate::handle::StreamId;
use crate::operation::Rows;
use crate::scheduler::{OperationId, Position};

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Bytes {
    start: usize,
    rows: Rows,
    pitch: usize,
}

impl Bytes {
    fn is_empty(&self) -> bool {
        self.rows.width == 0 || self.rows.height == 0
    }

    /// The bytes from the first to the last.
    fn range(&self) -> Range<usize> {
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
        let (own, other) = (self.range(), other.range());
        self.rows.height == 1 && own.start <= other.start && other.end <= own.end
    }
}

/// One side of a race.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Side {
    /// The stream, or nothing if the host itself did it.
    stream: Option<StreamId>,
    label: Cow<'static, str>,
    call: u64,
    bytes: Bytes,
    writes: bool,
}

impl Side {
    fn conflicts_with(&self, other: &Self) -> bool {
        (self.writes || other.writes) && self.bytes.overlaps(&other.bytes)
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
    memory: String,
    sides: [Side; 2],
}

impl Race {
    fn new(allocation: &Allocation, one: &Side, two: &Side) -> Self {
        let mut sides = [one.clone(), two.clone()];
        sides.sort_by_key(|side| side.call);
        Self { memory: allocation.description(), sides }
    }

    /// The streams of the operations.
    pub(crate) fn streams(&self) -> impl Iterator<Item = StreamId> {
        self.sides.iter().filter_map(|side| side.stream)
    }
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "libnccl: race in {}; nothing orders", self.memory)?;
        writeln!(f, "    {}", self.sides[0])?;
        writeln!(f, "    {}", self.sides[1])
    }
}

/// An access of an operation that has begun.
#[derive(Debug)]
struct Past {
    operation: OperationId,
    step: Step,
    side: Side,
}

impl Past {
    /// Returns whether the access, of an operation after those in `clock`, comes after an earlier one and covers it.
    fn replaces(&self, earlier: &Self, clock: &Clock) -> bool {
        let (new, old) = (&self.side, &earlier.side);
        clock.includes(earlier.step) && (new.writes || !old.writes) && new.bytes.covers(&old.bytes)
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

/// The accesses to an allocation.
#[derive(Debug, Default)]
struct History {
    /// The accesses with which an operation that will begin can be in a race.
    begun: Vec<Past>,
    /// The number of accesses of operations that have not begun.
    queued: usize,
    is_freed: bool,
}

/// The memory of accesses in which races are found.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    /// For each allocation, the accesses to it.
    history: HashMap<u64, History>,
    queued: BTreeMap<OperationId, Queued>,
    /// Reported pairs of functions and streams.
    reported: HashSet<[(Cow<'static, str>, Option<StreamId>); 2]>,
}

impl Detector {
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
            self.history.entry(access.allocation.id).or_default().queued += 1;
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
            let history = self.history.entry(allocation.id).or_default();
            let unordered = |past: &&Past| !clock.includes(past.step) && past.operation != operation;
            let conflicts = history.begun.iter().filter(|past| past.side.conflicts_with(&fresh.side));
            races.extend(
                conflicts.filter(unordered).map(|past| Race::new(allocation, &past.side, &fresh.side)),
            );
            // Whatever is not ordered with an access that this one replaces is not ordered with this one either.
            history.begun.retain(|past| !known.includes(past.step) && !fresh.replaces(past, clock));
            history.begun.push(fresh);
            history.queued -= 1;
        }
        begun.accesses.iter().for_each(|access| self.drop_freed(access.allocation.id));
        self.new_ones(races)
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
        let begun = self.history.get(&allocation.id).map_or(&[][..], |history| &history.begun);
        let unknown = begun.iter().filter(|past| !host.includes(past.step)).map(|past| past.side.clone());
        let queued = self.queued.values().flat_map(|queued| {
            let accesses = queued.accesses.iter().filter(|access| access.allocation.id == allocation.id);
            accesses.map(|access| queued.past(access).side)
        });
        let conflicts = unknown.chain(queued).filter(|other| other.conflicts_with(&side));
        let races = conflicts.map(|other| Race::new(allocation, &other, &side)).collect();
        self.new_ones(races)
    }

    /// Notes that an allocation is freed: no operation with it is enqueued any more.
    pub(crate) fn forget(&mut self, allocation: u64) {
        if let Some(history) = self.history.get_mut(&allocation) {
            history.is_freed = true;
        }
        self.drop_freed(allocation);
    }

    fn drop_freed(&mut self, allocation: u64) {
        if self.history.get(&allocation).is_some_and(|history| history.is_freed && history.queued == 0) {
            self.history.remove(&allocation);
        }
    }

    fn new_ones(&mut self, races: Vec<Race>) -> Vec<Race> {
        let reported = &mut self.reported;
        let is_new = |race: &Race| {
            reported.insert(race.sides.each_ref().map(|side| (side.label.clone(), side.stream)))
        };
        races.into_iter().filter(is_new).collect()
    }
}
