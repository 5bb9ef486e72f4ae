//! Sends and receives: messages in the ring from one rank to another.
//!
//! A message is a header, which says count and data type, and the elements, padded so that headers never
//! wrap. A send ends when its last byte is in the ring, a receive when it has taken it out.
//!
//! Of a long message only an offer goes into the ring: a header, and where the elements are. The receiver copies
//! them from there, or declines if it cannot use the sender's memory, and then they come through the ring, too.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::buffer::{Source, Target};
use crate::data_type::{self, DataType};
use crate::failure::{Failure, Result};
use crate::reach::{Seat, Whereabouts};
use crate::segment::TINY;
use crate::world::{Mailbox, World};

const HEADER: u64 = 16;

/// In the header of an offer, beside the data type.
const OFFERED: u64 = 1 << 32;

/// The bytes of an offer.
const OFFER: u64 = HEADER + (Whereabouts::WORDS * size_of::<u64>()) as u64;

/// What a receiver wants instead of an offer that it declines: no message is like that.
const DECLINED: [u64; 2] = [u64::MAX; 2];

/// Longer messages are offered.
const LONG: u64 = if TINY { 64 } else { 64 << 10 };

/// From so many bytes on a message goes around the caches.
const STREAM: u64 = 4 << 20;

/// A message that does not fit into the ring goes in parts of this part of it, so that both sides are at work.
const PARTS: u64 = if TINY { 2 } else { 4 };

/// What both sides have to call alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    pub(crate) count: usize,
    pub(crate) data_type: DataType,
}

/// A rank and whom it sends to or receives from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way<'a> {
    pub(crate) seat: Seat<'a>,
    pub(crate) peer: usize,
}

/// What became of what a sender wrote.
enum Answer {
    Taken,
    Declined,
    /// The receiver wants something else.
    Refused([u64; 2]),
}

impl Message {
    fn words(self) -> [u64; 2] {
        [self.count as u64, self.data_type.raw().0.into()]
    }

    fn bytes(self) -> u64 {
        (self.count * self.data_type.size()) as u64
    }

    pub(crate) async fn send(self, way: Way<'_>, from: Source) -> Result {
        let Way { seat: Seat { world, rank, .. }, peer } = way;
        let is_near = world.process(rank) == world.process(peer);
        let mut answer = Answer::Declined;
        if self.bytes() > LONG {
            let place = Whereabouts::new(from.start(), from.length(), !is_near);
            if is_near || place.is_shared() {
                answer = self.offer(way, place).await?;
            }
        }
        if let Answer::Declined = answer {
            answer = self.stream(way, from).await?;
        }
        match answer {
            Answer::Refused(wanted) => Err(mismatch(rank, self.words(), peer, wanted)),
            Answer::Taken | Answer::Declined => Ok(()),
        }
    }

    /// Offers the elements to the receiver, to copy them from where they are.
    async fn offer(
        self,
        Way { seat: Seat { world, rank, .. }, peer }: Way<'_>,
        place: Whereabouts,
    ) -> Result<Answer> {
        let mailbox = world.mailbox(rank, peer);
        let start = mailbox.written.load(Relaxed);
        mailbox.room(world, peer, start, start, OFFER).await?;
        let [count, data_type] = self.words();
        mailbox.write_words(world, start, &[count, data_type | OFFERED]);
        mailbox.write_words(world, start + HEADER, &place.words());
        let end = start + OFFER;
        mailbox.written.store(end, Release);
        if let Err(failure) = world.wait(peer, || mailbox.read.load(Acquire) >= end).await {
            world.retreat(rank).await;
            return Err(failure);
        }
        Ok(match mailbox.refusal(start) {
            None => Answer::Taken,
            Some(DECLINED) => Answer::Declined,
            Some(wanted) => Answer::Refused(wanted),
        })
    }

    /// Sends the elements through the ring.
    async fn stream(
        self,
        Way { seat: Seat { world, rank, .. }, peer }: Way<'_>,
        from: Source,
    ) -> Result<Answer> {
        let mailbox = world.mailbox(rank, peer);
        let start = mailbox.written.load(Relaxed);
        let payload = start + HEADER;
        let end = payload + self.bytes();
        let next = end.next_multiple_of(HEADER);
        let Some(room) = mailbox.room(world, peer, start, start, HEADER).await? else {
            return Err(Failure::remote(format!("rank {peer} refused a message that it has not seen yet")));
        };
        let mut space = room - HEADER;
        mailbox.write_words(world, start, &self.words());
        let mut at = payload;
        loop {
            // What the header left room for goes with it.
            let length = mailbox.part(at, space.min(end - at), end - start);
            let part = (at - payload) as usize..(at - payload + length) as usize;
            let (_, ring) = world.segment().memory(mailbox.place(at), part.len());
            ring.copy(from.slice(part), false);
            at += length;
            if at == end {
                mailbox.written.store(next, Release);
                return Ok(Answer::Taken);
            }
            space -= length;
            mailbox.written.store(at, Release);
            if space == 0 {
                let least = (end - at).min(mailbox.size as u64 / PARTS);
                match mailbox.room(world, peer, start, at, least).await? {
                    Some(room) => space = room,
                    None => {
                        mailbox.written.store(next, Release);
                        return Ok(Answer::Refused(mailbox.refusal(start).unwrap_or(DECLINED)));
                    }
                }
            }
        }
    }

    pub(crate) async fn receive(self, way: Way<'_>, to: Target) -> Result {
        let Way { seat: Seat { world, rank, .. }, peer } = way;
        let mailbox = world.mailbox(peer, rank);
        loop {
            let start = mailbox.read.load(Relaxed);
            let payload = start + HEADER;
            world.wait(peer, || mailbox.arrived(start) >= HEADER).await?;
            let [count, data_type] = mailbox.read_words(world, start);
            let (sent, is_offer) = ([count, data_type & !OFFERED], data_type & OFFERED != 0);
            let end = if is_offer { Some(start + OFFER) } else { end_of(payload, sent) }
                .ok_or_else(|| Failure::remote(format!("rank {peer} sent what is no message: {sent:?}")))?;
            let next = end.next_multiple_of(HEADER);
            if sent != self.words() {
                mailbox.refuse(start, self.words());
                mailbox.read.store(next, Release);
                return Err(mismatch(peer, sent, rank, self.words()));
            }
            if !is_offer {
                return self.take(way, payload, end, to).await;
            }
            world.wait(peer, || mailbox.arrived(start) >= OFFER).await?;
            let is_taken = self.fetch(way, mailbox.read_words(world, payload), to)?;
            if !is_taken {
                mailbox.refuse(start, DECLINED);
            }
            mailbox.read.store(next, Release);
            if is_taken {
                return Ok(());
            }
        }
    }

    /// Takes the elements out of the ring.
    async fn take(self, way: Way<'_>, payload: u64, end: u64, to: Target) -> Result {
        let Way { seat: Seat { world, rank, .. }, peer } = way;
        let mailbox = world.mailbox(peer, rank);
        let next = end.next_multiple_of(HEADER);
        let mut at = payload;
        while at < end {
            world.wait(peer, || mailbox.arrived(at) > 0).await?;
            let length = mailbox.part(at, mailbox.arrived(at).min(end - at), end - payload + HEADER);
            let part = (at - payload) as usize..(at - payload + length) as usize;
            let (ring, _) = world.segment().memory(mailbox.place(at), part.len());
            to.slice(part).copy(ring, false);
            at += length;
            mailbox.read.store(if at == end { next } else { at }, Release);
        }
        Ok(())
    }

    /// Copies the elements that are offered, unless this rank cannot use the sender's memory.
    fn fetch(self, way: Way<'_>, place: [u64; Whereabouts::WORDS], to: Target) -> Result<bool> {
        let Way { seat, peer } = way;
        let length = self.bytes() as usize;
        let _touch = seat.world.touch(seat.rank)?;
        let stretch = seat.stretch(peer, Whereabouts::from_words(place), length);
        let Some(from) = stretch.as_ref().and_then(|stretch| stretch.source(0, length)) else {
            return Ok(false);
        };
        // Through the ring they at least get across.
        if (1..length).contains(&from.start().addr().abs_diff(to.start().addr())) {
            return Ok(false);
        }
        to.copy(from, self.bytes() >= STREAM);
        Ok(true)
    }
}

/// Where a message's elements end, if a message can be like that.
fn end_of(payload: u64, [count, data_type]: [u64; 2]) -> Option<u64> {
    let data_type = DataType::new(libnccl::sys::ncclDataType_t(u32::try_from(data_type).ok()?)).ok()?;
    let bytes = data_type.bytes(usize::try_from(count).ok()?).ok()?;
    payload.checked_add(bytes as u64)?.checked_add(HEADER)?;
    Some(payload + bytes as u64)
}

fn mismatch(sender: usize, sent: [u64; 2], receiver: usize, wanted: [u64; 2]) -> Failure {
    let tell = |[count, data_type]: [u64; 2]| format!("count {count}, {}", data_type::name(data_type));
    Failure::usage(format!(
        "send and receive do not match: rank {sender} called ncclSend({}) to rank {receiver}, \
         which called ncclRecv({})",
        tell(sent),
        tell(wanted)
    ))
}

impl Mailbox<'_> {
    /// Where in the segment's bytes a position is.
    fn place(&self, position: u64) -> usize {
        self.ring + (position % self.size as u64) as usize
    }

    /// How many of `length` bytes from a position on, of a message of `whole`, are copied at a time: they lie in
    /// one piece.
    fn part(&self, position: u64, length: u64, whole: u64) -> u64 {
        let size = self.size as u64;
        let most = if whole > size { size / PARTS } else { size };
        length.min(most).min(size - position % size)
    }

    /// How far the sender has got beyond a position.
    fn arrived(&self, position: u64) -> u64 {
        self.written.load(Acquire).saturating_sub(position)
    }

    /// Writes words to a position, two by two, which never wrap.
    fn write_words(&self, world: &World, position: u64, words: &[u64]) {
        for (index, [one, two]) in words.as_chunks().0.iter().enumerate() {
            let bytes = (u128::from(*one) | u128::from(*two) << 64).to_le_bytes();
            world.segment().write(self.place(position + HEADER * index as u64), &bytes);
        }
    }

    fn read_words<const N: usize>(&self, world: &World, position: u64) -> [u64; N] {
        std::array::from_fn(|index| {
            let mut bytes = [0; size_of::<u64>()];
            world.segment().read(self.place(position + (index * bytes.len()) as u64), &mut bytes);
            u64::from_le_bytes(bytes)
        })
    }

    /// Says, before reading past it, that the message at `start` is not wanted, but another.
    fn refuse(&self, start: u64, wanted: [u64; 2]) {
        let [position, count, data_type] = self.refused;
        count.store(wanted[0], Relaxed);
        data_type.store(wanted[1], Relaxed);
        position.store(start + 1, Release);
    }

    /// What the receiver wants instead of the message at `start`.
    fn refusal(&self, start: u64) -> Option<[u64; 2]> {
        let [position, count, data_type] = self.refused;
        (position.load(Acquire) == start + 1).then(|| [count.load(Relaxed), data_type.load(Relaxed)])
    }

    /// Waits until the ring has room for `least` bytes at `at` in the message that begins at `start`, and says
    /// for how many; none if the receiver refuses the message.
    async fn room(&self, world: &World, peer: usize, start: u64, at: u64, least: u64) -> Result<Option<u64>> {
        let mut room = None;
        world
            .wait(peer, || {
                // In this order: who refuses a message says so before it reads past it.
                let read = self.read.load(Acquire);
                let refused = self.refused[0].load(Acquire) == start + 1;
                let space = self.size as u64 - at.saturating_sub(read).min(self.size as u64);
                room = (!refused).then_some(space);
                refused || space >= least
            })
            .await?;
        Ok(room)
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::executor;
    use crate::memory;
    use crate::process::Process;
    use crate::reach::Reach;
    use std::collections::VecDeque;
    use std::process::Command;
    use std::sync::Arc;

    const COUNT: usize = 100_000;

    /// Sends bytes at `start` from a rank of one process to one of another, and says how many went into the ring.
    fn through_the_ring(sender: Process, receiver: Process, start: *const u8) -> u64 {
        let world = Arc::new(World::create(&[sender, receiver]).unwrap().0);
        let message =
            Message { count: COUNT, data_type: DataType::new(libnccl::sys::ncclDataType_t(0)).unwrap() };
        let mut received = vec![0; COUNT];
        // SAFETY: the memory is there until the operations have ended, and they alone use it.
        let (from, to) = unsafe { (Source::new(start, COUNT), Target::new(received.as_mut_ptr(), COUNT)) };
        let (one, two) = (Arc::clone(&world), Arc::clone(&world));
        let send: executor::Operation = Box::pin(async move {
            message
                .send(Way { seat: Seat { reach: &Reach::default(), world: &one, rank: 0 }, peer: 1 }, from)
                .await
        });
        let receive: executor::Operation = Box::pin(async move {
            message
                .receive(Way { seat: Seat { reach: &Reach::default(), world: &two, rank: 1 }, peer: 0 }, to)
                .await
        });
        executor::run(vec![VecDeque::from([send]), VecDeque::from([receive])], 1, || ()).unwrap();
        // SAFETY: as above.
        assert!(received == unsafe { std::slice::from_raw_parts(start, COUNT) });
        let mailbox = world.mailbox(0, 1);
        assert_eq!(mailbox.read.load(Relaxed), mailbox.written.load(Relaxed));
        mailbox.written.load(Relaxed)
    }

    #[test]
    fn long_messages_go_through_the_ring_only_if_they_must() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let (here, elsewhere) = (Process::current().unwrap(), Process::of(child.id().into()).unwrap());
        let private: Vec<u8> = (0..COUNT).map(|index| index as u8).collect();
        let shared: *mut u8 = memory::allocate(COUNT).unwrap().cast();
        // SAFETY: as many bytes, which only this test has.
        unsafe { shared.copy_from_nonoverlapping(private.as_ptr(), COUNT) };
        let all = HEADER + COUNT as u64;
        assert_eq!(through_the_ring(here, here, private.as_ptr()), OFFER);
        assert_eq!(through_the_ring(here, elsewhere, private.as_ptr()), all);
        assert_eq!(through_the_ring(here, elsewhere, shared), OFFER);
        // That process has no such memory, so the receiver declines.
        assert_eq!(through_the_ring(elsewhere, here, shared), OFFER + all);
        // SAFETY: nobody uses it any more.
        unsafe { memory::free(shared.cast()) }.unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
