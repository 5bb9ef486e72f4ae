use std::panic::Location;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};

use super::clock::{Clock, halves, ticks};
use libnccl::observer::CallWord;
use libnccl::observer::OperationStart;

/// The last operations of one communicator.
///
/// One thread at a time writes, and any number of threads read meanwhile. The writer stores the number of an operation in `begun`
/// before it overwrites a slot, and in `done` afterwards. A reader loads `done`, reads the slots, then loads `begun`, and drops
/// the slots that may have been overwritten. All words are atomics, so there is no data race.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The number of the operation that was begun last.
    begun: AtomicU64,
    /// The number of the last operation before recording began.
    start: AtomicU64,
    /// The number of slots, a power of two, minus one.
    mask: usize,
    slots: Box<[Slot]>,
    /// The number of the last operation that is complete in the ring.
    done: AtomicU64,
    /// The number of the last operation whose call or group has returned.
    ended: AtomicU64,
    /// The number of point-to-point operations. It changes only between the stores to `begun` and `done`.
    messages: AtomicU64,
    clock: Clock,
}

/// The bit of a failed operation. The processor's counter does not reach it.
const FAILED: u64 = 1 << 63;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot {
    call: AtomicU64,
    sent: AtomicUsize,
    received: AtomicUsize,
    stream: AtomicUsize,
    /// The call site; null if it is unknown.
    site: AtomicPtr<Location<'static>>,
    /// The lower and the upper half of the counter at the call.
    queued: [AtomicU32; 2],
    /// The counter at completion. A value before `queued` is from the slot's previous operation. For a failed operation, `queued`
    /// with the bit [`FAILED`].
    completed: AtomicU64,
}

/// An operation that was read from the ring. Times are nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct Read {
    pub(super) number: u64,
    /// The number among the point-to-point operations or the collectives; `None` if the writer did not pause during a read.
    pub(super) own_number: Option<u64>,
    pub(super) call: CallWord,
    pub(super) elements: [u64; 2],
    pub(super) stream: usize,
    pub(super) site: Option<&'static Location<'static>>,
    pub(super) queued: u64,
    pub(super) completed: Option<u64>,
    pub(super) has_failed: bool,
    /// Set if its call or group has not returned.
    pub(super) is_inside: bool,
}

impl Ring {
    /// The maximum number of entries, which take 64 MiB.
    const MAX: usize = 1 << 20;

    /// Creates a ring. Rounds `entries`, at most [`Self::MAX`], up to a power of two.
    pub(crate) fn new(entries: usize) -> Self {
        let entries = entries.clamp(1, Self::MAX).next_power_of_two();
        let [begun, start, done, ended, messages] = [(); 5].map(|()| AtomicU64::new(0));
        let slots = (0..entries).map(|_| Slot::default()).collect();
        Self { begun, start, mask: entries - 1, slots, done, ended, messages, clock: Clock::new() }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of the last operation, 0 if there is none.
    pub(crate) fn last(&self) -> u64 {
        self.done.load(Acquire)
    }

    /// Returns whether the call or group of a recorded operation has not returned yet.
    pub(crate) fn is_inside(&self) -> bool {
        self.ended.load(Acquire) < self.last()
    }

    #[inline(always)]
    fn slot(&self, number: u64) -> &Slot {
        // SAFETY: there is a slot for each number up to the mask.
        unsafe { self.slots.get_unchecked(number as usize & self.mask) }
    }

    /// Records an operation, which gets the next number. Only one thread at a time may call this.
    #[inline]
    pub(crate) fn push(&self, operation: &OperationStart<'_>) {
        let (number, call, site) = (operation.number(), operation.call(), operation.site());
        if self.begun.load(Relaxed) == 0 {
            // The communicator may have had operations before it was observed.
            self.start.store(number.saturating_sub(1), Relaxed);
        }
        self.begun.store(number, Relaxed);
        // A thread that reads one of the following values also sees the value above.
        fence(Release);
        if call.is_point_to_point() {
            self.messages.store(self.messages.load(Relaxed) + 1, Relaxed);
        }
        let slot = self.slot(number);
        slot.call.store(call.0, Relaxed);
        slot.sent.store(operation.sent(), Relaxed);
        slot.received.store(operation.received(), Relaxed);
        slot.stream.store(operation.stream(), Relaxed);
        slot.site.store(site.map_or(ptr::null_mut(), |site| ptr::from_ref(site).cast_mut()), Relaxed);
        let [lower, upper] = halves();
        slot.queued[0].store(lower, Relaxed);
        slot.queued[1].store(upper, Relaxed);
        self.done.store(number, Release);
    }

    /// Records that the calls of operations have returned. Only one thread at a time may call this.
    #[inline]
    pub(crate) fn end(&self, [first, last]: [u64; 2], has_failed: bool) {
        if has_failed {
            self.fail(first, last);
        } else {
            self.ended.store(last, Release);
        }
    }

    #[cold]
    fn fail(&self, first: u64, last: u64) {
        for number in self.oldest(last).max(first)..=last {
            let slot = self.slot(number);
            slot.completed.store(FAILED | slot.queued(), Relaxed);
        }
        self.ended.store(last, Release);
    }

    /// Records that all operations on a stream up to the last are complete. Only one thread at a time may call this.
    #[cold]
    pub(crate) fn complete(&self, stream: usize) {
        let (now, last) = (ticks(), self.last());
        for slot in (self.oldest(last)..=last).rev().map(|number| self.slot(number)) {
            if slot.stream.load(Relaxed) != stream {
                continue;
            }
            if slot.completed().is_some() {
                break;
            }
            slot.completed.store(now, Relaxed);
        }
    }

    /// Returns the number of the oldest operation that still has a slot.
    fn oldest(&self, last: u64) -> u64 {
        last.saturating_sub(self.slots.len() as u64).max(self.start.load(Relaxed)) + 1
    }

    /// Returns the operations that the ring still has, the oldest first.
    pub(super) fn read(&self) -> Vec<Read> {
        // Read before the rest, so that no operation that begins later is taken for ended.
        let ended = self.ended.load(Acquire);
        let (last, messages) = self.done_and_messages();
        if last == 0 {
            // The first operation may be in progress, and with it the number before it.
            return Vec::new();
        }
        let mut read: Vec<_> =
            (self.oldest(last)..=last).map(|number| self.slot(number).read(number, ended)).collect();
        fence(Acquire);
        let oldest = self.oldest(self.begun.load(Relaxed));
        read.retain(|read| read.number >= oldest);
        // The numbers among messages and among collectives are counted back from the last.
        let collectives = last.saturating_sub(self.start.load(Relaxed));
        let mut own_numbers = messages.map(|messages| [collectives.saturating_sub(messages), messages]);
        let scale = self.clock.scale();
        for read in read.iter_mut().rev() {
            let is_message = read.call.is_point_to_point();
            read.own_number = own_numbers.map(|numbers| numbers[usize::from(is_message)]);
            own_numbers.iter_mut().for_each(|numbers| {
                let number = &mut numbers[usize::from(is_message)];
                *number = number.saturating_sub(1);
            });
            read.queued = scale.time(read.queued);
            read.completed = read.completed.map(|completed| scale.time(completed));
        }
        read
    }

    /// Returns the number of the last operation and, if it can be determined, the number of point-to-point operations up to it.
    fn done_and_messages(&self) -> (u64, Option<u64>) {
        const TRIES: usize = 1000;
        for _ in 0..TRIES {
            let (done, messages) = (self.done.load(Acquire), self.messages.load(Relaxed));
            fence(Acquire);
            if self.begun.load(Relaxed) == done {
                return (done, Some(messages));
            }
            std::thread::yield_now();
        }
        (self.done.load(Acquire), None)
    }
}

impl Slot {
    fn queued(&self) -> u64 {
        let [lower, upper] = [0, 1].map(|half: usize| u64::from(self.queued[half].load(Relaxed)));
        upper << 32 | lower
    }

    fn completed(&self) -> Option<u64> {
        let completed = self.completed.load(Relaxed);
        (completed >= self.queued() && completed & FAILED == 0).then_some(completed)
    }

    fn has_failed(&self) -> bool {
        self.completed.load(Relaxed) == FAILED | self.queued()
    }

    fn read(&self, number: u64, ended: u64) -> Read {
        let site = self.site.load(Relaxed).cast_const();
        Read {
            number,
            own_number: None,
            call: CallWord(self.call.load(Relaxed)),
            elements: [&self.sent, &self.received].map(|length| length.load(Relaxed) as u64),
            stream: self.stream.load(Relaxed),
            // SAFETY: null, or one of the `'static` references that were stored there.
            site: unsafe { site.as_ref() },
            queued: self.queued(),
            completed: self.completed(),
            has_failed: self.has_failed(),
            is_inside: number > ended,
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/ring.rs"]
mod tests;
