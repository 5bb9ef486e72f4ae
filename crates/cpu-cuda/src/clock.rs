//! Vector clocks: how far each stream has come, as seen from somewhere.

use std::collections::BTreeMap;

use crate::handle::StreamId;

/// For each stream, the number of its operations that come before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Clock(BTreeMap<StreamId, u64>);

impl Clock {
    /// Returns how many operations of a stream come before.
    pub(crate) fn get(&self, stream: StreamId) -> u64 {
        self.0.get(&stream).copied().unwrap_or(0)
    }

    /// Includes the operations of a stream up to a number.
    pub(crate) fn advance(&mut self, stream: StreamId, to: u64) {
        let number = self.0.entry(stream).or_default();
        *number = (*number).max(to);
    }

    /// Includes everything that another clock includes.
    pub(crate) fn join(&mut self, other: &Self) {
        for (&stream, &number) in &other.0 {
            self.advance(stream, number);
        }
    }

    /// Forgets the streams for which the function is false.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(StreamId, u64) -> bool) {
        self.0.retain(|&stream, &mut number| keep(stream, number));
    }

    /// Returns whether nothing comes before.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The streams and how far they have come.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (StreamId, u64)> {
        self.0.iter().map(|(&stream, &number)| (stream, number))
    }
}
