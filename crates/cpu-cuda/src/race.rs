//! Races: two accesses to the same bytes, one of them a write, that nothing orders.
//!
//! Order is decided when an operation is enqueued, by vector clocks. Operations with peers can order streams in ways
//! that clocks do not show: a rank that receives comes after what the sender did before it sent. Where such an order is
//! possible, two accesses are a race only if they are seen at the same time.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::allocation::{Allocation, Part};
use crate::clock::Clock;
use crate::handle::StreamId;
use crate::operation::{Rows, Work};
use crate::scheduler::{OperationId, Position, Scheduler};

/// Memory that an operation uses.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    allocation: Arc<Allocation>,
    bytes: Bytes,
    writes: bool,
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
        Self { allocation: Arc::clone(&part.allocation), bytes, writes }
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

/// An operation that was enqueued.
#[derive(Debug)]
pub(crate) struct Operation {
    /// Its place in the order.
    pub(crate) position: Position,
    /// The function that was called.
    pub(crate) label: Cow<'static, str>,
    /// The number of the call.
    pub(crate) call: u64,
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

/// An access that an operation made or will make.
#[derive(Debug)]
struct Past {
    id: OperationId,
    stream: StreamId,
    number: u64,
    before: Arc<Clock>,
    peers: Arc<Clock>,
    side: Side,
}

/// Two operations that are a race if they run at the same time.
#[derive(Debug)]
struct Undecided {
    operations: [OperationId; 2],
    race: Race,
}

/// The memory of accesses in which races are found.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    /// For each allocation, the accesses that later ones may not be ordered with.
    history: HashMap<u64, Vec<Past>>,
    undecided: Vec<Undecided>,
    running: HashSet<OperationId>,
    /// Reported pairs of functions and streams.
    reported: HashSet<[(Cow<'static, str>, Option<StreamId>); 2]>,
}

impl Detector {
    /// Adds the accesses of an operation; returns the races with earlier ones.
    pub(crate) fn check(
        &mut self,
        order: &Scheduler<Work>,
        operation: &Operation,
        accesses: &[Access],
    ) -> Vec<Race> {
        let Operation { position, label, call } = operation;
        let mut found = Vec::new();
        for access in accesses.iter().filter(|access| !access.bytes.is_empty()) {
            let Access { allocation, bytes, writes } = access;
            let side = Side {
                stream: Some(position.stream),
                label: label.clone(),
                call: *call,
                bytes: *bytes,
                writes: *writes,
            };
            let fresh = Past {
                id: position.id,
                stream: position.stream,
                number: position.number,
                before: Arc::clone(&position.before),
                peers: Arc::clone(&position.peers),
                side,
            };
            let history = self.history.entry(allocation.id).or_default();
            history.retain(|past| !order.is_known_to_host(past.stream, past.number));
            let conflicts = history.iter().filter(|past| fresh.conflicts_with(past));
            for past in conflicts.filter(|past| !fresh.is_after(past)) {
                let race =
                    Race { memory: allocation.description(), sides: [past.side.clone(), fresh.side.clone()] };
                if past.could_precede(&fresh, order) || fresh.could_have_preceded(past, order) {
                    self.undecided.push(Undecided { operations: [past.id, fresh.id], race });
                } else {
                    found.push(race);
                }
            }
            // Whatever is not ordered with an access that this one replaces is not ordered with this one either.
            history.retain(|past| !fresh.replaces(past));
            history.push(fresh);
        }
        self.new_ones(found)
    }

    /// Returns the races of an access that the host itself makes with operations of which it does not know the end.
    pub(crate) fn check_host(
        &mut self,
        order: &Scheduler<Work>,
        function: &'static str,
        call: u64,
        access: &Access,
    ) -> Vec<Race> {
        let Access { allocation, bytes, writes } = access;
        let side =
            Side { stream: None, label: Cow::Borrowed(function), call, bytes: *bytes, writes: *writes };
        let history = self.history.get(&allocation.id).map_or(&[][..], Vec::as_slice);
        let unknown = history.iter().filter(|past| {
            !order.is_known_to_host(past.stream, past.number) && !order.may_be_known(past.stream, past.number)
        });
        let races = unknown
            .map(|past| Race { memory: allocation.description(), sides: [past.side.clone(), side.clone()] })
            .collect();
        self.new_ones(races)
    }

    /// Notes that an operation has begun; returns the race with one that runs, if there is one.
    pub(crate) fn begin(&mut self, operation: OperationId) -> Option<Race> {
        self.running.insert(operation);
        let (undecided, running) = (&self.undecided, &self.running);
        let found = undecided
            .iter()
            .filter(|pair| pair.operations.contains(&operation))
            .find(|pair| pair.operations.iter().all(|operation| running.contains(operation)))
            .map(|pair| pair.race.clone());
        self.new_ones(found.into_iter().collect()).pop()
    }

    /// Notes that an operation is complete.
    pub(crate) fn end(&mut self, operation: OperationId) {
        self.running.remove(&operation);
        self.undecided.retain(|pair| !pair.operations.contains(&operation));
    }

    /// Forgets an allocation.
    pub(crate) fn forget(&mut self, allocation: u64) {
        self.history.remove(&allocation);
    }

    fn new_ones(&mut self, races: Vec<Race>) -> Vec<Race> {
        let reported = &mut self.reported;
        let is_new = |race: &Race| {
            reported.insert(race.sides.each_ref().map(|side| (side.label.clone(), side.stream)))
        };
        races.into_iter().filter(is_new).collect()
    }
}

impl Past {
    fn conflicts_with(&self, other: &Self) -> bool {
        let (one, two) = (&self.side, &other.side);
        self.id != other.id && (one.writes || two.writes) && one.bytes.overlaps(&two.bytes)
    }

    fn is_after(&self, earlier: &Self) -> bool {
        self.before.get(earlier.stream) >= earlier.number
    }

    fn replaces(&self, earlier: &Self) -> bool {
        let (new, old) = (&self.side, &earlier.side);
        self.is_after(earlier) && (new.writes || !old.writes) && new.bytes.covers(&old.bytes)
    }

    /// Returns whether an operation with peers before `later` may wait for one that comes after this.
    fn could_precede(&self, later: &Self, order: &Scheduler<Work>) -> bool {
        let is_complete = order.has_completed(self.stream, self.number);
        later.peers.iter().any(|(stream, number)| {
            number > self.before.get(stream) && (is_complete || !order.has_completed(stream, number))
        })
    }

    /// Returns whether an operation with peers before `earlier` may still wait for one that comes after this.
    fn could_have_preceded(&self, earlier: &Self, order: &Scheduler<Work>) -> bool {
        earlier
            .peers
            .iter()
            .any(|(stream, number)| number > self.before.get(stream) && !order.has_completed(stream, number))
    }
}
