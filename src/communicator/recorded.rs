use super::shared::Shared;
use crate::recorder::{Entry, Ring};
use crate::{Error, Operation};

/// The record of an operation that has entered NCCL, if operations were recorded then.
#[derive(Clone, Copy)]
pub(crate) struct Recorded<'c>(Option<&'c Ring>);

impl<'c> Recorded<'c> {
    /// Records an operation; `place` has its bits for a group.
    #[inline(always)]
    pub(super) fn new(shared: &'c Shared, entry: &Entry, place: u64) -> Self {
        let ring = shared.ring();
        if let Some(ring) = ring {
            ring.push(entry.call | place, entry.elements, entry.stream, entry.site);
        }
        Self(ring)
    }

    /// Records that it has failed or, if it is in a group, all of the group.
    pub(crate) fn fail(self) {
        self.0.into_iter().for_each(Ring::fail);
    }

    /// Takes it back, as it was refused before NCCL was called.
    pub(crate) fn withdraw(self, operation: &Operation) {
        self.0.into_iter().for_each(|ring| ring.withdraw(operation.is_message()));
    }

    /// Records an error: that of a call of NCCL, or of one that was refused before.
    pub(crate) fn end_with(self, operation: &Operation, error: &Error) {
        if error.code().is_some() { self.fail() } else { self.withdraw(operation) }
    }
}
