use std::panic::Location;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};

use super::clock::{Clock, halves, ticks};
use super::entry::Call;

/// The last operations of one communicator.
///
/// One thread at a time writes, and any number read meanwhile. Before it writes an operation, the writer says which one it
/// begins, and so which one it overwrites; afterwards, that it is done. A reader looks first at what is done, reads, and then
/// looks at what has been begun: what that may have overwritten, it drops. All words are atomics, so that there is no data
/// race.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The stamp of the operation that was begun last: its number, and above [`NUMBER_BITS`] how many were withdrawn before,
    /// as the number of such a one is given again.
    begun: AtomicU64,
    /// The number of slots less one: as many as a power of two.
    mask: usize,
    slots: Box<[Slot]>,
    /// The stamp of the last operation that is there.
    done: AtomicU64,
    /// The number of messages among the operations; changes only while one is begun and not done.
    messages: AtomicU64,
    clock: Clock,
}

/// A bit that the processor's counter does not reach.
const FAILED: u64 = 1 << 63;

/// The call of an operation that was withdrawn, which no method has.
const WITHDRAWN: u64 = u64::MAX;

/// The bits of a number: no communicator has as many operations.
const NUMBER_BITS: u32 = 40;

/// Returns the number in a stamp.
fn number(stamp: u64) -> u64 {
    stamp & ((1 << NUMBER_BITS) - 1)
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot {
    call: AtomicU64,
    sent: AtomicUsize,
    received: AtomicUsize,
    stream: AtomicUsize,
    /// Null if it is not known.
    site: AtomicPtr<Location<'static>>,
    /// The lower and the upper half, as the processor returns them.
    queued: [AtomicU32; 2],
    /// A time before `queued` is that of an operation that was here before. One that has failed has [`FAILED`] and `queued`.
    completed: AtomicU64,
}

/// An operation that was read from the ring. Times are nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct Read {
    pub(super) number: u64,
    /// The number among the messages, or among the collectives; unknown if the writer was in the way for too long.
    pub(super) own_number: Option<u64>,
    pub(super) call: Call,
    pub(super) elements: [u64; 2],
    pub(super) stream: usize,
    pub(super) site: Option<&'static Location<'static>>,
    pub(super) queued: u64,
    pub(super) completed: Option<u64>,
    pub(super) has_failed: bool,
}

impl Ring {
    /// The largest number of entries: 64 MiB.
    const MAX: usize = 1 << 20;

    /// Creates a ring of at least so many entries, up to a million.
    pub(crate) fn new(entries: usize) -> Self {
        let entries = entries.clamp(1, Self::MAX).next_power_of_two();
        let [begun, done, messages] = [(); 3].map(|()| AtomicU64::new(0));
        let slots = (0..entries).map(|_| Slot::default()).collect();
        Self { begun, mask: entries - 1, slots, done, messages, clock: Clock::new() }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of operations so far, which is that of the last one.
    pub(crate) fn count(&self) -> u64 {
        number(self.done.load(Acquire))
    }

    #[inline(always)]
    fn slot(&self, stamp_or_number: u64) -> &Slot {
        // SAFETY: there is a slot for each number up to the mask.
        unsafe { self.slots.get_unchecked(stamp_or_number as usize & self.mask) }
    }

    /// Records an operation. One thread at a time may call this.
    #[inline(always)]
    pub(crate) fn push(
        &self,
        call: u64,
        [sent, received]: [usize; 2],
        stream: usize,
        site: impl Into<Option<&'static Location<'static>>>,
    ) {
        let stamp = self.begun.load(Relaxed).wrapping_add(1);
        self.begun.store(stamp, Relaxed);
        // Whoever reads one of the following values sees the one above.
        fence(Release);
        if Call(call).is_message() {
            self.messages.store(self.messages.load(Relaxed) + 1, Relaxed);
        }
        let slot = self.slot(stamp);
        slot.call.store(call, Relaxed);
        slot.sent.store(sent, Relaxed);
        slot.received.store(received, Relaxed);
        slot.stream.store(stream, Relaxed);
        slot.site.store(site.into().map_or(ptr::null_mut(), |site| ptr::from_ref(site).cast_mut()), Relaxed);
        let [lower, upper] = halves();
        slot.queued[0].store(lower, Relaxed);
        slot.queued[1].store(upper, Relaxed);
        self.done.store(stamp, Release);
    }

    /// Takes back the last operation, which was refused. One thread at a time may write.
    #[cold]
    pub(crate) fn withdraw(&self, is_message: bool) {
        let withdrawn = self.begun.load(Relaxed);
        let before = withdrawn.wrapping_sub(1).wrapping_add(1 << NUMBER_BITS);
        self.begun.store(before, Relaxed);
        fence(Release);
        // It has overwritten the oldest, for which there is no slot until the next operation.
        self.slot(withdrawn).call.store(WITHDRAWN, Relaxed);
        if is_message {
            self.messages.store(self.messages.load(Relaxed) - 1, Relaxed);
        }
        self.done.store(before, Release);
    }

    /// Records that the last operation has failed or, in a group, all of the group. One thread at a time may write.
    #[cold]
    pub(crate) fn fail(&self) {
        let last = self.count();
        for slot in (self.oldest(last)..=last).rev().map(|number| self.slot(number)) {
            slot.completed.store(FAILED | slot.queued(), Relaxed);
            let call = Call(slot.call.load(Relaxed));
            if !call.is_grouped() || call.is_first_of_group() {
                break;
            }
        }
    }

    /// Records that the operations on a stream are complete, up to the last one. One thread at a time may write.
    #[cold]
    pub(crate) fn complete(&self, stream: usize) {
        let (now, last) = (ticks(), self.count());
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

    /// Returns the number of the oldest operation for which there is a slot.
    fn oldest(&self, last: u64) -> u64 {
        last.saturating_sub(self.slots.len() as u64) + 1
    }

    /// Returns the operations that the ring still has, the oldest first.
    pub(super) fn read(&self) -> Vec<Read> {
        const TRIES: usize = 100;
        // It fails if an operation was withdrawn meanwhile.
        let read = (0..TRIES).find_map(|_| self.try_read());
        read.unwrap_or_default()
    }

    fn try_read(&self) -> Option<Vec<Read>> {
        let (done, messages) = self.done_and_messages();
        let last = number(done);
        let mut read: Vec<_> =
            (self.oldest(last)..=last).map(|number| self.slot(number).read(number)).collect();
        fence(Acquire);
        let begun = self.begun.load(Relaxed);
        if begun >> NUMBER_BITS != done >> NUMBER_BITS {
            return None;
        }
        let oldest = self.oldest(number(begun));
        read.retain(|read| read.number >= oldest && read.call.0 != WITHDRAWN);
        // The numbers among messages and among collectives are counted back from the last.
        let mut own_numbers = messages.map(|messages| [last - messages, messages]);
        let scale = self.clock.scale();
        for read in read.iter_mut().rev() {
            let is_message = read.call.is_message();
            read.own_number = own_numbers.map(|numbers| numbers[usize::from(is_message)]);
            own_numbers.iter_mut().for_each(|numbers| numbers[usize::from(is_message)] -= 1);
            read.queued = scale.time(read.queued);
            read.completed = read.completed.map(|completed| scale.time(completed));
        }
        Some(read)
    }

    /// Returns the last stamp, and the number of messages up to it, if that can be known.
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

    fn read(&self, number: u64) -> Read {
        let site = self.site.load(Relaxed).cast_const();
        Read {
            number,
            own_number: None,
            call: Call(self.call.load(Relaxed)),
            elements: [&self.sent, &self.received].map(|length| length.load(Relaxed) as u64),
            stream: self.stream.load(Relaxed),
            // SAFETY: null, or one of the `'static` references that were stored there.
            site: unsafe { site.as_ref() },
            queued: self.queued(),
            completed: self.completed(),
            has_failed: self.has_failed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::Location;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;
    use std::thread;

    use super::Ring;
    use crate::Operation;
    use crate::recorder::{IS_FIRST_OF_GROUP, IS_GROUPED};

    const SEND: u64 = Operation::of("send").number() as u64;
    const SUM: u64 = Operation::of("all_reduce").number() as u64;

    fn numbers(ring: &Ring) -> Vec<(u64, Option<u64>)> {
        ring.read().iter().map(|read| (read.number, read.own_number)).collect()
    }

    #[test]
    fn last_operations_are_kept_with_their_numbers() {
        let ring = Ring::new(3);
        assert_eq!(ring.capacity(), 4);
        assert!(ring.read().is_empty());
        ring.push(SUM, [1, 1], 0, Location::caller());
        ring.push(SEND, [2, 0], 0, Location::caller());
        assert_eq!(numbers(&ring), [(1, Some(1)), (2, Some(1))]);
        for _ in 0..4 {
            ring.push(SUM, [3, 3], 0, Location::caller());
        }
        ring.push(SEND, [4, 0], 0, Location::caller());
        assert_eq!(numbers(&ring), [(4, Some(3)), (5, Some(4)), (6, Some(5)), (7, Some(2))]);
        assert_eq!(ring.read()[3].site.unwrap().file(), file!());
    }

    #[test]
    fn operation_that_was_withdrawn_leaves_no_trace() {
        let ring = Ring::new(2);
        ring.push(SUM, [1, 1], 0, Location::caller());
        ring.push(SEND, [2, 0], 0, Location::caller());
        ring.withdraw(true);
        assert_eq!(numbers(&ring), [(1, Some(1))]);
        ring.push(SUM, [5, 5], 0, Location::caller());
        assert_eq!(numbers(&ring), [(1, Some(1)), (2, Some(2))]);
        assert_eq!(ring.read()[1].elements, [5, 5]);
    }

    #[test]
    fn operation_that_was_withdrawn_is_not_taken_for_the_one_it_overwrote() {
        let ring = Ring::new(2);
        ring.push(SUM, [1, 1], 0, Location::caller());
        ring.push(SUM, [2, 2], 0, Location::caller());
        ring.push(SEND, [3, 0], 0, Location::caller());
        ring.withdraw(true);
        assert_eq!(numbers(&ring), [(2, Some(2))]);
        ring.push(SUM, [4, 4], 0, Location::caller());
        assert_eq!(numbers(&ring), [(2, Some(2)), (3, Some(3))]);
    }

    #[test]
    fn operation_without_a_call_site_is_kept() {
        let ring = Ring::new(2);
        ring.push(SUM, [1, 1], 0, None);
        assert!(ring.read()[0].site.is_none());
    }

    #[test]
    fn operations_of_a_stream_that_is_done_are_complete() {
        let ring = Ring::new(8);
        for stream in [1, 2, 1] {
            ring.push(SUM, [1, 1], stream, Location::caller());
        }
        ring.complete(1);
        ring.push(SUM, [1, 1], 1, Location::caller());
        let read = ring.read();
        assert_eq!(
            read.iter().map(|read| read.completed.is_some()).collect::<Vec<_>>(),
            [true, false, true, false]
        );
        assert!(read.iter().all(|read| read.completed.is_none_or(|completed| completed >= read.queued)));
    }

    #[test]
    fn failure_of_a_group_is_that_of_its_operations() {
        let ring = Ring::new(8);
        ring.push(SUM, [1, 1], 0, Location::caller());
        ring.push(SUM | IS_GROUPED | IS_FIRST_OF_GROUP, [1, 1], 0, Location::caller());
        ring.push(SEND | IS_GROUPED, [1, 1], 0, Location::caller());
        ring.fail();
        let failed = |ring: &Ring| ring.read().iter().map(|read| read.has_failed).collect::<Vec<_>>();
        assert_eq!(failed(&ring), [false, true, true]);
        ring.push(SUM, [1, 1], 0, Location::caller());
        ring.fail();
        assert_eq!(failed(&ring), [false, true, true, true]);
        assert!(ring.read().iter().all(|read| read.completed.is_none()));
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
                            assert_eq!(read.elements, [length as u64, 3 * length as u64]);
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
                    ring.push(SEND, [0, 0], 0, Location::caller());
                    ring.withdraw(true);
                }
                match number % 2 {
                    1 => ring.push(SEND, call, 7 * number, Location::caller()),
                    _ => ring.push(SUM, call, 7 * number, Location::caller()),
                }
            }
            is_over.store(true, Relaxed);
            assert!(readers.map(|reader| reader.join().unwrap()).iter().all(|seen| *seen > 0));
        });
    }
}
