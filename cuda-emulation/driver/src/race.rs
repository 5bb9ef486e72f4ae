//! Races: two accesses to the same bytes, one of them a write, that nothing orders.
//!
//! Order is known, as a vector clock, when an operation begins. Its accesses are then compared with those of all
//! operations that have begun before it: the pair is a race if the earlier one is not in the clock of the later one,
//! even if it ended long ago.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::iter;
use std::ops::Range;
use std::sync::Arc;

use cuda_common::finding::Finding;
use cuda_common::stack::Stack;

use crate::allocation::{Allocation, Part};
use crate::clock::{Clock, Component};
use crate::handle::StreamId;
use crate::history::{History, Kept, Past};
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
    /// The memory that is mapped behind the allocation, as far as the bytes go on there.
    following: Vec<Arc<Allocation>>,
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
        let (allocation, following) = (Arc::clone(&part.allocation), part.following.clone());
        Self { allocation, bytes, writes, is_known_to_peers: !writes, following }
    }

    /// Creates a write that a peer is told about.
    pub(crate) fn put(part: &Part, length: usize) -> Self {
        Self { is_known_to_peers: true, ..Self::new(part, length, true) }
    }

    /// The allocations, which have to live as long as the operation.
    pub(crate) fn allocations(&self) -> impl Iterator<Item = &Arc<Allocation>> {
        iter::once(&self.allocation).chain(&self.following)
    }

    /// Returns whether it is a write.
    pub(crate) fn writes(&self) -> bool {
        self.writes
    }

    /// Makes an access of each allocation: the same memory may be mapped elsewhere too, beside other memory.
    fn split(mut self) -> impl Iterator<Item = Self> {
        let following = std::mem::take(&mut self.following);
        let first = self.allocation.address;
        let others = following.into_iter().map(|allocation| {
            let bytes = self.bytes.from((allocation.address - first) as usize);
            let access = |bytes| Self { allocation: Arc::clone(&allocation), bytes, ..self.clone() };
            bytes.map(access)
        });
        let others: Vec<_> = others.flatten().collect();
        iter::once(self).chain(others)
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

    /// The bytes from an offset on, which is where the result counts from: the rest of a row, and the rows behind it.
    fn from(&self, offset: usize) -> [Self; 2] {
        let row = self.first_row_behind(offset).min(self.rows.height);
        let is_cut = row < self.rows.height && self.row(row).start < offset;
        let rest = if is_cut { self.row(row).end - offset } else { 0 };
        let whole = row + usize::from(is_cut);
        let rows = Rows { width: self.rows.width, height: self.rows.height - whole };
        let start = (self.start + self.pitch * whole).saturating_sub(offset);
        [
            Self { start: 0, rows: Rows { width: rest, height: 1 }, pitch: rest },
            Self { start, rows, pitch: self.pitch },
        ]
    }

    /// The first row that ends behind an offset; it may be behind the last.
    fn first_row_behind(&self, offset: usize) -> usize {
        match offset.checked_sub(self.start + self.rows.width) {
            Some(distance) => distance.checked_div(self.pitch).map_or(0, |rows| rows + 1),
            None => 0,
        }
    }

    /// Returns whether one of the rows has one of the bytes.
    fn touches(&self, bytes: &Range<usize>) -> bool {
        let row = self.first_row_behind(bytes.start);
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
    /// The functions of the label.
    functions: Cow<'static, str>,
    call: u64,
    stack: Option<Arc<Stack>>,
    /// The bytes that it uses.
    pub(crate) bytes: Bytes,
    writes: bool,
}

/// The properties that races have in common that are reported once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// Its kind.
    pub(crate) finding: Finding,
    /// The functions of the sides, in either order of the calls.
    functions: [Cow<'static, str>; 2],
    memory: &'static str,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { functions: [one, two], memory, .. } = self;
        write!(f, "of {one} and {two} in {memory}")
    }
}

/// Returns the functions of a label: each once, without arguments and the numbers of ranks and calls.
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
    // Of a long group, the label has the number of the others.
    let named = outside.split(" + ").filter(|name| !name.ends_with(" more"));
    named.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" + ")
}

impl Side {
    fn conflicts_with(&self, other: &Self) -> bool {
        (self.writes || other.writes) && self.bytes.overlaps(&other.bytes)
    }

    /// Returns whether whatever conflicts with another access conflicts with this one.
    fn outdoes(&self, other: &Self) -> bool {
        (self.writes || !other.writes) && self.bytes.covers(&other.bytes)
    }

    /// Returns whether both are accesses of the same functions and kind.
    fn is_like(&self, other: &Self) -> bool {
        self.functions == other.functions && self.writes == other.writes
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, label, call, bytes, writes, .. } = self;
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
    /// True if it is the first one of its place.
    pub(crate) is_new: bool,
}

impl Race {
    fn new(allocation: &Arc<Allocation>, one: &Side, two: &Side) -> Self {
        let mut sides = [one.clone(), two.clone()];
        sides.sort_by_key(|side| side.call);
        Self { allocation: Arc::clone(allocation), sides, is_new: false }
    }

    fn place(&self) -> Place {
        let mut functions = self.sides.each_ref().map(|side| side.functions.clone());
        functions.sort();
        Place { finding: self.finding(), functions, memory: self.allocation.kind.memory() }
    }

    /// Its kind.
    pub(crate) fn finding(&self) -> Finding {
        // Of the host's own calls, those that free memory are looked at.
        let frees = |side: &Side| side.stream.is_none() || side.label == "cuMemFreeAsync";
        if self.sides.iter().any(frees) { Finding::FreeUnderWork } else { Finding::Race }
    }

    /// The stack of each side.
    pub(crate) fn stacks(&self) -> [Vec<String>; 2] {
        self.sides.each_ref().map(|side| side.stack.as_ref().map(|stack| stack.frames()).unwrap_or_default())
    }

    /// The streams of the operations.
    pub(crate) fn streams(&self) -> impl Iterator<Item = StreamId> {
        self.sides.iter().filter_map(|side| side.stream)
    }
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "race in {}; nothing orders", self.allocation.description())?;
        writeln!(f, "    {}", self.sides[0])?;
        writeln!(f, "    {}", self.sides[1])
    }
}

/// An operation that has not begun.
#[derive(Debug)]
struct Queued {
    position: Position,
    label: Cow<'static, str>,
    functions: Cow<'static, str>,
    call: u64,
    stack: Option<Arc<Stack>>,
    accesses: Vec<Access>,
}

impl Queued {
    fn past(&self, access: &Access) -> Past {
        let Self { position, label, functions, call, stack, .. } = self;
        let side = Side {
            stream: Some(position.stream),
            label: label.clone(),
            functions: functions.clone(),
            call: *call,
            stack: stack.clone(),
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
    /// The number of operations that were found in races, by the place of these, of which the first is reported.
    found: BTreeMap<Place, u64>,
}

impl Detector {
    /// The number of accesses that stay, of those of one function to the same bytes that are in races with each other. They are
    /// reported; any number of them would be compared with all that follow.
    const ALIKE: usize = 16;

    /// Adds an operation that is enqueued: the number of the call, the function that was called, its stack, and
    /// its accesses.
    pub(crate) fn enqueue(
        &mut self,
        position: Position,
        call: u64,
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
        self.queued.insert(position.id, Queued { position, label, functions, call, stack, accesses });
    }

    /// Notes that an operation begins, after those in `clock`; returns its races with those that have begun.
    ///
    /// What the host knows comes before all operations that are not enqueued yet.
    pub(crate) fn begin(&mut self, operation: OperationId, clock: &Clock, host: &Clock) -> Vec<Race> {
        // The host knew least when the oldest of them was enqueued: perhaps this one, each access of which is compared.
        let known = self.queued.first_key_value().map(|(_, queued)| Arc::clone(&queued.position.host));
        let known = known.as_deref().unwrap_or(host);
        let Some(begun) = self.queued.remove(&operation) else { return Vec::new() };
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
        stack: Option<Arc<Stack>>,
        access: &Access,
    ) -> Vec<Race> {
        let Access { allocation, bytes, writes, .. } = access;
        let label = Cow::Borrowed(function);
        let functions = label.clone();
        let side = Side { stream: None, label, functions, call, stack, bytes: *bytes, writes: *writes };
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

    /// Notes the races of an operation, of which those are new whose place is.
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

    /// Returns the places of more than one operation, and how many there were after the one that was reported.
    pub(crate) fn repeated(&self) -> impl Iterator<Item = (&Place, u64)> {
        self.found.iter().filter(|&(_, &found)| found > 1).map(|(place, found)| (place, found - 1))
    }
}
