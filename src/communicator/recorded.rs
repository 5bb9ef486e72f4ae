use super::shared::Shared;
use crate::recorder::{Entry, Method, Ring};

/// The record of an operation that has entered NCCL, if operations were recorded then.
#[derive(Clone, Copy)]
pub(crate) struct Recorded<'c>(Option<&'c Ring>);

impl<'c> Recorded<'c> {
    /// Records an operation; `place` has its bits for a group.
    #[inline(always)]
    pub(super) fn new(shared: &'c Shared, entry: &Entry, place: u64) -> Self {
        let ring = shared.ring();
        if let Some(ring) = ring {
            ring.push(entry.call | place, entry.lengths, entry.stream, entry.site);
        }
        Self(ring)
    }

    /// Records that it has failed or, if it is in a group, all of the group.
    pub(super) fn fail(self) {
        self.0.into_iter().for_each(Ring::fail);
    }

    /// Takes it back, as it was refused before NCCL was called.
    pub(crate) fn withdraw(self, method: Method) {
        self.0.into_iter().for_each(|ring| ring.withdraw(method.is_message()));
    }
}
