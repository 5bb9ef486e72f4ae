//! The history of an allocation: the accesses to it that later ones are compared with, found by their bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::clock::{Clock, Component, Step};
use crate::race::Side;
use crate::scheduler::OperationId;

/// An access of an operation that has begun.
#[derive(Debug)]
pub(crate) struct Past {
    pub(crate) operation: OperationId,
    /// Operations after this step come after the access.
    pub(crate) step: Step,
    pub(crate) side: Side,
}

/// The number of recorded accesses by component.
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

    fn remove(&mut self, component: Component) {
        self.0[component.0] -= 1;
    }
}

/// The accesses to an allocation, found by their bytes.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// By the base-2 logarithm of the extent, then by first byte and a unique number. Of accesses with
    /// similar extent, the ones that overlap some bytes begin near them.
    begun: BTreeMap<u32, BTreeMap<(usize, u64), Past>>,
    last: u64,
    length: usize,
    /// The length at which to drop accesses that the host has waited for.
    sweep_at: usize,
    /// The operations with accesses that have not begun.
    pub(crate) queued: BTreeSet<OperationId>,
    pub(crate) is_freed: bool,
}

impl History {
    pub(crate) fn touching(&self, bytes: Range<usize>) -> impl Iterator<Item = &Past> {
        let start = bytes.start;
        let near = self.begun.iter().flat_map(move |(&power, accesses)| accesses.range(near(power, &bytes)));
        near.map(|(_, past)| past).filter(move |past| past.side.bytes.range().end > start)
    }

    /// Drops the accesses that overlap some bytes, except those that are to be kept.
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

    /// Adds an access. Occasionally drops the accesses that the host has waited for.
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

    pub(crate) fn clear(&mut self, kept: &mut Kept) {
        self.retain_touching(&(0..usize::MAX), kept, |_| false);
    }
}

/// The keys of accesses with this extent that can overlap some bytes.
fn near(power: u32, bytes: &Range<usize>) -> Range<(usize, u64)> {
    // All bits set: the greatest number with this power.
    let longest = usize::MAX >> (usize::BITS - 1 - power);
    (bytes.start.saturating_sub(longest - 1), 0)..(bytes.end, 0)
}
