use std::panic::Location;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, fence};

use super::clock::{Clock, ticks};
use super::entry::Call;

/// The last operations of one communicator.
///
/// One thread at a time writes, and any number read meanwhile. Each slot is a seqlock: its stamp belongs to its operation
/// alone, and is [`WRITING`] while the others of its words change. A reader that sees the same stamp before and after it has
/// read them has read those of one operation. All words are atomics, so that there is no data race.
#[derive(Debug)]
pub(crate) struct Ring {
    /// As many as a power of two, and at least one.
    slots: Box<[Slot]>,
    /// The stamp of the last operation: its number, and above [`NUMBER_BITS`] how many were withdrawn before, as the number
    /// of such a one is given again.
    last: AtomicU64,
    /// The number of messages among them. It changes only while the stamp of the slot after the last operation is
    /// [`WRITING`].
    messages: AtomicU64,
    clock: Clock,
}

/// The stamp of a slot whose other words change. That of one that was never used is 0.
const WRITING: u64 = u64::MAX;

/// As many that no communicator has more operations.
const NUMBER_BITS: u32 = 40;

/// Returns the number in a stamp.
fn number(stamp: u64) -> u64 {
    stamp & ((1 << NUMBER_BITS) - 1)
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot {
    stamp: AtomicU64,
    call: AtomicU64,
    first_length: AtomicUsize,
    second_length: AtomicUsize,
    stream: AtomicUsize,
    site: AtomicPtr<Location<'static>>,
    queued: AtomicU64,
    /// 0 if it is not known.
    completed: AtomicU64,
}

/// An operation that was read from the ring. Times are nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct Read {
    pub(super) number: u64,
    /// The number among the messages, or among the collectives; unknown if the writer was in the way for too long.
    pub(super) own_number: Option<u64>,
    pub(super) call: Call,
    pub(super) lengths: [u64; 2],
    pub(super) stream: usize,
    pub(super) site: Option<&'static Location<'static>>,
    pub(super) queued: u64,
    pub(super) completed: Option<u64>,
}

impl Ring {
    /// The largest number of entries: 64 MiB.
    const MAX: usize = 1 << 20;

    /// Creates a ring of at least so many entries, up to a million.
    pub(crate) fn new(entries: usize) -> Self {
        let entries = entries.clamp(1, Self::MAX).next_power_of_two();
        Self {
            slots: (0..entries).map(|_| Slot::default()).collect(),
            last: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            clock: Clock::new(),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of operations so far, which is that of the last one.
    pub(crate) fn count(&self) -> u64 {
        number(self.last.load(Acquire))
    }

    #[inline(always)]
    fn slot(&self, stamp_or_number: u64) -> &Slot {
        // SAFETY: the length is a power of two, and no more than the numbers, so that the mask leaves an index below it.
        unsafe { self.slots.get_unchecked(stamp_or_number as usize & (self.slots.len() - 1)) }
    }

    /// Records an operation. One thread at a time may call this.
    #[inline(always)]
    pub(crate) fn push<const IS_MESSAGE: bool>(
        &self,
        call: u64,
        [first, second]: [usize; 2],
        stream: usize,
        site: &'static Location<'static>,
    ) {
        let stamp = self.last.load(Relaxed).wrapping_add(1);
        let slot = self.slot(stamp);
        slot.stamp.store(WRITING, Relaxed);
        // Whoever reads one of the following values sees the stamp above.
        fence(Release);
        if IS_MESSAGE {
            self.messages.store(self.messages.load(Relaxed) + 1, Relaxed);
        }
        slot.call.store(call, Relaxed);
        slot.first_length.store(first, Relaxed);
        slot.second_length.store(second, Relaxed);
        slot.stream.store(stream, Relaxed);
        slot.site.store(ptr::from_ref(site).cast_mut(), Relaxed);
        slot.queued.store(ticks(), Relaxed);
        slot.completed.store(0, Relaxed);
        slot.stamp.store(stamp, Release);
        self.last.store(stamp, Release);
    }

    /// Takes back the last operation, which was refused. One thread at a time may write.
    #[cold]
    pub(crate) fn withdraw(&self, is_message: bool) {
        let stamp = self.last.load(Relaxed);
        let slot = self.slot(stamp);
        slot.stamp.store(WRITING, Relaxed);
        fence(Release);
        if is_message {
            self.messages.store(self.messages.load(Relaxed) - 1, Relaxed);
        }
        self.last.store(stamp.wrapping_sub(1).wrapping_add(1 << NUMBER_BITS), Release);
        slot.stamp.store(0, Release);
    }

    /// Records that the operations on a stream are complete, up to the last one. One thread at a time may write.
    #[cold]
    pub(crate) fn complete(&self, stream: usize) {
        let (now, last) = (ticks(), number(self.last.load(Relaxed)));
        let oldest = last.saturating_sub(self.slots.len() as u64) + 1;
        for slot in (oldest..=last).rev().map(|number| self.slot(number)) {
            if slot.stream.load(Relaxed) != stream {
                continue;
            }
            if slot.completed.load(Relaxed) != 0 {
                break;
            }
            slot.completed.store(now, Relaxed);
        }
    }

    /// Returns the operations that the ring still has, the oldest first.
    pub(super) fn read(&self) -> Vec<Read> {
        let (last, messages) = self.counts();
        let scale = self.clock.scale();
        let oldest = last.saturating_sub(self.slots.len() as u64) + 1;
        // The numbers among messages and among collectives are counted back from the last.
        let mut own_numbers = messages.map(|messages| [last - messages, messages]);
        let mut read = Vec::with_capacity((last + 1 - oldest) as usize);
        for at in (oldest..=last).rev() {
            // Those that the writer has replaced meanwhile are the oldest.
            let Some(mut found) = self.read_slot(at) else { break };
            let is_message = found.call.method().is_some_and(|method| method.is_message());
            found.own_number = own_numbers.map(|numbers| numbers[usize::from(is_message)]);
            if let Some(numbers) = &mut own_numbers {
                let own = &mut numbers[usize::from(is_message)];
                *own = own.saturating_sub(1);
            }
            found.queued = scale.time(found.queued);
            found.completed = found.completed.map(|completed| scale.time(completed));
            read.push(found);
        }
        read.reverse();
        read
    }

    /// Returns the number of operations, and of messages among them as far as that can be known at this time.
    fn counts(&self) -> (u64, Option<u64>) {
        const TRIES: usize = 1000;
        let mut last = self.last.load(Acquire);
        for _ in 0..TRIES {
            let following = last.wrapping_add(1);
            let next = self.slot(following);
            let before = next.stamp.load(Acquire);
            let messages = self.messages.load(Relaxed);
            fence(Acquire);
            let (after, again) = (next.stamp.load(Relaxed), self.last.load(Acquire));
            if again == last && before == after && ![WRITING, following].contains(&before) {
                return (number(last), Some(messages));
            }
            last = again;
            std::thread::yield_now();
        }
        (number(last), None)
    }

    fn read_slot(&self, wanted: u64) -> Option<Read> {
        let slot = self.slot(wanted);
        let stamp = slot.stamp.load(Acquire);
        if stamp == WRITING || number(stamp) != wanted {
            return None;
        }
        let site = slot.site.load(Relaxed);
        let read = Read {
            number: wanted,
            own_number: None,
            call: Call(slot.call.load(Relaxed)),
            lengths: [&slot.first_length, &slot.second_length].map(|length| length.load(Relaxed) as u64),
            stream: slot.stream.load(Relaxed),
            // SAFETY: null, or one of the `'static` references that were stored there.
            site: unsafe { site.cast_const().as_ref() },
            queued: slot.queued.load(Relaxed),
            completed: Some(slot.completed.load(Relaxed)).filter(|ticks| *ticks != 0),
        };
        fence(Acquire);
        (slot.stamp.load(Relaxed) == stamp).then_some(read)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::Location;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;
    use std::thread;

    use super::Ring;
    use crate::recorder::method::Method;

    const SEND: u64 = Method::of("send").bits();
    const SUM: u64 = Method::of("all_reduce").bits();

    fn numbers(ring: &Ring) -> Vec<(u64, Option<u64>)> {
        ring.read().iter().map(|read| (read.number, read.own_number)).collect()
    }

    #[test]
    fn last_operations_are_kept_with_their_numbers() {
        let ring = Ring::new(3);
        assert_eq!(ring.capacity(), 4);
        assert!(ring.read().is_empty());
        ring.push::<false>(SUM, [1, 1], 0, Location::caller());
        ring.push::<true>(SEND, [2, 0], 0, Location::caller());
        assert_eq!(numbers(&ring), [(1, Some(1)), (2, Some(1))]);
        for _ in 0..4 {
            ring.push::<false>(SUM, [3, 3], 0, Location::caller());
        }
        ring.push::<true>(SEND, [4, 0], 0, Location::caller());
        assert_eq!(numbers(&ring), [(4, Some(3)), (5, Some(4)), (6, Some(5)), (7, Some(2))]);
        assert_eq!(ring.read()[3].site.unwrap().file(), file!());
    }

    #[test]
    fn operation_that_was_withdrawn_leaves_no_trace() {
        let ring = Ring::new(2);
        ring.push::<false>(SUM, [1, 1], 0, Location::caller());
        ring.push::<true>(SEND, [2, 0], 0, Location::caller());
        ring.withdraw(true);
        assert_eq!(numbers(&ring), [(1, Some(1))]);
        ring.push::<false>(SUM, [5, 5], 0, Location::caller());
        assert_eq!(numbers(&ring), [(1, Some(1)), (2, Some(2))]);
        assert_eq!(ring.read()[1].lengths, [5, 5]);
    }

    #[test]
    fn operations_of_a_stream_that_is_done_are_complete() {
        let ring = Ring::new(8);
        for stream in [1, 2, 1] {
            ring.push::<false>(SUM, [1, 1], stream, Location::caller());
        }
        ring.complete(1);
        ring.push::<false>(SUM, [1, 1], 1, Location::caller());
        let read = ring.read();
        assert_eq!(read.iter().map(|read| read.completed.is_some()).collect::<Vec<_>>(), [true, false, true, false]);
        assert!(read.iter().all(|read| read.completed.is_none_or(|completed| completed >= read.queued)));
    }

    /// Fails if a reader ever sees words of two operations as one, or a wrong number.
    #[test]
    fn concurrent_readers_see_whole_operations_with_their_numbers() {
        const OPERATIONS: usize = 300_000;
        let (ring, is_over) = (Ring::new(8), AtomicBool::new(false));
        thread::scope(|scope| {
            let readers = [(); 2].map(|()| {
                scope.spawn(|| {
                    let mut seen = 0;
                    while !is_over.load(Relaxed) || seen == 0 {
                        for read in ring.read() {
                            let length = read.number as usize;
                            assert_eq!(read.lengths, [length as u64, 3 * length as u64]);
                            assert_eq!((read.stream, read.call.0), (7 * length, [SUM, SEND][length % 2]));
                            // Every second one is a message, the first among them.
                            let own = if length % 2 == 1 { length.div_ceil(2) } else { length / 2 };
                            assert!(read.own_number.is_none_or(|number| number == own as u64), "{read:?}");
                            seen += 1;
                        }
                    }
                    seen
                })
            });
            for number in 1..=OPERATIONS {
                let call = [number, 3 * number];
                // One that is refused now and then.
                if number % 64 == 0 {
                    ring.push::<true>(SEND, [0, 0], 0, Location::caller());
                    ring.withdraw(true);
                }
                match number % 2 {
                    1 => ring.push::<true>(SEND, call, 7 * number, Location::caller()),
                    _ => ring.push::<false>(SUM, call, 7 * number, Location::caller()),
                }
            }
            is_over.store(true, Relaxed);
            assert!(readers.map(|reader| reader.join().unwrap()).iter().all(|seen| *seen > 0));
        });
    }
}
