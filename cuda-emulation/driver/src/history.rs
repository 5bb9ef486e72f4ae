//! The history of an allocation: the accesses to it that later ones are compared with, found by their bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::clock::{Clock, Component, Step};
use crate::race::Side;
use crate::scheduler::OperationId;

/// An access of an operation that has begun.
#[derive(Debug)]
pub(crate) struct Past {
    /// The operation.
    pub(crate) operation: OperationId,
    /// The step that later operations come after, if they come after the access.
    pub(crate) step: Step,
    /// Its side of a report.
    pub(crate) side: Side,
}

/// The number of accesses of each component that later ones are compared with.
#[derive(Debug, Default)]
pub(crate) struct Kept(Vec<usize>);

impl Kept {
    /// Returns whether there are any of a component.
    pub(crate) fn has(&self, component: Component) -> bool {
        self.0.get(component.0).is_some_and(|&number| number > 0)
    }

    fn add(&mut self, component: Component) {
        if self.0.len() <= component.0 {
            self.0.resize(component.0 + 1, 0);
        }
        self.0[component.0] += 1;
    }

    fn remove(&mut self, component: Component) {
        self.0[component.0] -= 1;
    }
}

/// The accesses to an allocation.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The accesses with which an operation that will begin can be in a race: by the power of two of their extent, and then by their
    /// first byte, with a number that makes the key unique. Of those of about the same extent, the ones that touch some bytes
    /// begin near them.
    begun: BTreeMap<u32, BTreeMap<(usize, u64), Past>>,
    last: u64,
    /// The number of accesses in `begun`.
    length: usize,
    /// The length from which on it is worth while to look for accesses that the host knows to be over.
    sweep_at: usize,
    /// The operations with accesses that have not begun.
    pub(crate) queued: BTreeSet<OperationId>,
    /// True if no more operations are enqueued.
    pub(crate) is_freed: bool,
}

impl History {
    /// Returns the accesses to some of the bytes.
    pub(crate) fn touching(&self, bytes: Range<usize>) -> impl Iterator<Item = &Past> {
        let start = bytes.start;
        let near = self.begun.iter().flat_map(move |(&power, accesses)| accesses.range(near(power, &bytes)));
        near.map(|(_, past)| past).filter(move |past| past.side.bytes.range().end > start)
    }

    /// Keeps those of the accesses to some of the bytes that are to be kept.
    pub(crate) fn retain_touching(
        &mut self,
        bytes: &Range<usize>,
        kept: &mut Kept,
        mut is_kept: impl FnMut(&Past) -> bool,
    ) {
        let mut dropped = Vec::new();
        for (&power, accesses) in &self.begun {
            let near = accesses.range(near(power, bytes));
            let touching = near.filter(|(_, past)| past.side.bytes.range().end > bytes.start);
            dropped.extend(touching.filter(|(_, past)| !is_kept(past)).map(|(&key, _)| (power, key)));
        }
        for (power, key) in dropped {
            if let Some(past) = self.begun.get_mut(&power).and_then(|accesses| accesses.remove(&key)) {
                kept.remove(past.step.component);
                self.length -= 1;
            }
        }
    }

    /// Adds an access. From time to time, those that the host knows to be over are dropped.
    pub(crate) fn add(&mut self, past: Past, kept: &mut Kept, known: &Clock) {
        if self.length >= self.sweep_at {
            self.retain_touching(&(0..usize::MAX), kept, |past| !known.includes(past.step));
            // So often that the sweeps take no longer than the additions.
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

    /// Drops all accesses.
    pub(crate) fn clear(&mut self, kept: &mut Kept) {
        self.retain_touching(&(0..usize::MAX), kept, |_| false);
    }
}

/// The first bytes, and numbers, of accesses whose extent has this power of two and that can touch some bytes.
fn near(power: u32, bytes: &Range<usize>) -> Range<(usize, u64)> {
    // All bits set: the greatest number with this power.
    let longest = usize::MAX >> (usize::BITS - 1 - power);
    (bytes.start.saturating_sub(longest - 1), 0)..(bytes.end, 0)
}
