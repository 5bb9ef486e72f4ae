//! What the ranks of a communicator share: its layout in a segment, and waiting for one another.
//!
//! Every word has one writer but the alarm. A rank that waits looks at the word it waits for first and for
//! bad news second, so that what a rank did before it left still counts.

use std::future::poll_fn;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::buffer::{Source, Target};
use crate::executor;
use crate::failure::{Failure, Result};
use crate::process::Process;
use crate::segment::{AtomicU64, Segment, TINY, fence};

/// More ranks than this is taken for a mistake.
pub(crate) const MAX_RANKS: usize = 1024;

/// Bytes that a rank can say along with a call.
pub(crate) const PAYLOAD: usize = if TINY { 64 } else { 16 << 10 };

/// Bytes a rank can stage for the others at a time.
pub(crate) const STAGE: usize = if TINY { 3 * 64 } else { 512 << 10 };

/// Signals that a rank can raise at another, each counted by itself.
pub(crate) const SIGNALS: usize = if TINY { 2 } else { 16 };

/// Words that a rank says of its own along with a call.
pub(crate) const OWN: usize = 9;

/// Steps that a rank can be ahead of the slowest, which is how long what it said is there.
const SLOTS: u64 = if TINY { 2 } else { 8 };

/// The same of what it staged: where ranks stage, they all wait for all.
const STAGES: u64 = 2;

// In words. What different ranks write lies on different cache lines, and all of a short call on one line.
const LINE: usize = if TINY { 4 } else { 8 };
const ALARM: usize = 0;
const HEADER: usize = LINE;
const PROCESS: usize = 0;
const STARTED: usize = 1;
const LEFT: usize = 2;
const TOUCHING: usize = 3;
const STEP: usize = LINE;
const HEARD: usize = LINE + 1;
const RECORDS: usize = 2 * LINE;
const SAID: usize = 0;
const COMMON: usize = 1;
const IN_LINE: usize = 3;
const OF_OWN: usize = LINE;
const RECORD: usize = 4 * LINE;
const CONTROL: usize = RECORDS + SLOTS as usize * RECORD;
const WRITTEN: usize = 0;
const READ: usize = LINE;
const REFUSED: usize = LINE + 1;
const RAISED: usize = 2 * LINE;
const TAKEN: usize = RAISED + SIGNALS;
const MAILBOX: usize = TAKEN + SIGNALS;

/// Bytes of a payload that travel in the words that all ranks look at anyway.
const SHORT: usize = (LINE - IN_LINE) * size_of::<u64>();

#[derive(Debug)]
pub(crate) struct World {
    segment: Segment,
    processes: Vec<Process>,
    is_one_process: bool,
    ring: usize,
}

/// Bytes of a payload that are made ready for the next one.
const READY: usize = 256;

/// How often a rank that is touched looks whether the other one still runs.
const RETREAT: Duration = if TINY { Duration::MAX } else { Duration::from_millis(10) };

/// A rank's use of other ranks' memory.
#[derive(Debug)]
pub(crate) struct Touch<'a>(&'a AtomicU64);

impl Drop for Touch<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Release);
    }
}

/// Why nobody can rely on a rank any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Alarm {
    Died = 1,
    Aborted = 2,
    Failed = 3,
    Revoked = 4,
    Shrunk = 5,
}

impl World {
    /// The world of `processes`, one a rank, and the file through which other processes open it.
    pub(crate) fn create(processes: &[Process]) -> Result<(Self, OwnedFd)> {
        let (words, bytes, ring) = layout(processes.len());
        let (segment, file) = Segment::create(words, bytes)?;
        let is_one_process = processes.windows(2).all(|pair| pair[0] == pair[1]);
        let world = Self { segment, processes: processes.to_vec(), is_one_process, ring };
        for (rank, process) in processes.iter().enumerate() {
            world.control(rank, PROCESS).store(process.pid, Relaxed);
            world.control(rank, STARTED).store(process.started, Relaxed);
        }
        Ok((world, file))
    }

    /// The world that another rank created.
    pub(crate) fn open(file: impl AsFd, ranks: usize) -> Result<Self> {
        let (words, bytes, ring) = layout(ranks);
        let mut world = Self {
            segment: Segment::open(file, words, bytes)?,
            processes: vec![Process { pid: 0, started: 0 }; ranks],
            is_one_process: false,
            ring,
        };
        for rank in 0..ranks {
            let word = |offset| world.control(rank, offset).load(Relaxed);
            world.processes[rank] = Process { pid: word(PROCESS), started: word(STARTED) };
        }
        world.is_one_process = world.processes.windows(2).all(|pair| pair[0] == pair[1]);
        Ok(world)
    }

    pub(crate) fn ranks(&self) -> usize {
        self.processes.len()
    }

    pub(crate) fn process(&self, rank: usize) -> Process {
        self.processes[rank]
    }

    /// Whether all ranks are threads of one process.
    pub(crate) fn is_one_process(&self) -> bool {
        self.is_one_process
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// The number of `rank`'s next step, once what it said [`SLOTS`] steps ago is of no use any more. In a step all
    /// ranks announce something, and each waits for those that it needs.
    pub(crate) async fn next_step(&self, rank: usize) -> Result<u64> {
        let last = self.control(rank, STEP);
        let step = last.load(Relaxed) + 1;
        if !self.is_free(rank, step) {
            self.make_room(rank, step).await?;
        }
        // With it, all that the rank read of what others said in the steps before.
        last.store(step, Release);
        Ok(step)
    }

    /// Waits until the others have ended the steps that `rank` needs the place of for `step`.
    async fn make_room(&self, rank: usize, step: u64) -> Result {
        let mut least = step;
        for other in (0..self.ranks()).filter(|other| *other != rank) {
            let begun = self.control(other, STEP);
            let is_near = || begun.load(Acquire) + SLOTS > step;
            if !executor::spin(is_near) {
                self.wait(other, is_near).await?;
            }
            least = least.min(begun.load(Acquire));
        }
        // They may be further than they have to, so that this rank need not look for some steps.
        self.control(rank, HEARD).store(least, Relaxed);
        Ok(())
    }

    /// Whether, as far as `rank` has heard, the others are done with what is where it writes for `step`.
    fn is_free(&self, rank: usize, step: u64) -> bool {
        self.control(rank, HEARD).load(Relaxed) + SLOTS > step
    }

    /// Announces `step` of `rank`, and with it all that the rank has written for it.
    pub(crate) fn announce(&self, rank: usize, step: u64) {
        self.said(rank, step).store(step, Release);
    }

    /// The same, with a record, up to [`PAYLOAD`] bytes, and what is the rank's own.
    pub(crate) fn say(
        &self,
        rank: usize,
        step: u64,
        common: [u64; 2],
        payload: &[u8],
        own: Option<[u64; OWN]>,
    ) {
        let record = self.record(rank, step);
        for (word, value) in record[COMMON..IN_LINE].iter().zip(common) {
            word.store(value, Relaxed);
        }
        if let Some(own) = own {
            for (word, value) in self.record_of_own(rank, step).iter().zip(own) {
                word.store(value, Relaxed);
            }
        }
        self.payload_memory(rank, step, payload.len()).1.write(0, payload);
        record[SAID].store(step, Release);
    }

    /// Takes the line of `rank`'s next step out of the other ranks' caches, to which nobody then has to listen.
    pub(crate) fn make_ready(&self, rank: usize, step: u64, length: usize) {
        if !self.is_free(rank, step + 1) {
            return;
        }
        self.record(rank, step + 1)[COMMON].store(0, Relaxed);
        if length > SHORT {
            let (_, payload) = self.payload_memory(rank, step + 1, length);
            for at in (0..length.min(READY)).step_by(64) {
                payload.write(at, &[0]);
            }
        }
    }

    /// What of its own `rank` said with `step`, once it has.
    pub(crate) fn own(&self, rank: usize, step: u64) -> [u64; OWN] {
        self.record_of_own(rank, step).each_ref().map(|word| word.load(Relaxed))
    }

    /// What `rank` said with `step` that all ranks have to say alike.
    pub(crate) fn common(&self, rank: usize, step: u64) -> [u64; 2] {
        let record = self.record(rank, step);
        std::array::from_fn(|index| record[COMMON + index].load(Relaxed))
    }

    /// The `length` bytes that `rank` says with `step`.
    pub(crate) fn payload(&self, rank: usize, step: u64, length: usize) -> Source {
        self.payload_memory(rank, step, length).0
    }

    fn payload_memory(&self, rank: usize, step: u64, length: usize) -> (Source, Target) {
        if length <= SHORT {
            self.segment.memory_of_words(self.start_of(rank, step) + IN_LINE, length)
        } else {
            self.segment.memory(payload_of(rank, step), length)
        }
    }

    /// The `length` bytes from `at` on, of the [`STAGE`] that `rank` stages for `step`.
    pub(crate) fn staged(&self, rank: usize, step: u64, at: usize, length: usize) -> (Source, Target) {
        assert!(at <= STAGE && length <= STAGE - at, "{length} bytes at {at} of a stage");
        self.segment.memory(self.stage(rank, step) + at, length)
    }

    fn stage(&self, rank: usize, step: u64) -> usize {
        let slot = rank * STAGES as usize + (step % STAGES) as usize;
        payload_of(self.ranks(), 0) + slot * STAGE
    }

    /// Gives back the memory of what `rank` says along and stages. It comes back when it is used.
    pub(crate) fn give_back(&self, rank: usize) {
        self.temporary(rank).into_iter().for_each(|(at, length)| self.segment.release(at, length));
    }

    /// How many bytes of memory `rank` takes: what can be given back, and the rest.
    pub(crate) fn memory(&self, rank: usize) -> (usize, usize) {
        let temporary = self.temporary(rank).map(|(at, length)| self.segment.resident(at, length));
        let rings = self.ranks() * self.ring;
        let first = self.mailbox(rank, 0).ring;
        let words = CONTROL + self.ranks() * MAILBOX;
        (temporary.iter().sum(), self.segment.resident(first, rings) + words * size_of::<u64>())
    }

    /// Where and how long `rank`'s payloads and stages are.
    fn temporary(&self, rank: usize) -> [(usize, usize); 2] {
        [(payload_of(rank, 0), SLOTS as usize * PAYLOAD), (self.stage(rank, 0), STAGES as usize * STAGE)]
    }

    /// Waits until all ranks have announced `step`.
    pub(crate) async fn all(&self, rank: usize, step: u64) -> Result {
        self.wait_for(rank, step, 0..self.ranks()).await
    }

    /// Waits until these ranks have.
    pub(crate) async fn wait_for(&self, rank: usize, step: u64, ranks: Range<usize>) -> Result {
        // Each begins with its neighbour, not all with the same.
        let (before, after) = (ranks.start..ranks.end.min(rank), ranks.start.max(rank + 1)..ranks.end);
        let all = before.len() + after.len() + 1 == self.ranks();
        for others in [after, before] {
            for other in others {
                let said = self.said(other, step);
                let has_said = || said.load(Acquire) >= step;
                if !executor::spin(has_said) {
                    self.wait(other, has_said).await?;
                }
            }
        }
        if all {
            self.control(rank, HEARD).store(step, Relaxed);
        }
        Ok(())
    }

    /// How often `from` has raised a signal at `to`, and how often that has been waited for.
    pub(crate) fn signal(&self, from: usize, to: usize, signal: usize) -> (&AtomicU64, &AtomicU64) {
        assert!(signal < SIGNALS, "signal {signal} of {SIGNALS}");
        let start = self.pair(from, to);
        (self.segment.word(start + RAISED + signal), self.segment.word(start + TAKEN + signal))
    }

    /// The way from one rank to another.
    pub(crate) fn mailbox(&self, from: usize, to: usize) -> Mailbox<'_> {
        let start = self.pair(from, to);
        Mailbox {
            written: self.segment.word(start + WRITTEN),
            read: self.segment.word(start + READ),
            refused: std::array::from_fn(|word| self.segment.word(start + REFUSED + word)),
            ring: self.stage(self.ranks(), 0) + (from * self.ranks() + to) * self.ring,
            size: self.ring,
        }
    }

    /// Says that `rank` is about to use memory of other ranks' callers, until the result is dropped; an error if it
    /// must not any more.
    ///
    /// In one order for all ranks: a rank says so and then looks for bad news, and one that gives up lets the bad
    /// news out and then looks whether it is touched. One of the two sees the other.
    pub(crate) fn touch(&self, rank: usize) -> Result<Touch<'_>> {
        let touch = Touch(self.control(rank, TOUCHING));
        touch.0.fetch_add(1, Relaxed);
        fence(SeqCst);
        self.alarmed()?;
        Ok(touch)
    }

    /// Ends an operation of `rank` that has failed after the others were told where its memory is: waits until none
    /// of them uses that any more, for the caller may do with it what it wants after this.
    pub(crate) async fn retreat(&self, rank: usize) {
        self.alarm(rank, Alarm::Failed);
        fence(SeqCst);
        for other in (0..self.ranks()).filter(|other| *other != rank) {
            let touching = self.control(other, TOUCHING);
            let mut looked = Instant::now();
            poll_fn(|_| {
                if touching.load(Acquire) == 0 {
                    return Poll::Ready(());
                }
                if looked.elapsed() >= RETREAT {
                    looked = Instant::now();
                    if self.processes[other].ended() {
                        return Poll::Ready(());
                    }
                }
                Poll::Pending
            })
            .await;
        }
    }

    /// Waits until `done`, which needs something of `rank`.
    pub(crate) async fn wait(&self, rank: usize, mut done: impl FnMut() -> bool) -> Result {
        if done() {
            return Ok(());
        }
        poll_fn(|_| {
            if !done() {
                let Err(failure) = self.health(rank) else { return Poll::Pending };
                // It may have happened just before the bad news.
                if !done() {
                    return Poll::Ready(Err(failure));
                }
            }
            executor::progress();
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Whether it makes sense to wait for `rank`.
    pub(crate) fn health(&self, rank: usize) -> Result {
        self.alarmed()?;
        if self.control(rank, LEFT).load(Acquire) != 0 {
            return Err(Failure::remote(format!(
                "rank {rank} has left: its communicator was finalized or destroyed"
            )));
        }
        Ok(())
    }

    /// Whether `rank` can still do something, whatever the others did.
    pub(crate) fn lives(&self, rank: usize) -> Result {
        if self.control(rank, LEFT).load(Acquire) != 0 {
            return Err(Failure::remote(format!("rank {rank} has left: its communicator is gone")));
        }
        let process = &self.processes[rank];
        if process.pid != u64::from(std::process::id()) && process.ended() {
            return Err(Failure::remote(format!("rank {rank} died: its process has ended")));
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
            reason if reason == Alarm::Revoked as u64 => "revoked the communicator",
            reason if reason == Alarm::Shrunk as u64 => "shrank the communicator with NCCL_SHRINK_ABORT",
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
        let mut last = None;
        for (rank, process) in self.processes.iter().enumerate() {
            // Ranks are often threads of one process: one look serves them all.
            let looked_at = process.pid == own || last == Some(process);
            last = Some(process);
            let left = || self.control(rank, LEFT).load(Acquire) != 0;
            // It may leave and end while this looks.
            if !looked_at && !left() && process.ended() && !left() {
                self.alarm(rank, Alarm::Died);
            }
        }
    }

    fn control(&self, rank: usize, word: usize) -> &AtomicU64 {
        assert!(rank < self.ranks(), "rank {rank} of {}", self.ranks());
        self.segment.word(HEADER + rank * CONTROL + word)
    }

    fn said(&self, rank: usize, step: u64) -> &AtomicU64 {
        &self.record(rank, step)[SAID]
    }

    /// What `rank` says of a step.
    fn record(&self, rank: usize, step: u64) -> &[AtomicU64; IN_LINE] {
        self.segment.words(self.start_of(rank, step))
    }

    /// The rest of it, if the rank says that much.
    fn record_of_own(&self, rank: usize, step: u64) -> &[AtomicU64; OWN] {
        self.segment.words(self.start_of(rank, step) + OF_OWN)
    }

    /// Where in the segment's words it begins.
    fn start_of(&self, rank: usize, step: u64) -> usize {
        assert!(rank < self.ranks(), "rank {rank} of {}", self.ranks());
        HEADER + rank * CONTROL + RECORDS + (step % SLOTS) as usize * RECORD
    }

    fn pair(&self, from: usize, to: usize) -> usize {
        assert!(from < self.ranks() && to < self.ranks(), "ranks {from} and {to} of {}", self.ranks());
        HEADER + self.ranks() * CONTROL + (from * self.ranks() + to) * MAILBOX
    }
}

/// Where in the segment's bytes a rank's payload of a step begins.
fn payload_of(rank: usize, step: u64) -> usize {
    (rank * SLOTS as usize + (step % SLOTS) as usize) * PAYLOAD
}

/// The segment's words and bytes, and the bytes of a mailbox's ring, for so many ranks.
fn layout(ranks: usize) -> (usize, usize, usize) {
    let pairs = ranks * ranks;
    // Memory is only taken once it is used, but the more ranks, the more of it is.
    let ring = if TINY { 64 } else { ((256 << 20) / pairs).clamp(4 << 10, 64 << 10) & !0xfff };
    let words = HEADER + ranks * CONTROL + pairs * MAILBOX;
    (words, ranks * (SLOTS as usize * PAYLOAD + STAGES as usize * STAGE) + pairs * ring, ring)
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
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn world(ranks: usize) -> World {
        World::create(&vec![Process::current().unwrap(); ranks]).unwrap().0
    }

    fn next_step(world: &World, rank: usize) -> u64 {
        let mut step = pin!(world.next_step(rank));
        let Poll::Ready(step) = step.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("rank {rank} has to wait for its next step")
        };
        step.unwrap()
    }

    #[test]
    fn nothing_overlaps() {
        let world = world(3);
        let mut words = vec![];
        let mut places = vec![];
        for rank in 0..3 {
            words.extend([world.control(rank, LEFT), world.control(rank, STEP)]);
            for step in 0..SLOTS {
                words.extend(world.record(rank, step));
                words.extend(
                    (IN_LINE..LINE).map(|word| world.segment.word(world.start_of(rank, step) + word)),
                );
                words.extend(world.record_of_own(rank, step));
                places.push((payload_of(rank, step), PAYLOAD));
            }
            places.extend((0..STAGES).map(|step| (world.stage(rank, step), STAGE)));
            for to in 0..3 {
                let mailbox = world.mailbox(rank, to);
                words.extend([mailbox.written, mailbox.read]);
                words.extend(mailbox.refused);
                words.extend((0..SIGNALS).flat_map(|signal| {
                    let (raised, taken) = world.signal(rank, to, signal);
                    [raised, taken]
                }));
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
    fn what_a_rank_says_arrives() {
        let world = world(2);
        for length in [0, 1, 8, SHORT, SHORT + 1, PAYLOAD] {
            let payload: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
            let (common, own) = ([7, length as u64], std::array::from_fn(|index| index as u64));
            let step = next_step(&world, 1);
            world.say(1, step, common, &payload, Some(own));
            assert_eq!(world.said(1, step).load(Relaxed), step);
            assert_eq!((world.common(1, step), world.own(1, step)), (common, own));
            assert_eq!(world.payload(1, step, length).bytes(0, length), payload);
        }
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
    fn a_rank_that_retreats_waits_until_nobody_touches_it() {
        use std::sync::atomic::AtomicBool;

        let world = world(2);
        let done = AtomicBool::new(false);
        let touch = world.touch(1).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let retreat = async {
                    world.retreat(0).await;
                    Ok(())
                };
                executor::run_one(retreat, 2, || ()).unwrap();
                assert!(done.load(Acquire), "touched");
            });
            while world.alarmed().is_ok() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(5));
            done.store(true, Release);
            drop(touch);
        });
        assert!(world.touch(1).is_err(), "too late to begin");
    }

    #[test]
    fn the_largest_world_can_be_laid_out() {
        let (words, bytes, ring) = layout(MAX_RANKS);
        assert!(ring >= 4096 && words * 8 + bytes < 8 << 30);
    }
}
