//! The state shared by the ranks of a communicator, and the steps in which the ranks synchronize.
//!
//! Operations that involve several ranks consist of steps: a rank publishes a record, announces the step, and waits until the
//! ranks that it depends on, nearly always all ranks, have announced it. Every word except the abort flag has one writer. A
//! record stays valid until its slot is reused, [`SLOTS`] steps later, so no acknowledgment is needed.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use crate::diag::error::Result;
use crate::shm::buffer::{ReadBuf, WriteBuf};
use crate::shm::layout::{
    CALL_ARGS, CALLS, COUNTED, DEVICE, FAILED_CALL, FAILURE, FAILURE_MAX, IDENTITY, IN_GROUP, INLINE,
    INLINE_MAX, LAST_CALL, LAST_EMPTY_CALL, LAUNCHED, LINE, Layout, NONCE, PROCESS, PROGRAM, PUBLISHED,
    RANK_ARGS, RANK_WORDS, SEEN, SLOTS, STAGE, STEP,
};
use crate::shm::process::Process;
use crate::shm::segment::Segment;
use crate::sync::lock;
use crate::sync::primitive::{AtomicU64, fence};
use crate::sync::{backoff, thread_number};

/// Set in a rank's last call while the call runs, in a byte that is unused in the header of every call.
const CALL_RUNS: u64 = 1 << 24;

/// The mask of the number of a rank's calls without elements, modulo 256: a byte of its last empty call and of its published
/// header.
pub(crate) const EMPTY_CALLS: u64 = 0xff << 24;
const ONE_EMPTY_CALL: u64 = 1 << 24;

/// The bits of the digest of calls in which a rank did not wait for all other ranks. They are unused in every header.
pub(crate) const UNAWAITED: u64 = 0xffff << 48;

pub(crate) const EARLIER_CALLS: u64 = EMPTY_CALLS | UNAWAITED;

static REGISTERED: Mutex<Vec<Weak<SharedState>>> = Mutex::new(Vec::new());

#[derive(Debug)]
pub(crate) struct SharedState {
    pub(super) segment: Segment,
    pub(super) layout: Layout,
    pub(super) processes: Vec<Process>,
    is_one_process: bool,
    /// The communicator's hash, and its name in reports.
    name: OnceLock<(u64, String)>,
    /// The thread that created the communicator of each rank of this process.
    makers: Mutex<Vec<Option<u64>>>,
    /// The last stream-enqueued collectives of each rank of this process.
    enqueued: Mutex<Vec<Option<Enqueued>>>,
}

#[derive(Debug, Clone, Copy)]
struct Enqueued {
    thread: u64,
    group: u64,
    calls: u64,
}

impl SharedState {
    /// Creates the shared state for `processes`, one per rank, and the file through which other processes open it.
    pub(crate) fn create(processes: &[Process]) -> Result<(Self, OwnedFd)> {
        let layout = Layout::new(processes.len())?;
        let (segment, file) = Segment::create(layout.words(), layout.bytes())?;
        let state = Self::new(segment, layout, processes.to_vec());
        for (rank, process) in processes.iter().enumerate() {
            state.control(rank)[PROCESS].store(process.pid, Relaxed);
            state.control(rank)[IDENTITY].store(process.identity, Relaxed);
        }
        Ok((state, file))
    }

    pub(crate) fn open(file: impl AsFd, ranks: usize) -> Result<Self> {
        let layout = Layout::new(ranks)?;
        let segment = Segment::open(file, layout.words(), layout.bytes())?;
        let word = |rank, word| segment.word(layout.control(rank, word)).load(Relaxed);
        let process = |rank| Process { pid: word(rank, PROCESS), identity: word(rank, IDENTITY) };
        let processes = (0..ranks).map(process).collect();
        Ok(Self::new(segment, layout, processes))
    }

    fn new(segment: Segment, layout: Layout, processes: Vec<Process>) -> Self {
        let is_one_process = processes.windows(2).all(|pair| pair[0] == pair[1]);
        let makers = Mutex::new(vec![None; processes.len()]);
        let state = Self {
            segment,
            layout,
            processes,
            is_one_process,
            makers,
            name: OnceLock::new(),
            enqueued: Mutex::default(),
        };
        if !is_one_process {
            state.publish_program();
        }
        state
    }

    /// Publishes the mark of this process's program for each of its ranks. No rank has joined before all processes have opened
    /// the state, so no process has executed another program since.
    fn publish_program(&self) {
        let own = u64::from(std::process::id());
        let ranks: Vec<usize> = (0..self.ranks()).filter(|rank| self.processes[*rank].pid == own).collect();
        let program = ranks.first().map_or(0, |rank| self.processes[*rank].program());
        ranks.into_iter().for_each(|rank| self.control(rank)[PROGRAM].store(program, Relaxed));
    }

    /// Sets this communicator's random number. Called before any other rank has the state.
    pub(crate) fn set_nonce(&self, nonce: [u8; 16]) {
        let number = u128::from_le_bytes(nonce);
        let [low, high] = self.segment.words(NONCE);
        low.store(number as u64, Relaxed);
        high.store((number >> 64) as u64, Relaxed);
    }

    pub(crate) fn nonce(&self) -> [u8; 16] {
        let [low, high] = self.segment.words(NONCE);
        (u128::from(low.load(Relaxed)) | u128::from(high.load(Relaxed)) << 64).to_le_bytes()
    }

    /// Sets the communicator's hash, and its name in reports, unless they are already set.
    pub(crate) fn set_name(&self, hash: u64, name: String) {
        let _ = self.name.set((hash, name));
    }

    pub(crate) fn hash(&self) -> u64 {
        self.name.get().map_or(0, |(hash, _)| *hash)
    }

    pub(crate) fn name(&self) -> &str {
        self.name.get().map_or("a communicator", |(_, name)| name)
    }

    pub(crate) fn register(self: &Arc<Self>) {
        let mut registered = lock(&REGISTERED);
        registered.retain(|state| state.strong_count() > 0);
        if !registered.iter().any(|state| state.as_ptr() == Arc::as_ptr(self)) {
            registered.push(Arc::downgrade(self));
        }
    }

    pub(crate) fn registered() -> Vec<Arc<Self>> {
        let registered = lock(&REGISTERED);
        registered.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn ranks(&self) -> usize {
        self.layout.ranks()
    }

    pub(crate) fn process(&self, rank: usize) -> Process {
        self.processes[rank]
    }

    pub(crate) fn is_one_process(&self) -> bool {
        self.is_one_process
    }

    /// Returns the number of `rank`'s next step once the slot of its record is free.
    pub(crate) async fn next_step(&self, rank: usize) -> Result<u64> {
        let control = self.control(rank);
        let step = control[STEP].load(Relaxed) + 1;
        // According to the steps that the rank has seen, the slot may still be used.
        if control[SEEN].load(Relaxed) + SLOTS <= step {
            self.wait_for_slot(rank, step).await?;
        }
        // Release: the rank has now read everything it needs from the other ranks' records of earlier steps. Ranks that sleep
        // until then are woken when the step is announced.
        control[STEP].store(step, Release);
        Ok(step)
    }

    /// Waits until the other ranks have ended the step whose slot `rank` reuses for `step`.
    async fn wait_for_slot(&self, rank: usize, step: u64) -> Result {
        let mut least = step;
        for other in (0..self.ranks()).filter(|other| *other != rank) {
            let begun = &self.control(other)[STEP];
            let is_near = || begun.load(Acquire) + SLOTS > step;
            if !backoff::spin(is_near) {
                self.wait(other, is_near).await?;
            }
            least = least.min(begun.load(Acquire));
        }
        // The other ranks may be further ahead than required, in which case the next steps need not check them.
        self.control(rank)[SEEN].store(least, Relaxed);
        Ok(())
    }

    /// Announces `step`, which makes all of the rank's writes for it visible.
    pub(crate) fn announce(&self, rank: usize, step: u64) {
        self.published(rank, step).store(step, Release);
        self.wake_waiting(rank);
    }

    /// Publishes a record and announces its step. The record contains arguments that all ranks must agree on, up to
    /// [`EAGER_MAX`](super::layout::EAGER_MAX) bytes of data, and rank-specific arguments.
    pub(crate) fn publish(
        &self,
        rank: usize,
        step: u64,
        call_args: [u64; 2],
        eager: &[u8],
        rank_args: Option<[u64; RANK_ARGS]>,
    ) {
        let record = self.record(rank, step);
        for (word, value) in record[CALL_ARGS..INLINE].iter().zip(call_args) {
            word.store(value, Relaxed);
        }
        if let Some(rank_args) = rank_args {
            for (word, value) in self.rank_args_words(rank, step).iter().zip(rank_args) {
                word.store(value, Relaxed);
            }
        }
        self.eager_memory(rank, step, eager.len()).write(0, eager);
        record[PUBLISHED].store(step, Release);
        self.wake_waiting(rank);
    }

    /// Returns the rank-specific arguments of `rank` for `step`, which it must have announced.
    pub(crate) fn rank_args(&self, rank: usize, step: u64) -> [u64; RANK_ARGS] {
        self.rank_args_words(rank, step).each_ref().map(|word| word.load(Relaxed))
    }

    /// Returns the arguments that all ranks must agree on, as published by `rank` with `step`.
    pub(crate) fn call_args(&self, rank: usize, step: u64) -> [u64; 2] {
        let record = self.record(rank, step);
        std::array::from_fn(|index| record[CALL_ARGS + index].load(Relaxed))
    }

    /// Returns the [`call_args`](Self::call_args) if `rank` has announced `step` and has not reused its slot.
    pub(crate) fn known_call_args(&self, rank: usize, step: u64) -> Option<[u64; 2]> {
        let is_known =
            || self.published(rank, step).load(Acquire) == step && self.begun_steps(rank) < step + SLOTS - 1;
        let call_args = is_known().then(|| self.call_args(rank, step));
        fence(Acquire);
        call_args.filter(|_| is_known())
    }

    /// Returns `true` if all of `ranks` published the call `own` of `rank` with `step`. `rank` must have waited for them. If
    /// `ranks` are all ranks, every rank gets the same result.
    pub(crate) fn all_made(&self, own: [u64; 2], rank: usize, step: u64, mut ranks: Range<usize>) -> bool {
        ranks.all(|other| other == rank || self.call_args(other, step) == own)
    }

    pub(crate) fn eager(&self, rank: usize, step: u64, length: usize) -> ReadBuf {
        self.eager_memory(rank, step, length).as_read()
    }

    #[inline]
    fn eager_memory(&self, rank: usize, step: u64, length: usize) -> WriteBuf {
        if length <= INLINE_MAX {
            self.segment.word_memory(self.layout.record(rank, step) + INLINE, length)
        } else {
            self.segment.memory(self.layout.eager(rank, step), length)
        }
    }

    /// Returns the number of bytes, including headers of sends, that fit into a mailbox.
    pub(crate) fn mailbox_size(&self) -> usize {
        self.layout.ring
    }

    pub(crate) fn staged(&self, rank: usize, step: u64, at: usize, length: usize) -> WriteBuf {
        assert!(at <= STAGE && length <= STAGE - at, "{length} bytes at {at} of a stage");
        self.segment.memory(self.layout.stage(rank, step) + at, length)
    }

    /// Releases the memory of `rank`'s eager and staging buffers to the kernel. The memory is allocated again when it is used.
    pub(crate) fn release_buffers(&self, rank: usize) {
        self.layout.buffers(rank).into_iter().for_each(|(at, length)| self.segment.release(at, length));
    }

    /// Returns the memory usage of `rank` in bytes: the part that [`release_buffers`](Self::release_buffers) can release, and the
    /// rest.
    pub(crate) fn memory_usage(&self, rank: usize) -> (usize, usize) {
        let buffers = self.layout.buffers(rank).map(|(at, length)| self.segment.resident(at, length));
        let rings = self.segment.resident(self.layout.ring_of(rank, 0), self.ranks() * self.layout.ring);
        (buffers.iter().sum(), rings + self.layout.words_of_rank() * size_of::<u64>())
    }

    pub(crate) async fn wait_all(&self, rank: usize, step: u64) -> Result {
        self.wait_for(rank, step, 0..self.ranks()).await
    }

    pub(crate) async fn wait_for(&self, rank: usize, step: u64, ranks: Range<usize>) -> Result {
        // Each rank begins with its neighbor, so that the ranks do not all poll the same one.
        let (mut other, mut awaited) = (rank, 0);
        for _ in 1..self.ranks() {
            other = if other + 1 == self.ranks() { 0 } else { other + 1 };
            if !ranks.contains(&other) {
                continue;
            }
            let published = self.published(other, step);
            let is_announced = || published.load(Acquire) >= step;
            if !backoff::spin(is_announced) {
                self.wait(other, is_announced).await?;
            }
            awaited += 1;
        }
        if awaited + 1 == self.ranks() {
            self.control(rank)[SEEN].store(step, Relaxed);
        }
        Ok(())
    }

    /// Returns how often `from` has raised a signal at `to`, and how often `to` has awaited it.
    pub(crate) fn signal(&self, from: usize, to: usize, signal: usize) -> (&AtomicU64, &AtomicU64) {
        let (raised, awaited) = self.layout.signal(from, to, signal);
        (self.segment.word(raised), self.segment.word(awaited))
    }

    /// Returns a window word of `rank`: the window's serial number, or 0 if it is not open.
    pub(super) fn window(&self, rank: usize, window: usize) -> &AtomicU64 {
        self.segment.word(self.layout.window(rank, window))
    }

    pub(crate) fn set_device(&self, rank: usize, device: i32) {
        // 0 means that no device is recorded.
        self.control(rank)[DEVICE].store(u64::from(device.unsigned_abs()) + 1, Relaxed);
    }

    pub(crate) fn device(&self, rank: usize) -> Option<u64> {
        self.control(rank)[DEVICE].load(Relaxed).checked_sub(1)
    }

    /// Returns the number of collectives of each function that `rank` has begun, indexed by function number, without calls
    /// of count 0.
    pub(crate) fn launched(&self, rank: usize) -> [u64; COUNTED] {
        let control = self.control(rank);
        std::array::from_fn(|function| control[LAUNCHED + function].load(Relaxed))
    }

    /// Records that `rank` has begun a call, for RAS and for the reports of ranks that wait for it. Returns the call's number,
    /// starting at 1.
    pub(crate) fn begin_call(&self, rank: usize, [head, count]: [u64; 2]) -> u64 {
        let control = self.control(rank);
        // Collectives have the lowest function numbers.
        let function = (head & 0xff) as usize;
        if function < COUNTED && count > 0 {
            let launched = &control[LAUNCHED + function];
            launched.store(launched.load(Relaxed) + 1, Relaxed);
        }
        let number = control[CALLS].load(Relaxed) + 1;
        control[CALLS].store(number, Relaxed);
        control[LAST_CALL + 1].store(count, Relaxed);
        control[LAST_CALL].store(head | CALL_RUNS, Relaxed);
        number
    }

    /// Records that `rank` has skipped a call without elements, for which nothing is published.
    pub(crate) fn note_empty_call(&self, rank: usize, head: u64) {
        let last = &self.control(rank)[LAST_EMPTY_CALL];
        let before = last.load(Relaxed);
        let number = (before & EMPTY_CALLS).wrapping_add(ONE_EMPTY_CALL) & EMPTY_CALLS;
        last.store(head | number | before & UNAWAITED, Relaxed);
    }

    /// Records that `rank` has made a call in which it does not compare its header with the headers of all other ranks. Later
    /// calls reveal whether all ranks made the same call: two calls that differ only in the root (the upper half of the head)
    /// never have the same digest.
    #[inline]
    pub(crate) fn note_unawaited_call(&self, rank: usize, [head, count]: [u64; 2]) {
        const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        let last = &self.control(rank)[LAST_EMPTY_CALL];
        let before = last.load(Relaxed);
        let others = (head << 32 ^ count).wrapping_mul(MULTIPLIER) >> 48;
        let digest = (before >> 48).wrapping_mul(5).wrapping_add((head >> 32) + others);
        last.store(before & !UNAWAITED | digest << 48, Relaxed);
    }

    /// Forgets the calls in which `rank` did not wait for all ranks: all ranks have detected that these calls differ.
    pub(crate) fn forget_unawaited_calls(&self, rank: usize) {
        let last = &self.control(rank)[LAST_EMPTY_CALL];
        last.store(last.load(Relaxed) & !UNAWAITED, Relaxed);
    }

    /// Returns the earlier calls that a rank publishes with its next call. The bits [`EARLIER_CALLS`] hold the number of its
    /// calls without elements and the digest of the calls in which it did not wait for all ranks. The other bits hold its last
    /// call without elements. If the rank makes another such call concurrently, that one is the last.
    pub(crate) fn earlier_calls(&self, rank: usize) -> u64 {
        self.control(rank)[LAST_EMPTY_CALL].load(Relaxed)
    }

    pub(crate) fn set_in_group(&self, rank: usize, is_in_group: bool) {
        self.control(rank)[IN_GROUP].store(is_in_group.into(), Relaxed);
    }

    pub(crate) fn is_in_group(&self, rank: usize) -> bool {
        self.control(rank)[IN_GROUP].load(Relaxed) != 0
    }

    /// Records that a call of `rank` has failed before other ranks could observe it.
    pub(crate) fn note_failed_call(&self, rank: usize, text: &str) {
        let control = self.control(rank);
        let end =
            (0..=FAILURE_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        let mut bytes = [0; FAILURE_MAX];
        bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
        for (word, bytes) in control[FAILURE..].iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_ne_bytes(*bytes), Relaxed);
        }
        control[FAILED_CALL].store(control[CALLS].load(Relaxed) + 1, Release);
    }

    pub(crate) fn failed_call(&self, rank: usize) -> Option<String> {
        let control = self.control(rank);
        if control[FAILED_CALL].load(Acquire) != control[CALLS].load(Relaxed) + 1 {
            return None;
        }
        let words = &control[FAILURE..][..FAILURE_MAX / size_of::<u64>()];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        // The text may have been written by another process.
        Some(String::from_utf8_lossy(text).replace(char::is_control, " "))
    }

    /// Records that this thread enqueues `calls` collectives of `rank` on streams, in its group with the number `group`. If the
    /// thread has already enqueued the first of these collectives for another rank in another group, returns that rank.
    pub(crate) fn note_enqueued(&self, rank: usize, group: u64, calls: u64) -> Option<usize> {
        let thread = thread_number();
        let mut enqueued = lock(&self.enqueued);
        enqueued.resize(self.ranks(), None);
        let before = enqueued[rank].map_or(0, |own| own.calls);
        enqueued[rank] = Some(Enqueued { thread, group, calls: before + calls });
        enqueued.iter().enumerate().position(|(other, enqueued)| {
            other != rank
                && enqueued.is_some_and(|other| {
                    other.thread == thread && other.group != group && other.calls > before
                })
        })
    }

    pub(crate) fn set_maker(&self, rank: usize) {
        lock(&self.makers)[rank] = Some(thread_number());
    }

    /// Returns `true` if one thread of this process created the communicators of both ranks.
    pub(crate) fn have_one_maker(&self, one: usize, two: usize) -> bool {
        let makers = lock(&self.makers);
        makers[one].is_some() && makers[one] == makers[two]
    }

    pub(crate) fn end_call(&self, rank: usize) {
        let head = &self.control(rank)[LAST_CALL];
        head.store(head.load(Relaxed) & !CALL_RUNS, Relaxed);
    }

    /// Returns the last call of `rank`, and whether it is running. If the rank begins another call concurrently, the two words
    /// may belong to different calls.
    pub(crate) fn last_call(&self, rank: usize) -> ([u64; 2], bool) {
        let control = self.control(rank);
        let [head, count] = [LAST_CALL, LAST_CALL + 1].map(|word| control[word].load(Relaxed));
        ([head & !CALL_RUNS, count], head & CALL_RUNS != 0)
    }

    pub(crate) fn calls(&self, rank: usize) -> u64 {
        self.control(rank)[CALLS].load(Relaxed)
    }

    pub(crate) fn begun_steps(&self, rank: usize) -> u64 {
        self.control(rank)[STEP].load(Relaxed)
    }

    /// Returns the ranks that have not begun the step that `rank` is in.
    pub(crate) fn ranks_behind(&self, rank: usize) -> Vec<usize> {
        let own = self.begun_steps(rank);
        (0..self.ranks()).filter(|other| self.begun_steps(*other) < own).collect()
    }

    pub(super) fn control(&self, rank: usize) -> &[AtomicU64; RANK_WORDS] {
        self.segment.words(self.layout.control(rank, 0))
    }

    fn published(&self, rank: usize, step: u64) -> &AtomicU64 {
        &self.record(rank, step)[PUBLISHED]
    }

    /// Returns the first words of `rank`'s record of a step. Inline data follows in the same cache line.
    fn record(&self, rank: usize, step: u64) -> &[AtomicU64; INLINE] {
        const { assert!(INLINE < LINE) };
        self.segment.words(self.layout.record(rank, step))
    }

    fn rank_args_words(&self, rank: usize, step: u64) -> &[AtomicU64; RANK_ARGS] {
        self.segment.words(self.layout.rank_args(rank, step))
    }
}
