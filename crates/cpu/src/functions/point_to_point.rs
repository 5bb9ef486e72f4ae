//! Send and receive, and the report of sends that were never received.
//!
//! A send writes its data, or the location of its data, into the mailbox of the pair of ranks. The receive reads it from there.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use cuda_common::finding::Finding;
use libnccl::sys::{cudaStream_t, ncclComm_t, ncclDataType_t, ncclResult_t};

use super::guard::{check_not_null, check_rank, guard_in_group};
use crate::coll::call::{CallHeader, PeerCall};
use crate::coll::operation::{OnStream, Operation};
use crate::comm::communicator::Communicator;
use crate::comm::{group, handle};
use crate::diag::error::{Error, Progress, Result};
use crate::diag::report;
use crate::diag::settings::STRICT;
use crate::reduce::data_type::{self, DataType};
use crate::shm::access::Exposed;
use crate::shm::buffer::{BufferRange, ReadBuf, WriteBuf};
use crate::shm::call_context::{CallContext, RemoteBuffer};
use crate::shm::layout::MESSAGE_MAX;
use crate::shm::mailbox::{CELL, Mailbox};
use crate::shm::shared_state::SharedState;
use crate::sync::primitive::fence;

/// Checks the arguments of a send or a receive. Returns its [`Message`] and the peer, or `None` if there is nothing to do.
///
/// Except in strict mode, a send or a receive of 0 elements does nothing, so a receive with elements skips sends of 0 elements.
/// In NCCL, the receive is matched with such a send.
fn message<'a>(
    buffer: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    communicator: &'a Communicator,
) -> Result<Option<(CallContext<'a>, Message, usize)>> {
    let context = communicator.check_operable()?;
    let peer = check_rank(peer, context.state.ranks(), "peer")?;
    let data_type = DataType::new(datatype)?;
    data_type.bytes(count)?;
    if count == 0 && !*STRICT {
        return Ok(None);
    }
    if count > 0 {
        check_not_null(buffer, "the buffer")?;
    }
    Ok(Some((context, Message { count, data_type }, peer)))
}

pub(super) unsafe extern "C" fn ncclSend(
    sendbuff: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let call = |communicator: &Arc<Communicator>| {
        let Some((context, message, peer)) = message(sendbuff, count, datatype, peer, communicator)? else {
            return Ok(Progress::Done);
        };
        // SAFETY: the C declaration's contract, as for collectives.
        let from = unsafe { ReadBuf::of_caller(sendbuff.cast(), message.bytes()) };
        let send = SendMessage { message, peer, from };
        group::run(communicator, context, send, stream)
    };
    guard_in_group("ncclSend", || handle::with(comm, call))
}

pub(super) unsafe extern "C" fn ncclRecv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let call = |communicator: &Arc<Communicator>| {
        let Some((context, message, peer)) = message(recvbuff, count, datatype, peer, communicator)? else {
            return Ok(Progress::Done);
        };
        // SAFETY: the C declaration's contract, as for collectives.
        let to = unsafe { WriteBuf::of_caller(recvbuff.cast(), message.bytes()) };
        let recv = RecvMessage { message, peer, to };
        group::run(communicator, context, recv, stream)
    };
    guard_in_group("ncclRecv", || handle::with(comm, call))
}

const HEADER: u64 = CELL;

/// Flag of a rendezvous in a header. Stored with the data type.
const RENDEZVOUS: u64 = 1 << 32;

/// Number of bytes of a rendezvous request.
const REQUEST: u64 = HEADER + (RemoteBuffer::WORDS * size_of::<u64>()) as u64;

/// The receiver's reason to reject a transfer: the header that it expects, or [`NACK`].
type Rejection = [u64; 2];

/// Rejection of a rendezvous, with which the receiver requests the elements themselves. No header has this value.
const NACK: Rejection = [u64::MAX; 2];

/// Minimum number of bytes for which a transfer uses non-temporal stores.
const NON_TEMPORAL_MIN: u64 = 4 << 20;

/// The arguments that a send and its receive must agree on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    pub(crate) count: usize,
    pub(crate) data_type: DataType,
}

pub(crate) struct SendMessage {
    pub(crate) message: Message,
    pub(crate) peer: usize,
    pub(crate) from: ReadBuf,
}

pub(crate) struct RecvMessage {
    pub(crate) message: Message,
    pub(crate) peer: usize,
    pub(crate) to: WriteBuf,
}

impl Operation for SendMessage {
    fn header(&self) -> CallHeader {
        CallHeader::of_elements(PeerCall::Send, self.peer, self.message.data_type, self.message.count)
    }

    fn ranges(&self) -> [BufferRange; 2] {
        [self.from.range(), BufferRange::default()]
    }

    fn resolve(&mut self, on_stream: &mut OnStream) -> Result {
        on_stream.resolve_read("the send buffer", &mut self.from)
    }

    fn sending(&self, _: usize, replace: impl FnOnce(ReadBuf, usize) -> ReadBuf) -> Option<Self> {
        Some(Self { from: replace(self.from, self.message.data_type.size()), ..*self })
    }

    async fn run(&self, context: CallContext<'_>) -> Result {
        let Self { message, peer, from } = *self;
        let CallContext { state, rank, .. } = context;
        if *STRICT {
            // Nothing is sent any more if an abort made a preceding collective in the group fail.
            state.check_abort()?;
        }
        let mailbox = Mailbox::new(state, rank, peer);
        Mailbox::note_sent(state, rank, peer);
        let mut rejection = Some(NACK);
        if message.bytes() > MESSAGE_MAX {
            let same_process = state.process(rank) == state.process(peer);
            let buffer = RemoteBuffer::new(from, !same_process);
            if same_process || buffer.is_shared() {
                rejection = self.send_by_rendezvous(context, &mailbox, buffer).await?;
            }
        }
        if rejection == Some(NACK) {
            rejection = self.send_eagerly(state, &mailbox).await?;
        }
        match rejection {
            None | Some(NACK) => Ok(()),
            Some(expected) => Err(mismatch(rank, message.to_words(), peer, expected)),
        }
    }
}

impl Operation for RecvMessage {
    fn header(&self) -> CallHeader {
        CallHeader::of_elements(PeerCall::Recv, self.peer, self.message.data_type, self.message.count)
    }

    fn ranges(&self) -> [BufferRange; 2] {
        [BufferRange::default(), self.to.as_read().range()]
    }

    fn resolve(&mut self, on_stream: &mut OnStream) -> Result {
        on_stream.resolve_write("the receive buffer", &mut self.to)
    }

    async fn run(&self, context: CallContext<'_>) -> Result {
        let Self { message, peer, .. } = *self;
        let CallContext { state, rank, .. } = context;
        let mailbox = Mailbox::new(state, peer, rank);
        loop {
            let start = mailbox.read_position();
            let elements = start + HEADER;
            state.wait(peer, || mailbox.available(start) >= HEADER).await?;
            let [count, data_type] = mailbox.read_words(start);
            let (sent, is_rendezvous) = ([count, data_type & !RENDEZVOUS], data_type & RENDEZVOUS != 0);
            let end = if is_rendezvous { Some(start + REQUEST) } else { end_of(elements, sent) }
                .ok_or_else(|| Error::remote(format!("rank {peer} sent a malformed header: {sent:?}")))?;
            let next = end.next_multiple_of(HEADER);
            if sent != message.to_words() {
                mailbox.reject(start, message.to_words());
                mailbox.release(next);
                return Err(mismatch(peer, sent, rank, message.to_words()));
            }
            if !is_rendezvous {
                return self.receive_eagerly(state, &mailbox, elements..end).await;
            }
            state.wait(peer, || mailbox.available(start) >= REQUEST).await?;
            let buffer = RemoteBuffer::from_words(mailbox.read_words(elements));
            let is_copied = self.receive_by_rendezvous(context, buffer)?;
            if !is_copied {
                mailbox.reject(start, NACK);
            }
            mailbox.release(next);
            if is_copied {
                return Ok(());
            }
        }
    }
}

impl Message {
    fn to_words(self) -> [u64; 2] {
        [self.count as u64, self.data_type.raw().0.into()]
    }

    pub(crate) fn bytes(self) -> usize {
        self.count * self.data_type.size()
    }
}

impl SendMessage {
    /// Sends the location of the elements. The receiver copies them from there.
    async fn send_by_rendezvous(
        &self,
        CallContext { state, rank, .. }: CallContext<'_>,
        mailbox: &Mailbox<'_>,
        buffer: RemoteBuffer,
    ) -> Result<Option<Rejection>> {
        let Self { message, peer, from } = *self;
        let start = mailbox.write_position();
        mailbox.wait_for_room(peer, start, start, REQUEST).await?;
        let [count, data_type] = message.to_words();
        mailbox.write_words(start, &[count, data_type | RENDEZVOUS]);
        mailbox.write_words(start + HEADER, &buffer.to_words());
        let end = start + REQUEST;
        mailbox.publish(end);
        let rejection = taken(state, mailbox, peer, start..end).await;
        if rejection.is_err() {
            state.quiesce(rank, Exposed { buffers: &[from], windows: 0 }).await;
        }
        rejection
    }

    /// Sends the elements through the ring.
    async fn send_eagerly(&self, state: &SharedState, mailbox: &Mailbox<'_>) -> Result<Option<Rejection>> {
        let Self { message, peer, from } = *self;
        let start = mailbox.write_position();
        let elements = start + HEADER;
        let end = elements + message.bytes() as u64;
        let next = end.next_multiple_of(HEADER);
        let Some(room) = mailbox.wait_for_room(peer, start, start, HEADER).await? else {
            return Err(Error::remote(format!("rank {peer} rejected a message before it was sent")));
        };
        let mut space = room - HEADER;
        mailbox.write_words(start, &message.to_words());
        let mut at = elements;
        loop {
            // As many elements as fit are published together with the header.
            let length = mailbox.chunk(at, space.min(end - at), end - start);
            let ring = mailbox.memory(at..at + length);
            ring.copy(from.slice((at - elements) as usize..(at - elements + length) as usize), false);
            at += length;
            if at == end {
                mailbox.publish(next);
                return if *STRICT { taken(state, mailbox, peer, start..next).await } else { Ok(None) };
            }
            space -= length;
            mailbox.publish(at);
            if space == 0 {
                match mailbox.wait_for_room(peer, start, at, mailbox.least_room(end - at)).await? {
                    Some(room) => space = room,
                    None => {
                        mailbox.publish(next);
                        return Ok(mailbox.rejection(start));
                    }
                }
            }
        }
    }
}

/// Waits until the receiver has read the complete transfer at `positions`, or has rejected it.
async fn taken(
    state: &SharedState,
    mailbox: &Mailbox<'_>,
    peer: usize,
    positions: Range<u64>,
) -> Result<Option<Rejection>> {
    state.wait(peer, || mailbox.is_read(positions.end)).await?;
    Ok(mailbox.rejection(positions.start))
}

impl RecvMessage {
    async fn receive_eagerly(
        &self,
        state: &SharedState,
        mailbox: &Mailbox<'_>,
        Range { start, end }: Range<u64>,
    ) -> Result {
        let next = end.next_multiple_of(HEADER);
        let mut at = start;
        if at == end {
            mailbox.release(next);
        }
        while at < end {
            state.wait(self.peer, || mailbox.available(at) > 0).await?;
            let length = mailbox.chunk(at, mailbox.available(at).min(end - at), end - start + HEADER);
            let ring = mailbox.memory(at..at + length).as_read();
            self.to.slice((at - start) as usize..(at - start + length) as usize).copy(ring, false);
            at += length;
            mailbox.release(if at == end { next } else { at });
        }
        Ok(())
    }

    /// Copies the elements from the sender's buffer. Returns `false` if this rank cannot access the buffer.
    fn receive_by_rendezvous(&self, context: CallContext<'_>, buffer: RemoteBuffer) -> Result<bool> {
        let Self { peer, to, .. } = *self;
        let length = to.length();
        let _access = context.state.begin_access(context.rank)?;
        let range = context.map(peer, buffer, length);
        let Some(from) = range.as_ref().and_then(|range| range.read_buf(0, length)) else {
            return Ok(false);
        };
        // Overlapping buffers can only be copied through the ring.
        if (1..length).contains(&from.start().addr().abs_diff(to.start().addr())) {
            return Ok(false);
        }
        to.copy(from, length as u64 >= NON_TEMPORAL_MIN);
        Ok(true)
    }
}

/// Returns the sends to `peer` that are in the mailbox, in order.
pub(super) fn unread(mailbox: &Mailbox<'_>, peer: usize) -> Vec<CallHeader> {
    let start = mailbox.read_position();
    let (mut at, mut sends) = (start, vec![]);
    while mailbox.available(at) >= HEADER && at - start < mailbox.size() {
        let [count, data_type] = mailbox.read_words(at);
        let sent = [count, data_type & !RENDEZVOUS];
        let end = if data_type == sent[1] { end_of(at + HEADER, sent) } else { at.checked_add(REQUEST) };
        let Some(next) = end.and_then(|end| end.checked_next_multiple_of(HEADER)) else { break };
        sends.push(CallHeader::PointToPoint {
            call: PeerCall::Send,
            data_type: sent[1] as u8,
            peer: peer as u32,
            count,
        });
        at = next;
    }
    sends
}

/// Returns the position at which the elements of a transfer end, or `None` if its header is invalid.
fn end_of(elements: u64, [count, data_type]: [u64; 2]) -> Option<u64> {
    let data_type = DataType::new(libnccl::sys::ncclDataType_t(u32::try_from(data_type).ok()?)).ok()?;
    let bytes = data_type.bytes(usize::try_from(count).ok()?).ok()?;
    elements.checked_add(bytes as u64)?.checked_add(HEADER)?;
    Some(elements + bytes as u64)
}

fn mismatch(sender: usize, sent: [u64; 2], receiver: usize, expected: [u64; 2]) -> Error {
    let describe = |[count, data_type]: [u64; 2]| format!("count {count}, {}", data_type::name(data_type));
    Error::usage(format!(
        "send and receive do not match: rank {sender} called ncclSend({}) to rank {receiver}, \
         which called ncclRecv({})",
        describe(sent),
        describe(expected)
    ))
}

const MAX_NAMED: usize = 8;

/// Reports unreceived sends that are visible to `rank`, which has just departed.
pub(super) fn report_unreceived(state: &SharedState, rank: usize) {
    // If two ranks leave concurrently, at least one of them observes the other's departure.
    fence(SeqCst);
    for peer in 0..state.ranks() {
        report_mailbox(state, peer, rank, rank);
        if peer != rank && state.has_departed(peer) {
            report_mailbox(state, rank, peer, rank);
        }
    }
}

/// Reports unreceived sends in the mailbox from `sender` to `receiver`. One of the two is `rank`.
fn report_mailbox(state: &SharedState, sender: usize, receiver: usize, rank: usize) {
    let Some(mailbox) = Mailbox::of_sent(state, sender, receiver) else { return };
    let sends = unread(&mailbox, receiver);
    let messages = match sends.len() {
        0 => return,
        1 => format!("a send of rank {sender} was"),
        many => format!("{many} sends of rank {sender} were"),
    };
    let mut kinds: Vec<(CallHeader, usize)> = vec![];
    for send in sends {
        match kinds.iter_mut().find(|(kind, _)| *kind == send) {
            Some((_, number)) => *number += 1,
            None => kinds.push((send, 1)),
        }
    }
    let more = if kinds.len() > MAX_NAMED { ", ..." } else { "" };
    let named: Vec<String> =
        kinds.iter().take(MAX_NAMED).map(|(send, number)| format!("{number} x {send}")).collect();
    let text = format!(
        "in {}, rank {rank} of {} leaves, and {messages} never received by rank {receiver}: {}{more}",
        state.name(),
        state.ranks(),
        named.join(", ")
    );
    report::report(Finding::UnreceivedMessage, rank, &text);
}

#[cfg(test)]
#[allow(unsafe_code)]
#[path = "../../tests/unit/point_to_point.rs"]
mod tests;
