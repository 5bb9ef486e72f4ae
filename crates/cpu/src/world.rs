//! What the ranks of a communicator share: its layout in a segment, and waiting for one another.
//!
//! Every word has one writer but the alarm. A rank that waits looks at the word it waits for first and for
//! bad news second, so that what a rank did before it left still counts.

use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::task::Poll;

use crate::failure::{Failure, Result};
use crate::process::Process;
use crate::segment::Segment;

/// More ranks than this is taken for a mistake.
pub(crate) const MAX_RANKS: usize = 1024;

/// Bytes a rank can stage for the others at a time.
pub(crate) const STAGE: usize = 128 << 10;

/// Steps of a collective that a rank can be ahead of the slowest.
pub(crate) const SLOTS: u64 = 2;

/// Words that describe a collective.
pub(crate) const DESCRIPTION: usize = 5;

// In words. What different ranks write lies on different cache lines.
const LINE: usize = 8;
const ALARM: usize = 0;
const HEADER: usize = LINE;
const PROCESS: usize = 0;
const STARTED: usize = 1;
const LEFT: usize = 2;
const PRODUCED: usize = LINE;
const CONSUMED: usize = 2 * LINE;
const DESCRIPTIONS: usize = 3 * LINE;
const CONTROL: usize = DESCRIPTIONS + SLOTS as usize * LINE;
const WRITTEN: usize = 0;
const READ: usize = LINE;
const REFUSED: usize = LINE + 1;
const MAILBOX: usize = 2 * LINE;

#[derive(Debug)]
pub(crate) struct World {
    segment: Segment,
    ranks: usize,
    ring: usize,
}

/// Why nobody can rely on a rank any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Alarm {
    Died = 1,
    Aborted = 2,
    Failed = 3,
}

impl World {
    /// The world of `processes`, one a rank, and the file through which other processes open it.
    pub(crate) fn create(processes: &[Process]) -> Result<(Self, OwnedFd)> {
        let ranks = processes.len();
        let (words, bytes, ring) = layout(ranks);
        let (segment, file) = Segment::create(words, bytes)?;
        let world = Self { segment, ranks, ring };
        for (rank, process) in processes.iter().enumerate() {
            world.control(rank, PROCESS).store(process.pid, Relaxed);
            world.control(rank, STARTED).store(process.started, Relaxed);
        }
        Ok((world, file))
    }

    /// The world that another rank created.
    pub(crate) fn open(file: impl AsFd, ranks: usize) -> Result<Self> {
        let (words, bytes, ring) = layout(ranks);
        Ok(Self { segment: Segment::open(file, words, bytes)?, ranks, ring })
    }

    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// The last step of a collective that `rank` has staged its part of.
    pub(crate) fn produced(&self, rank: usize) -> &AtomicU64 {
        self.control(rank, PRODUCED)
    }

    /// The last step of a collective in which `rank` is done with all others' parts.
    pub(crate) fn consumed(&self, rank: usize) -> &AtomicU64 {
        self.control(rank, CONSUMED)
    }

    /// The words that describe the collective that begins with `step`.
    pub(crate) fn description(&self, rank: usize, step: u64) -> [&AtomicU64; DESCRIPTION] {
        let start = DESCRIPTIONS + (step % SLOTS) as usize * LINE;
        std::array::from_fn(|word| self.control(rank, start + word))
    }

    /// Where in the segment's bytes `rank` stages its part of `step`: [`STAGE`] bytes.
    pub(crate) fn stage(&self, rank: usize, step: u64) -> usize {
        (rank * SLOTS as usize + (step % SLOTS) as usize) * STAGE
    }

    /// The way from one rank to another.
    pub(crate) fn mailbox(&self, from: usize, to: usize) -> Mailbox<'_> {
        let pair = from * self.ranks + to;
        let start = HEADER + self.ranks * CONTROL + pair * MAILBOX;
        Mailbox {
            written: self.segment.word(start + WRITTEN),
            read: self.segment.word(start + READ),
            refused: std::array::from_fn(|word| self.segment.word(start + REFUSED + word)),
            ring: self.ranks * SLOTS as usize * STAGE + pair * self.ring,
            size: self.ring,
        }
    }

    /// Waits until `done`, which needs something of `rank`.
    pub(crate) async fn wait(&self, rank: usize, mut done: impl FnMut() -> bool) -> Result {
        poll_fn(|context| {
            if !done() {
                let Err(failure) = self.health(rank) else { return Poll::Pending };
                // It may have happened just before the bad news.
                if !done() {
                    return Poll::Ready(Err(failure));
                }
            }
            context.waker().wake_by_ref();
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Whether it makes sense to wait for `rank`.
    fn health(&self, rank: usize) -> Result {
        self.alarmed()?;
        if self.control(rank, LEFT).load(Acquire) != 0 {
            return Err(Failure::remote(format!(
                "rank {rank} has left: its communicator was finalized or destroyed"
            )));
        }
        Ok(())
    }

    /// Whether all ranks can be relied on.
    pub(crate) fn alarmed(&self) -> Result {
        let alarm = self.segment.word(ALARM).load(Acquire);
        let (rank, reason) = (alarm >> 8, alarm & 0xff);
        let what = match reason {
            0 => return Ok(()),
            reason if reason == Alarm::Died as u64 => {
                "died: its process ended without destroying the communicator"
            }
            reason if reason == Alarm::Aborted as u64 => "aborted the communicator",
            _ => "failed",
        };
        Err(Failure::remote(format!("rank {rank} {what}")))
    }

    /// Tells all ranks that `rank` cannot be relied on. The first alarm counts.
    pub(crate) fn alarm(&self, rank: usize, reason: Alarm) {
        let alarm = (rank as u64) << 8 | reason as u64;
        let _ = self.segment.word(ALARM).compare_exchange(0, alarm, AcqRel, Relaxed);
    }

    /// Says that nothing more comes from `rank`.
    pub(crate) fn leave(&self, rank: usize) {
        self.control(rank, LEFT).store(1, Release);
    }

    /// Looks for ranks whose process has ended.
    pub(crate) fn patrol(&self) {
        let own = u64::from(std::process::id());
        let mut last = Process { pid: own, started: 0 };
        for rank in 0..self.ranks {
            let word = |offset| self.control(rank, offset).load(Relaxed);
            let process = Process { pid: word(PROCESS), started: word(STARTED) };
            // Ranks are often threads of one process: one look serves them all.
            let looked_at = process.pid == own || process == last;
            last = process;
            if !looked_at && word(LEFT) == 0 && process.ended() {
                self.alarm(rank, Alarm::Died);
            }
        }
    }

    fn control(&self, rank: usize, word: usize) -> &AtomicU64 {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        self.segment.word(HEADER + rank * CONTROL + word)
    }
}

/// The segment's words and bytes, and the bytes of a mailbox's ring, for so many ranks.
fn layout(ranks: usize) -> (usize, usize, usize) {
    let pairs = ranks * ranks;
    // Memory is only taken once it is used, but the more ranks, the more of it is.
    let ring = ((256 << 20) / pairs).clamp(4 << 10, 64 << 10) & !0xfff;
    let words = HEADER + ranks * CONTROL + pairs * MAILBOX;
    (words, ranks * SLOTS as usize * STAGE + pairs * ring, ring)
}

/// The way from one rank to another: a ring of bytes. Positions count bytes and never turn back.
#[derive(Debug)]
pub(crate) struct Mailbox<'a> {
    /// How far the sender has written.
    pub(crate) written: &'a AtomicU64,
    /// How far the receiver has read.
    pub(crate) read: &'a AtomicU64,
    /// The last message that the receiver refused, by its position plus one, and what it wanted instead.
    pub(crate) refused: [&'a AtomicU64; 3],
    /// Where in the segment's bytes the ring begins.
    pub(crate) ring: usize,
    /// The ring's bytes.
    pub(crate) size: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(ranks: usize) -> World {
        World::create(&vec![Process::current().unwrap(); ranks]).unwrap().0
    }

    #[test]
    fn nothing_overlaps() {
        let world = world(3);
        let mut words = vec![];
        let mut places = vec![];
        for rank in 0..3 {
            words.extend([world.produced(rank), world.consumed(rank), world.control(rank, LEFT)]);
            for step in 0..SLOTS {
                words.extend(world.description(rank, step));
                places.push((world.stage(rank, step), STAGE));
            }
            for to in 0..3 {
                let mailbox = world.mailbox(rank, to);
                words.extend([mailbox.written, mailbox.read]);
                words.extend(mailbox.refused);
                places.push((mailbox.ring, mailbox.size));
            }
        }
        let count = words.len();
        words.sort_by_key(|word| std::ptr::from_ref(*word));
        words.dedup_by_key(|word| std::ptr::from_ref(*word));
        assert_eq!(words.len(), count);
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0), "no overlap, no gap");
        assert_eq!(places.last().map(|(at, length)| at + length), Some(layout(3).1));
    }

    #[test]
    fn the_first_alarm_counts() {
        let world = world(2);
        assert!(world.alarmed().is_ok());
        world.alarm(1, Alarm::Aborted);
        world.alarm(0, Alarm::Died);
        assert_eq!(world.alarmed().unwrap_err().text, "rank 1 aborted the communicator");
    }

    #[test]
    fn the_patrol_finds_an_ended_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let other = Process::of(child.id().into()).unwrap();
        let (world, _) = World::create(&[Process::current().unwrap(), other]).unwrap();
        world.patrol();
        assert!(world.alarmed().is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
        world.patrol();
        assert!(world.alarmed().unwrap_err().text.starts_with("rank 1 died"));
    }

    #[test]
    fn the_largest_world_can_be_laid_out() {
        let (words, bytes, ring) = layout(MAX_RANKS);
        assert!(ring >= 4096 && words * 8 + bytes < 8 << 30);
    }
}
