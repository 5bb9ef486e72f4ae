//! The layout of the shared memory: the purpose of each word and byte.
//!
//! | item | written by | read by | ordering | reused |
//! |---|---|---|---|---|
//! | header: abort flag | any rank, once | all | `AcqRel` compare-exchange, Acquire | never: the first reason counts |
//! | header: nonce | the root, before it sends the segment | all | Relaxed; the socket orders | never |
//! | header: last check of liveness | the process that performs the check | all processes | Relaxed | each check |
//! | rank: process, identity | the root, before it sends the segment | all | Relaxed; the socket orders | never |
//! | rank: departed | the rank, once | all | Release, Acquire | never |
//! | rank: accesses | the rank | a rank that reclaims memory | `SeqCst` fences (`shm::access`), Release, Acquire | counts up |
//! | rank: step | the rank, when it begins a step | ranks whose slot it reuses | Release, Acquire | counts up |
//! | rank: seen | the rank | the rank | Relaxed | counts up |
//! | rank: last call, calls, last empty call | the rank | reports of waits | Relaxed, so two words may belong to two calls | each call |
//! | rank: launched | the rank | RAS | Relaxed | count up |
//! | rank: device | the rank, once | RAS | Relaxed | never |
//! | rank: program | the rank's process, before any rank has joined | processes that check its liveness | Relaxed; the socket orders | never |
//! | rank: in group | the rank | reports of waits | Relaxed | each group |
//! | rank: recipients | the rank, before its first send to another rank | the rank, when it leaves | Relaxed | never |
//! | record: published | the rank | all ranks of the call | Release after all other writes of the step, Acquire | [`SLOTS`] steps later, once all other ranks have begun the next step |
//! | record: arguments, inline data | the rank, before `published` | after `published` | Relaxed | with the record |
//! | pair: written | the sender | the receiver | Release after the bytes, Acquire | counts up |
//! | pair: read | the receiver | the sender | Release after the bytes are read, Acquire | counts up |
//! | pair: rejected | the receiver, before `read` passes the send | the sender | Release, Acquire | the next rejection |
//! | pair: raised, awaited | the sender, the receiver | the receiver | Release, Acquire; Relaxed | count up |
//! | window | its rank | ranks that put | Release to open; `SeqCst` fences to close (`shm::access`) | another serial |
//! | sleepers | ranks that sleep until a rank makes progress; that rank | that rank | `SeqCst`, Relaxed: a missed sleeper wakes after its timeout | each sleep |
//! | bytes: eager buffer | the rank, before `published` | after `published` | by `published` | with the record |
//! | bytes: staging buffer | the rank, before `published` | after `published` | by `published` | [`STAGES`] steps later: staging ranks wait for all |
//! | bytes: ring | the sender, then the receiver | the receiver | by `written` and `read` | once `read` has passed the bytes |
//!
//! Words come first, in this order, followed by bytes. Words that different ranks write in each call are on different cache
//! lines. All words of a short call are on one line.

use crate::diag::error::{Error, Result};
use crate::sync::primitive::LOOM;

/// The maximum number of ranks of a communicator. More are assumed to be a mistake.
pub(crate) const MAX_RANKS: usize = if LOOM { 64 } else { 1024 };

/// The number of bytes that a rank can publish eagerly, with the call itself.
pub(crate) const EAGER_MAX: usize = if LOOM { 64 } else { 64 << 10 };

/// The number of bytes that a rank can stage at a time.
pub(crate) const STAGE: usize = if LOOM { 3 * 64 } else { 512 << 10 };

/// The size in bytes of the largest send that does not wait for the receiver, while the mailbox holds at most [`MESSAGES`] sends
/// of that size and the communicator has few ranks. A larger send is copied directly from the sender's memory, or in pieces.
pub(crate) const MESSAGE_MAX: usize = if LOOM { 64 } else { 64 << 10 };

/// The number of sends of the maximum size that fit into a mailbox if the communicator has few ranks.
pub(crate) const MESSAGES: usize = 4;

/// The total size in bytes of all mailbox rings, divided equally among them. Rings take memory only once they are used.
const RINGS: usize = 256 << 20;

const PAGE: usize = 4 << 10;

/// The distance in bytes between eager buffers: an odd number of pages plus some cache lines. Otherwise, short calls in
/// successive steps would compete for the same sets of the processor's caches, including the TLB.
const EAGER_STRIDE: usize = if LOOM { EAGER_MAX } else { EAGER_MAX + PAGE + 512 };

/// The number of signals that a rank can raise at another rank, each with a separate counter.
pub(crate) const SIGNALS: usize = if LOOM { 2 } else { 16 };

/// The maximum number of windows that a rank can have in a communicator at a time.
pub(crate) const WINDOWS: usize = if LOOM { 2 } else { 1024 };

/// The number of words of rank-specific arguments that a rank can publish with a call.
pub(crate) const RANK_ARGS: usize = 9;

/// Record slots per rank: the number of steps that a rank may run ahead of the slowest rank.
pub(super) const SLOTS: u64 = if LOOM { 2 } else { 8 };

/// Staging buffers per rank: fewer than [`SLOTS`], because a rank that stages data waits for all ranks.
pub(super) const STAGES: u64 = 2;

pub(super) const LINE: usize = if LOOM { 4 } else { 8 };

// Words of the header.
pub(super) const ABORT_FLAG: usize = 0;
pub(super) const NONCE: usize = 1;
/// The time of the last check of liveness, in milliseconds since 1970.
pub(super) const LAST_CHECK: usize = 3;
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
/// The first of the collective counters, one word per function. They are on a separate cache line, read only by RAS and by
/// liveness checks.
pub(super) const LAUNCHED: usize = (LAST_EMPTY_CALL + 1).next_multiple_of(LINE);
pub(crate) const COUNTED: usize = 8;
pub(super) const DEVICE: usize = LAUNCHED + COUNTED;
pub(super) const PROGRAM: usize = DEVICE + 1;
pub(super) const IN_GROUP: usize = PROGRAM + 1;
/// The number that a call would have had if it had not failed immediately. [`FAILURE`] is its error text.
pub(super) const FAILED_CALL: usize = IN_GROUP + 1;
pub(super) const FAILURE: usize = FAILED_CALL + 1;
/// The maximum length of the error text in bytes.
pub(super) const FAILURE_MAX: usize = if LOOM { 8 } else { 192 };
/// The number of single words of a rank's control block. The rank's records follow.
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

/// The number of bytes of eager data that fit into the record's cache line.
pub(crate) const INLINE_MAX: usize = (LINE - INLINE) * size_of::<u64>();

#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    ranks: usize,
    /// The size of a pair's ring in bytes.
    pub(super) ring: usize,
    /// The index of the first rank's sleepers word.
    sleepers: usize,
}

impl Layout {
    pub(super) fn new(ranks: usize) -> Result<Self> {
        if !(1..=MAX_RANKS).contains(&ranks) {
            return Err(Error::internal(format!("shared memory for {ranks} ranks")));
        }
        let ring = if LOOM {
            64
        } else {
            // The additional page per send has room for its header.
            (RINGS / (ranks * ranks) / PAGE * PAGE).clamp(PAGE, MESSAGES * (MESSAGE_MAX + PAGE))
        };
        let sleepers = HEADER + ranks * (CONTROL + ranks * PAIR + WINDOWS);
        Ok(Self { ranks, ring, sleepers })
    }

    pub(super) fn ranks(&self) -> usize {
        self.ranks
    }

    /// Returns the number of words. Words fill whole cache lines, so buffers begin on the next line.
    pub(super) fn words(&self) -> usize {
        self.sleepers(self.ranks).next_multiple_of(LINE)
    }

    pub(super) fn bytes(&self) -> usize {
        self.ring_of(self.ranks, 0)
    }

    pub(super) fn words_of_rank(&self) -> usize {
        CONTROL + self.ranks * PAIR + WINDOWS + 1
    }

    pub(super) fn control(&self, rank: usize, word: usize) -> usize {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        HEADER + rank * CONTROL + word
    }

    pub(super) fn record(&self, rank: usize, step: u64) -> usize {
        self.control(rank, RECORDS + (step % SLOTS) as usize * RECORD)
    }

    /// Returns the index of the first word of `rank`'s own arguments in its record of `step`.
    pub(super) fn rank_args(&self, rank: usize, step: u64) -> usize {
        self.record(rank, step) + RANK_ARGS_AT
    }

    /// Returns the index of the word with a bit for each rank that `rank` has sent to, and the bit of `to`.
    pub(super) fn recipient(&self, rank: usize, to: usize) -> (usize, u64) {
        let bits = u64::BITS as usize;
        (self.control(rank, RECIPIENTS + to / bits), 1 << (to % bits))
    }

    /// Returns the word indices of a signal's counters: how often `from` has raised it at `to`, and how often `to` has awaited
    /// it.
    pub(super) fn signal(&self, from: usize, to: usize, signal: usize) -> (usize, usize) {
        assert!(signal < SIGNALS, "signal {signal} of {SIGNALS}");
        let pair = self.pair(from, to);
        (pair + RAISED + signal, pair + AWAITED + signal)
    }

    pub(super) fn window(&self, rank: usize, window: usize) -> usize {
        assert!(window < WINDOWS, "window {window} of {WINDOWS}");
        HEADER + self.ranks * CONTROL + self.ranks * self.ranks * PAIR + rank * WINDOWS + window
    }

    pub(super) fn sleepers(&self, rank: usize) -> usize {
        self.sleepers + rank
    }

    /// Returns the indices of a mailbox's words: written, read and rejected. Two more words follow the rejected word.
    pub(super) fn mailbox(&self, from: usize, to: usize) -> [usize; 3] {
        [WRITTEN, READ, REJECTED].map(|word| self.pair(from, to) + word)
    }

    pub(super) fn eager(&self, rank: usize, step: u64) -> usize {
        (rank * SLOTS as usize + (step % SLOTS) as usize) * EAGER_STRIDE
    }

    pub(super) fn stage(&self, rank: usize, step: u64) -> usize {
        let slot = rank * STAGES as usize + (step % STAGES) as usize;
        self.eager(self.ranks, 0) + slot * STAGE
    }

    /// Returns the byte ranges, as offset and length, of `rank`'s eager and staging buffers.
    pub(super) fn buffers(&self, rank: usize) -> [(usize, usize); 2] {
        [(self.eager(rank, 0), SLOTS as usize * EAGER_STRIDE), (self.stage(rank, 0), STAGES as usize * STAGE)]
    }

    /// Returns the byte offset of the ring of the mailbox from rank `from` to rank `to`.
    pub(super) fn ring_of(&self, from: usize, to: usize) -> usize {
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
        let mut words = vec![ABORT_FLAG, NONCE, NONCE + 1, LAST_CHECK];
        let mut bytes = vec![];
        for rank in 0..3 {
            let single = (PROCESS..=ACCESSES).chain(STEP..=LAST_EMPTY_CALL).chain(LAUNCHED..=IN_GROUP);
            words.extend(single.map(|word| layout.control(rank, word)));
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
                let [written, read, rejected] = layout.mailbox(rank, to);
                words.extend([written, read, rejected, rejected + 1, rejected + 2]);
                for signal in 0..SIGNALS {
                    let (raised, awaited) = layout.signal(rank, to, signal);
                    words.extend([raised, awaited]);
                }
                bytes.push((layout.ring_of(rank, to), layout.ring));
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
