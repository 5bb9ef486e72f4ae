//! Mailboxes for point-to-point operations: a byte ring for each pair of ranks.
//!
//! Positions count bytes and never decrease. The ring holds the bytes between the receiver's and the sender's positions.
//! `functions::point_to_point` defines the content of the ring.

use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::diag::error::Result;
use crate::shm::buffer::WriteBuf;
use crate::shm::shared_state::SharedState;
use crate::sync::primitive::{AtomicU64, LOOM};

/// The size in bytes of a cell, which never wraps if it begins at a multiple of its size.
pub(crate) const CELL: u64 = 16;

/// A send larger than this, or than the ring, is copied in chunks of the smaller size divided by [`CHUNKS`] to keep both busy.
const WHOLE_MAX: u64 = if LOOM { u64::MAX } else { 64 << 10 };
const CHUNKS: u64 = if LOOM { 2 } else { 4 };

pub(crate) struct Mailbox<'a> {
    state: &'a SharedState,
    sender: usize,
    receiver: usize,
    written: &'a AtomicU64,
    read: &'a AtomicU64,
    /// The position, plus one, of the last send that the receiver rejected, and two words from the receiver.
    rejected: [&'a AtomicU64; 3],
    ring: usize,
    size: u64,
}

impl<'a> Mailbox<'a> {
    pub(crate) fn new(state: &'a SharedState, from: usize, to: usize) -> Self {
        let [written, read, rejected] = state.layout.mailbox(from, to);
        Self {
            state,
            sender: from,
            receiver: to,
            written: state.segment.word(written),
            read: state.segment.word(read),
            rejected: std::array::from_fn(|word| state.segment.word(rejected + word)),
            ring: state.layout.ring_of(from, to),
            size: state.layout.ring as u64,
        }
    }

    /// Returns the mailbox from `from` to `to`, or `None` if `from` has never sent to `to`: touching the memory of an unused
    /// mailbox would allocate it.
    pub(crate) fn of_sent(state: &'a SharedState, from: usize, to: usize) -> Option<Self> {
        let (word, bit) = state.layout.recipient(from, to);
        let is_used = state.segment.word(word).load(Relaxed) & bit != 0;
        is_used.then(|| Self::new(state, from, to))
    }

    /// Records that the mailbox from `from` to `to` has been used, for [`of_sent`](Self::of_sent).
    pub(crate) fn note_sent(state: &SharedState, from: usize, to: usize) {
        let (word, bit) = state.layout.recipient(from, to);
        let word = state.segment.word(word);
        let recipients = word.load(Relaxed);
        if recipients & bit == 0 {
            word.store(recipients | bit, Relaxed);
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn write_position(&self) -> u64 {
        self.written.load(Relaxed)
    }

    pub(crate) fn read_position(&self) -> u64 {
        self.read.load(Relaxed)
    }

    /// Makes the bytes that the sender has written up to `position` visible to the receiver.
    pub(crate) fn publish(&self, position: u64) {
        self.written.store(position, Release);
        self.state.wake_waiting(self.sender);
    }

    /// Frees the bytes that the receiver has read up to `position`.
    pub(crate) fn release(&self, position: u64) {
        self.read.store(position, Release);
        self.state.wake_waiting(self.receiver);
    }

    pub(crate) fn available(&self, position: u64) -> u64 {
        self.written.load(Acquire).saturating_sub(position)
    }

    pub(crate) fn is_read(&self, position: u64) -> bool {
        self.read.load(Acquire) >= position
    }

    /// Returns how many of the `length` bytes at `position`, of a send of `whole` bytes, to copy at a time. They do not wrap.
    pub(crate) fn chunk(&self, position: u64, length: u64, whole: u64) -> u64 {
        let most = if whole > self.size.min(WHOLE_MAX) { self.least_room(self.size) } else { self.size };
        length.min(most).min(self.size - position % self.size)
    }

    /// Returns the number of free bytes for which a sender with `left` bytes to write must wait.
    pub(crate) fn least_room(&self, left: u64) -> u64 {
        left.min(self.size.min(WHOLE_MAX) / CHUNKS)
    }

    /// Returns the memory of a range of positions, which must not wrap.
    pub(crate) fn memory(&self, range: Range<u64>) -> WriteBuf {
        let at = self.ring + (range.start % self.size) as usize;
        self.state.segment.memory(at, (range.end - range.start) as usize)
    }

    /// Writes words at a position, in pairs, which never wrap.
    pub(crate) fn write_words(&self, position: u64, words: &[u64]) {
        for (index, [one, two]) in words.as_chunks().0.iter().enumerate() {
            let (at, bytes) =
                (position + CELL * index as u64, (u128::from(*one) | u128::from(*two) << 64).to_le_bytes());
            self.memory(at..at + CELL).write(0, &bytes);
        }
    }

    pub(crate) fn read_words<const N: usize>(&self, position: u64) -> [u64; N] {
        std::array::from_fn(|index| {
            let (at, mut bytes) = (position + 8 * index as u64, [0; 8]);
            self.memory(at..at + 8).as_read().read(0, &mut bytes);
            u64::from_le_bytes(bytes)
        })
    }

    /// Rejects the send at `start`, with two words that state the reason. Called before reading past the send.
    pub(crate) fn reject(&self, start: u64, words: [u64; 2]) {
        let [position, one, two] = self.rejected;
        one.store(words[0], Relaxed);
        two.store(words[1], Relaxed);
        position.store(start + 1, Release);
    }

    pub(crate) fn rejection(&self, start: u64) -> Option<[u64; 2]> {
        let [position, one, two] = self.rejected;
        (position.load(Acquire) == start + 1).then(|| [one.load(Relaxed), two.load(Relaxed)])
    }

    /// Waits until the ring has room for `least` bytes at `at`, in the send that begins at `start`. Returns the number of free
    /// bytes, or `None` if the receiver, `peer`, rejects the send.
    pub(crate) async fn wait_for_room(
        &self,
        peer: usize,
        start: u64,
        at: u64,
        least: u64,
    ) -> Result<Option<u64>> {
        let mut room = None;
        self.state
            .wait(peer, || {
                // In this order: the receiver rejects a send before reading past it.
                let read = self.read.load(Acquire);
                let rejected = self.rejected[0].load(Acquire) == start + 1;
                let space = self.size - at.saturating_sub(read).min(self.size);
                room = (!rejected).then_some(space);
                rejected || space >= least
            })
            .await?;
        Ok(room)
    }
}
