//! Sends and receives: messages in the ring from one rank to another.
//!
//! A message is a header, which says count and data type, and the elements, padded so that headers never
//! wrap. A send ends when its last byte is in the ring, a receive when it has taken it out.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::buffer::{Source, Target};
use crate::data_type::{self, DataType};
use crate::failure::{Failure, Result};
use crate::world::{Mailbox, World};

const HEADER: u64 = 16;

/// What both sides have to call alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    pub(crate) count: usize,
    pub(crate) data_type: DataType,
}

impl Message {
    fn words(self) -> [u64; 2] {
        [self.count as u64, self.data_type.raw().0.into()]
    }

    fn bytes(self) -> u64 {
        (self.count * self.data_type.size()) as u64
    }

    pub(crate) async fn send(self, world: &World, rank: usize, peer: usize, from: Source) -> Result {
        let mailbox = world.mailbox(rank, peer);
        let start = mailbox.written.load(Relaxed);
        let payload = start + HEADER;
        let end = payload + self.bytes();
        let next = end.next_multiple_of(HEADER);
        room(world, &mailbox, peer, start, start, HEADER).await?;
        for (index, word) in self.words().iter().enumerate() {
            world.segment().write(mailbox.place(start) + 8 * index, &word.to_ne_bytes());
        }
        let mut at = payload;
        mailbox.written.store(at, Release);
        while at < end {
            let space = match room(world, &mailbox, peer, start, at, 1).await? {
                Room::Bytes(space) => space,
                Room::Refused => {
                    mailbox.written.store(next, Release);
                    let [_, count, data_type] = mailbox.refused.map(|word| word.load(Relaxed));
                    return Err(mismatch(rank, self.words(), peer, [count, data_type]));
                }
            };
            let length = mailbox.straight(at, space.min(end - at));
            world.segment().store(mailbox.place(at), from, (at - payload) as usize, length as usize);
            at += length;
            mailbox.written.store(if at == end { next } else { at }, Release);
        }
        Ok(())
    }

    pub(crate) async fn receive(self, world: &World, rank: usize, peer: usize, to: Target) -> Result {
        let mailbox = world.mailbox(peer, rank);
        let start = mailbox.read.load(Relaxed);
        let payload = start + HEADER;
        let arrived = |at: u64| mailbox.written.load(Acquire).saturating_sub(at);
        world.wait(peer, || arrived(start) >= HEADER).await?;
        let sent = [0, 8].map(|offset| {
            let mut word = [0; 8];
            world.segment().read(mailbox.place(start) + offset, &mut word);
            u64::from_ne_bytes(word)
        });
        let end = end_of(payload, sent)
            .ok_or_else(|| Failure::remote(format!("rank {peer} sent what is no message: {sent:?}")))?;
        let next = end.next_multiple_of(HEADER);
        if sent != self.words() {
            let refusal = [start + 1, self.words()[0], self.words()[1]];
            for (word, value) in mailbox.refused.iter().zip(refusal).rev() {
                word.store(value, Release);
            }
            mailbox.read.store(next, Release);
            return Err(mismatch(peer, sent, rank, self.words()));
        }
        let mut at = payload;
        while at < end {
            world.wait(peer, || arrived(at) > 0).await?;
            let length = mailbox.straight(at, arrived(at).min(end - at));
            world.segment().load(mailbox.place(at), to, (at - payload) as usize, length as usize);
            at += length;
            mailbox.read.store(if at == end { next } else { at }, Release);
        }
        Ok(())
    }
}

enum Room {
    Bytes(u64),
    Refused,
}

/// Waits until the ring has room for `least` bytes at `at` in the message that begins at `start`.
async fn room(
    world: &World,
    mailbox: &Mailbox<'_>,
    peer: usize,
    start: u64,
    at: u64,
    least: u64,
) -> Result<Room> {
    let mut room = Room::Refused;
    world
        .wait(peer, || {
            // In this order: who refuses a message says so before it reads past it.
            let read = mailbox.read.load(Acquire);
            let refused = mailbox.refused[0].load(Acquire) == start + 1;
            let space = mailbox.size as u64 - at.saturating_sub(read).min(mailbox.size as u64);
            room = if refused { Room::Refused } else { Room::Bytes(space) };
            refused || space >= least
        })
        .await?;
    Ok(room)
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

    /// How many of `length` bytes from a position on lie in one piece.
    fn straight(&self, position: u64, length: u64) -> u64 {
        length.min(self.size as u64 - position % self.size as u64)
    }
}
