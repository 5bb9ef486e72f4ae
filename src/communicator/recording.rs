use super::handle::Communicator;
use super::recorder::{self, Recorder};
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

impl Communicator {
    /// Records the operations from now on: the last ones, at least so many `entries`, up to a million, of 64 bytes each. Once
    /// it records, it does so until its end, and further calls return the same recorder.
    ///
    /// With the environment variable `LIBNCCL_RECORDER`, a number of entries, all communicators of the process are recorded
    /// from their start. For an example, see [`Recorder`].
    pub fn record(&self, entries: usize) -> Recorder {
        recorder::start(&self.shared, entries);
        Recorder::new(&self.shared)
    }

    /// Returns the recorder, if the operations are recorded.
    #[must_use]
    pub fn recorder(&self) -> Option<Recorder> {
        Recorder::of(&self.shared)
    }
}
