//! The layout of the shared memory: which word and which byte belongs to what.
//!
//! | what | written by | read by | ordering | used again |
//! |---|---|---|---|---|
//! | header: abort flag | any rank, once | all | `AcqRel` compare-exchange, Acquire | never: the first reason counts |
//! | header: nonce | the root, before it sends the segment | all | Relaxed; the socket orders | never |
//! | header: liveness checks | the process whose turn it is | all processes | Relaxed | counts up |
//! | rank: process, identity | the root, before it sends the segment | all | Relaxed; the socket orders | never |
//! | rank: departed | the rank, once | all | Release, Acquire | never |
//! | rank: accesses | the rank | a rank that takes memory back | `SeqCst` fences (`shm::access`), Release, Acquire | counts up |
//! | rank: step | the rank, when it begins a step | ranks whose slot it reuses | Release, Acquire | counts up |
//! | rank: seen | the rank | the rank | Relaxed | counts up |
//! | rank: last call, calls, last empty call | the rank | reports of waits | Relaxed, so two words may be of two calls | each call |
//! | rank: launched | the rank | RAS | Relaxed | count up |
//! | rank: device | the rank, once | RAS | Relaxed | never |
//! | rank: program | the rank's process, before any rank has joined | processes that look whether it lives | Relaxed; the socket orders | never |
//! | rank: in group | the rank | reports of waits | Relaxed | each group |
//! | rank: recipients | the rank, before its first message to another | that rank, when it leaves | Relaxed | never |
//! | record: published | the rank | all ranks of the call | Release after everything of the step, Acquire | [`SLOTS`] steps later, once all others have begun the step after it |
//! | record: arguments, inline data | the rank, before `published` | after `published` | Relaxed | with the record |
//! | pair: written | the sender | the receiver | Release after the bytes, Acquire | counts up |
//! | pair: read | the receiver | the sender | Release after the bytes are read, Acquire | counts up |
//! | pair: rejected | the receiver, before `read` passes the message | the sender | Release, Acquire | the next rejection |
//! | pair: raised, awaited | the sender, the receiver | the receiver | Release, Acquire; Relaxed | count up |
//! | window | its rank | a rank that puts | Release to open; `SeqCst` fences to close (`shm::access`) | another serial |
//! | sleepers | ranks that sleep until a rank goes on; that rank | that rank | `SeqCst`, Relaxed: a sleeper that is missed wakes by itself | each sleep |
//! | bytes: eager buffer | the rank, before `published` | after `published` | by `published` | with the record |
//! | bytes: staging buffer | the rank, before it announces | after that | by `published` | [`STAGES`] steps later: ranks that stage all wait for all |
//! | bytes: ring | the sender, then the receiver | the receiver | by `written` and `read` | once `read` has passed it |
//!
//! Words come first, in this order, then the bytes. Words that different ranks write in each call are on different cache
//! lines, and all of a short call is on one line.

use crate::diag::error::{Error, Result};
use crate::sync::primitive::LOOM;

/// The most ranks of a communicator: more is taken for a mistake.
pub(crate) const MAX_RANKS: usize = if LOOM { 64 } else { 1024 };

/// Bytes that a rank can publish eagerly, with the call itself.
pub(crate) const EAGER_MAX: usize = if LOOM { 64 } else { 64 << 10 };

/// Bytes that a rank can stage at a time.
pub(crate) const STAGE: usize = if LOOM { 3 * 64 } else { 512 << 10 };

/// Bytes of the longest message that its sender need not wait for, while at most [`MESSAGES`] of that length are in the
/// mailbox of a communicator with few ranks. A longer one is copied from the sender's memory, or in pieces.
pub(crate) const MESSAGE_MAX: usize = if LOOM { 64 } else { 64 << 10 };

/// Messages of the greatest length that fit into a mailbox, where there are few ranks.
pub(crate) const MESSAGES: usize = 4;

/// Bytes of all mailboxes' rings together, from which each gets its share. They take memory only once they are used.
const RINGS: usize = 256 << 20;

/// The granularity of a ring.
const PAGE: usize = 4 << 10;

/// Bytes from one eager buffer to the next: an odd number of pages and some cache lines, as the short calls of successive steps
/// would else compete for few places in the processor's caches, that of address translations among them.
const EAGER_STRIDE: usize = if LOOM { EAGER_MAX } else { EAGER_MAX + PAGE + 512 };

/// Signals that a rank can raise at another, each with a counter of its own.
pub(crate) const SIGNALS: usize = if LOOM { 2 } else { 16 };

/// Windows of a communicator that a rank can have at a time.
pub(crate) const WINDOWS: usize = if LOOM { 2 } else { 1024 };

/// Words of a rank's own arguments that it can publish with a call.
pub(crate) const RANK_ARGS: usize = 9;

/// Record slots per rank: how far a rank may run ahead of the slowest.
pub(super) const SLOTS: u64 = if LOOM { 2 } else { 8 };

/// Staging buffers per rank: fewer than [`SLOTS`], as ranks that stage all wait for all.
pub(super) const STAGES: u64 = 2;

/// Words of a cache line.
pub(super) const LINE: usize = if LOOM { 4 } else { 8 };

// Words of the header.
pub(super) const ABORT_FLAG: usize = 0;
pub(super) const NONCE: usize = 1;
pub(super) const LIVENESS_CHECKS: usize = 3;
const HEADER: usize = LINE;

// Words of a rank's control block.
pub(super) const PROCESS: usize = 0;
pub(super) const IDENTITY: usize = 1;
pub(super) const DEPARTED: usize = 2;
pub(super) const ACCESSES: usize = 3;
pub(super) const STEP: usize = LINE;
pub(super) const SEEN: usize = LINE + 1;
pub(super) const LAST_CALL: usize = LINE + 2;
pub(super) const CALLS: usize = LINE + 4;
pub(super) const LAST_EMPTY_CALL: usize = LINE + 5;
/// The first of the numbers of collectives, one word for each function. On a line of their own, which only RAS reads and who
/// looks whether a rank lives.
pub(super) const LAUNCHED: usize = (LAST_EMPTY_CALL + 1).next_multiple_of(LINE);
/// Functions whose collectives are counted.
pub(crate) const COUNTED: usize = 8;
pub(super) const DEVICE: usize = LAUNCHED + COUNTED;
pub(super) const PROGRAM: usize = DEVICE + 1;
pub(super) const IN_GROUP: usize = PROGRAM + 1;
/// The number of the call that a rank would have made, had it not failed immediately, and the text of the error.
pub(super) const FAILED_CALL: usize = IN_GROUP + 1;
pub(super) const FAILURE: usize = FAILED_CALL + 1;
/// Bytes of that text at most.
pub(super) const FAILURE_MAX: usize = if LOOM { 8 } else { 192 };
/// Words of a rank's control block that are single ones; its records follow.
pub(super) const RANK_WORDS: usize = (FAILURE + FAILURE_MAX / size_of::<u64>()).next_multiple_of(LINE);
const RECORDS: usize = RANK_WORDS;
const RECIPIENTS: usize = RECORDS + SLOTS as usize * RECORD;
const CONTROL: usize = (RECIPIENTS + MAX_RANKS.div_ceil(u64::BITS as usize)).next_multiple_of(LINE);

// Words of a record.
pub(super) const PUBLISHED: usize = 0;
pub(super) const CALL_ARGS: usize = 1;
pub(super) const INLINE: usize = 3;
const RANK_ARGS_AT: usize = LINE;
const RECORD: usize = (RANK_ARGS_AT + RANK_ARGS).next_multiple_of(LINE);

// Words of a pair's block.
const WRITTEN: usize = 0;
const READ: usize = LINE;
const REJECTED: usize = LINE + 1;
const RAISED: usize = 2 * LINE;
const AWAITED: usize = RAISED + SIGNALS;
const PAIR: usize = AWAITED + SIGNALS;

/// Bytes of eager data that fit into the cache line of the record.
pub(crate) const INLINE_MAX: usize = (LINE - INLINE) * size_of::<u64>();

/// The layout for a number of ranks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    ranks: usize,
    /// Bytes of a pair's ring.
    pub(super) ring: usize,
    /// The index of the first rank's word of sleepers.
    sleepers: usize,
}

/// Word indices of a mailbox, and the byte offset of its ring.
pub(super) struct MailboxLayout {
    pub(super) written: usize,
    pub(super) read: usize,
    pub(super) rejected: usize,
    pub(super) ring: usize,
}

impl Layout {
    /// Returns the layout for `ranks` ranks.
    ///
    /// # Errors
    /// A number that is 0 or above [`MAX_RANKS`].
    pub(super) fn new(ranks: usize) -> Result<Self> {
        if !(1..=MAX_RANKS).contains(&ranks) {
            return Err(Error::internal(format!("shared memory for {ranks} ranks")));
        }
        let ring = if LOOM {
            64
        } else {
            // A page more for each message has room for its header.
            (RINGS / (ranks * ranks) / PAGE * PAGE).clamp(PAGE, MESSAGES * (MESSAGE_MAX + PAGE))
        };
        let sleepers = HEADER + ranks * (CONTROL + ranks * PAIR + WINDOWS);
        Ok(Self { ranks, ring, sleepers })
    }

    pub(super) fn ranks(&self) -> usize {
        self.ranks
    }

    /// Returns the number of words, which fill whole cache lines: buffers begin with the next one.
    pub(super) fn words(&self) -> usize {
        self.sleepers(self.ranks).next_multiple_of(LINE)
    }

    /// Returns the number of bytes.
    pub(super) fn bytes(&self) -> usize {
        self.ring_of(self.ranks, 0)
    }

    /// Returns the number of words that belong to one rank.
    pub(super) fn words_of_rank(&self) -> usize {
        CONTROL + self.ranks * PAIR + WINDOWS + 1
    }

    /// Returns the index of a word of `rank`'s control block.
    pub(super) fn control(&self, rank: usize, word: usize) -> usize {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        HEADER + rank * CONTROL + word
    }

    /// Returns the index of the first word of `rank`'s record of `step`.
    pub(super) fn record(&self, rank: usize, step: u64) -> usize {
        self.control(rank, RECORDS + (step % SLOTS) as usize * RECORD)
    }

    /// Returns the index of the first word of `rank`'s own arguments in its record of `step`.
    pub(super) fn rank_args(&self, rank: usize, step: u64) -> usize {
        self.record(rank, step) + RANK_ARGS_AT
    }

    /// Returns the index of the word with a bit for each rank that `rank` has sent a message to, and the bit of `to`.
    pub(super) fn recipient(&self, rank: usize, to: usize) -> (usize, u64) {
        let bits = u64::BITS as usize;
        (self.control(rank, RECIPIENTS + to / bits), 1 << (to % bits))
    }

    /// Returns the word indices of the counters of a signal: how often `from` has raised it at `to`, and how often that
    /// has been awaited.
    pub(super) fn signal(&self, from: usize, to: usize, signal: usize) -> (usize, usize) {
        assert!(signal < SIGNALS, "signal {signal} of {SIGNALS}");
        let pair = self.pair(from, to);
        (pair + RAISED + signal, pair + AWAITED + signal)
    }

    /// Returns the index of the word of one of `rank`'s windows.
    pub(super) fn window(&self, rank: usize, window: usize) -> usize {
        assert!(window < WINDOWS, "window {window} of {WINDOWS}");
        HEADER + self.ranks * CONTROL + self.ranks * self.ranks * PAIR + rank * WINDOWS + window
    }

    /// Returns the index of the word of those who sleep until `rank` goes on.
    pub(super) fn sleepers(&self, rank: usize) -> usize {
        self.sleepers + rank
    }

    /// Returns the layout of the mailbox from one rank to another.
    pub(super) fn mailbox(&self, from: usize, to: usize) -> MailboxLayout {
        let pair = self.pair(from, to);
        MailboxLayout {
            written: pair + WRITTEN,
            read: pair + READ,
            rejected: pair + REJECTED,
            ring: self.ring_of(from, to),
        }
    }

    /// Returns the byte offset of `rank`'s eager buffer of `step`.
    pub(super) fn eager(&self, rank: usize, step: u64) -> usize {
        (rank * SLOTS as usize + (step % SLOTS) as usize) * EAGER_STRIDE
    }

    /// Returns the byte offset of `rank`'s staging buffer of `step`.
    pub(super) fn stage(&self, rank: usize, step: u64) -> usize {
        let slot = rank * STAGES as usize + (step % STAGES) as usize;
        self.eager(self.ranks, 0) + slot * STAGE
    }

    /// Returns the byte ranges, as offset and length, of `rank`'s eager and staging buffers.
    pub(super) fn buffers(&self, rank: usize) -> [(usize, usize); 2] {
        [(self.eager(rank, 0), SLOTS as usize * EAGER_STRIDE), (self.stage(rank, 0), STAGES as usize * STAGE)]
    }

    fn ring_of(&self, from: usize, to: usize) -> usize {
        self.stage(self.ranks, 0) + (from * self.ranks + to) * self.ring
    }

    fn pair(&self, from: usize, to: usize) -> usize {
        assert!(from < self.ranks && to < self.ranks, "ranks {from} and {to} of {}", self.ranks);
        HEADER + self.ranks * CONTROL + (from * self.ranks + to) * PAIR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_of_any_number_of_ranks_fits_in_8_gib() {
        let layout = Layout::new(MAX_RANKS).unwrap();
        assert!(layout.ring == PAGE && layout.words() * 8 + layout.bytes() < 8 << 30);
        assert!(Layout::new(0).is_err() && Layout::new(MAX_RANKS + 1).is_err());
    }

    #[test]
    fn layout_has_no_overlaps_and_no_gaps_between_buffers() {
        let layout = Layout::new(3).unwrap();
        let mut words = vec![ABORT_FLAG, NONCE, NONCE + 1, LIVENESS_CHECKS];
        let mut bytes = vec![];
        for rank in 0..3 {
            words.extend(
                [
                    PROCESS,
                    IDENTITY,
                    DEPARTED,
                    ACCESSES,
                    STEP,
                    SEEN,
                    LAST_CALL,
                    LAST_CALL + 1,
                    CALLS,
                    LAST_EMPTY_CALL,
                ]
                .map(|word| layout.control(rank, word)),
            );
            words.extend((LAUNCHED..=IN_GROUP).map(|word| layout.control(rank, word)));
            for step in 0..SLOTS {
                let record = layout.record(rank, step);
                words.extend(record..record + LINE);
                let args = layout.rank_args(rank, step);
                words.extend(args..args + RANK_ARGS);
                bytes.push((layout.eager(rank, step), EAGER_STRIDE));
            }
            words.push(layout.recipient(rank, 0).0);
            bytes.extend((0..STAGES).map(|step| (layout.stage(rank, step), STAGE)));
            words.extend((0..WINDOWS).map(|window| layout.window(rank, window)));
            words.push(layout.sleepers(rank));
            for to in 0..3 {
                let mailbox = layout.mailbox(rank, to);
                words.extend([mailbox.written, mailbox.read]);
                words.extend(mailbox.rejected..mailbox.rejected + 3);
                for signal in 0..SIGNALS {
                    let (raised, awaited) = layout.signal(rank, to, signal);
                    words.extend([raised, awaited]);
                }
                bytes.push((mailbox.ring, layout.ring));
            }
        }
        let count = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), count);
        assert!(words.last().is_some_and(|last| *last < layout.words()));
        assert_eq!(layout.words() % LINE, 0);
        bytes.sort_unstable();
        assert!(bytes.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0));
        assert_eq!(bytes.last().map(|(at, length)| at + length), Some(layout.bytes()));
    }
}
