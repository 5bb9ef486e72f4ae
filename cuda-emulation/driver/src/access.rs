//! Memory accesses of operations, and the history of accesses with which later accesses are compared.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::iter;
use std::ops::Range;
use std::sync::Arc;

use crate::allocation::{Allocation, Part};
use crate::handle::StreamId;
use crate::operation::Rows;
use crate::scheduler::{Clock, Component, OperationId, Step};
use cuda_common::stack::Stack;

#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) allocation: Arc<Allocation>,
    pub(crate) bytes: Bytes,
    pub(crate) writes: bool,
    /// Set if peers can observe that the access is over before its operation ends.
    pub(crate) is_known_to_peers: bool,
    /// Mappings directly behind the allocation into which the bytes extend.
    following: Vec<Arc<Allocation>>,
}

impl Access {
    pub(crate) fn new(part: &Part, length: usize, writes: bool) -> Self {
        Self::of_rows(part, Rows { width: length, height: 1 }, length, writes)
    }

    pub(crate) fn whole(allocation: &Arc<Allocation>) -> Self {
        Self::new(&Part::of(allocation, 0), allocation.length, true)
    }

    pub(crate) fn of_rows(part: &Part, rows: Rows, pitch: usize, writes: bool) -> Self {
        let is_dense = rows.width == pitch;
        let rows = if is_dense { Rows { width: rows.width * rows.height, height: 1 } } else { rows };
        let bytes = Bytes { start: part.offset, rows, pitch };
        let (allocation, following) = (Arc::clone(&part.allocation), part.following.clone());
        // Peers receive what an operation reads.
        Self { allocation, bytes, writes, is_known_to_peers: !writes, following }
    }

    /// Returns a write of which a peer is notified.
    pub(crate) fn put(part: &Part, length: usize) -> Self {
        Self { is_known_to_peers: true, ..Self::new(part, length, true) }
    }

    pub(crate) fn allocations(&self) -> impl Iterator<Item = &Arc<Allocation>> {
        iter::once(&self.allocation).chain(&self.following)
    }

    /// Splits the access by allocation, because each allocation has its own history.
    pub(crate) fn split(mut self) -> impl Iterator<Item = Self> {
        let following = std::mem::take(&mut self.following);
        let first = self.allocation.address;
        let others = following.into_iter().flat_map(|allocation| {
            let bytes = self.bytes.from((allocation.address - first) as usize);
            bytes.map(|bytes| Self { allocation: Arc::clone(&allocation), bytes, ..self.clone() })
        });
        let others: Vec<_> = others.collect();
        iter::once(self).chain(others)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes {
    start: usize,
    rows: Rows,
    pitch: usize,
}

impl Bytes {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.width == 0 || self.rows.height == 0
    }

    /// Returns the range from the first byte to the last.
    pub(crate) fn range(&self) -> Range<usize> {
        let last = self.start + self.pitch * self.rows.height.saturating_sub(1);
        self.start..last + self.rows.width
    }

    fn row(&self, row: usize) -> Range<usize> {
        let start = self.start + self.pitch * row;
        start..start + self.rows.width
    }

    /// Returns the bytes from `offset` on, relative to `offset`: the rest of a row, and the following rows.
    fn from(&self, offset: usize) -> [Self; 2] {
        let row = self.first_row_behind(offset).min(self.rows.height);
        let is_cut = row < self.rows.height && self.row(row).start < offset;
        let rest = if is_cut { self.row(row).end - offset } else { 0 };
        let whole = row + usize::from(is_cut);
        let rows = Rows { width: self.rows.width, height: self.rows.height - whole };
        let start = (self.start + self.pitch * whole).saturating_sub(offset);
        let rest = Self { start: 0, rows: Rows { width: rest, height: 1 }, pitch: rest };
        [rest, Self { start, rows, pitch: self.pitch }]
    }

    /// Returns the first row that ends behind `offset`, possibly past the last row.
    fn first_row_behind(&self, offset: usize) -> usize {
        match offset.checked_sub(self.start + self.rows.width) {
            Some(distance) => distance.checked_div(self.pitch).map_or(0, |rows| rows + 1),
            None => 0,
        }
    }

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

pub(crate) struct Call {
    /// The stream, or `None` if the host itself accesses the memory.
    pub(crate) stream: Option<StreamId>,
    pub(crate) label: Cow<'static, str>,
    pub(crate) functions: Cow<'static, str>,
    pub(crate) number: u64,
    pub(crate) stack: Option<Arc<Stack>>,
}

#[derive(Clone)]
pub(crate) struct Side {
    pub(crate) call: Arc<Call>,
    pub(crate) bytes: Bytes,
    pub(crate) writes: bool,
}

impl Side {
    pub(crate) fn conflicts_with(&self, other: &Self) -> bool {
        (self.writes || other.writes) && self.bytes.overlaps(&other.bytes)
    }

    /// Returns whether every access that conflicts with `other` also conflicts with this access.
    pub(crate) fn outdoes(&self, other: &Self) -> bool {
        (self.writes || !other.writes) && self.bytes.covers(&other.bytes)
    }

    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.call.functions == other.call.functions && self.writes == other.writes
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, bytes, writes } = self;
        let verb = if *writes { "writes" } else { "reads" };
        write!(f, "call {}, {}", call.number, call.label)?;
        match call.stream {
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

/// An access of an operation that has begun.
pub(crate) struct Past {
    pub(crate) operation: OperationId,
    /// Operations that are ordered after this step are ordered after the access.
    pub(crate) step: Step,
    pub(crate) side: Side,
}

#[derive(Debug, Default)]
pub(crate) struct Kept(Vec<usize>);

impl Kept {
    pub(crate) fn has(&self, component: Component) -> bool {
        self.0.get(component.0).is_some_and(|&number| number > 0)
    }

    fn add(&mut self, component: Component) {
        if self.0.len() <= component.0 {
            self.0.resize(component.0 + 1, 0);
        }
        self.0[component.0] += 1;
    }
}

/// The accesses to an allocation, found by their bytes.
#[derive(Default)]
pub(crate) struct History {
    /// The accesses by the base-2 logarithm of the extent, then by first byte and a unique number. Accesses of similar extent
    /// that overlap some bytes begin near these bytes.
    begun: BTreeMap<u32, BTreeMap<(usize, u64), Past>>,
    last: u64,
    length: usize,
    /// The length at which to drop accesses that the host has waited for.
    sweep_at: usize,
    pub(crate) queued: BTreeSet<OperationId>,
    pub(crate) is_freed: bool,
}

impl History {
    /// Returns the accesses that overlap `bytes`, with the keys of the accesses.
    pub(crate) fn touching(&self, bytes: Range<usize>) -> impl Iterator<Item = ((u32, (usize, u64)), &Past)> {
        let start = bytes.start;
        let near = self.begun.iter().flat_map(move |(&power, accesses)| {
            accesses.range(near(power, &bytes)).map(move |(&key, past)| ((power, key), past))
        });
        near.filter(move |(_, past)| past.side.bytes.range().end > start)
    }

    /// Drops the accesses that overlap `bytes`, except those for which `is_kept` returns `true`.
    pub(crate) fn retain_touching(
        &mut self,
        bytes: Range<usize>,
        kept: &mut Kept,
        mut is_kept: impl FnMut(&Past) -> bool,
    ) {
        let dropped = self.touching(bytes).filter(|(_, past)| !is_kept(past));
        for (power, key) in dropped.map(|(key, _)| key).collect::<Vec<_>>() {
            if let Some(past) = self.begun.get_mut(&power).and_then(|accesses| accesses.remove(&key)) {
                kept.0[past.step.component.0] -= 1;
                self.length -= 1;
            }
        }
    }

    /// Adds an access. Occasionally drops the accesses that the host has waited for.
    pub(crate) fn add(&mut self, past: Past, kept: &mut Kept, known: &Clock) {
        if self.length >= self.sweep_at {
            self.retain_touching(0..usize::MAX, kept, |past| !known.includes(past.step));
            // So rarely that the sweeps take no longer than the additions.
            const FEW: usize = 32;
            self.sweep_at = FEW.max(2 * self.length);
        }
        let bytes = past.side.bytes.range();
        kept.add(past.step.component);
        self.last += 1;
        self.length += 1;
        let accesses = self.begun.entry(bytes.len().ilog2()).or_default();
        accesses.insert((bytes.start, self.last), past);
    }
}

/// Returns the keys of accesses with this extent that can overlap `bytes`.
fn near(power: u32, bytes: &Range<usize>) -> Range<(usize, u64)> {
    // All bits set: the greatest number with this power.
    let longest = usize::MAX >> (usize::BITS - 1 - power);
    (bytes.start.saturating_sub(longest - 1), 0)..(bytes.end, 0)
}
