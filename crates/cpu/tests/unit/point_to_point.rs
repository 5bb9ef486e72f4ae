use super::*;
use crate::coll::operation::BoxedOperation;
use crate::shm::call_context::PeerAccess;
use crate::shm::mem_alloc;
use crate::shm::process::Process;
use crate::sync::executor;
use std::collections::VecDeque;
use std::process::Command;

const COUNT: usize = 100_000;

/// Sends the bytes at `start` from a rank in one process to a rank in another, and returns how many bytes went through the ring.
fn bytes_in_ring(sender: Process, receiver: Process, start: *const u8) -> u64 {
    let state = SharedState::create(&[sender, receiver]).unwrap().0;
    let message =
        Message { count: COUNT, data_type: DataType::new(libnccl::sys::ncclDataType_t(0)).unwrap() };
    let mut received = vec![0; COUNT];
    // SAFETY: the memory is valid until the operations have ended, and only they access it.
    let (from, to) = unsafe { (ReadBuf::new(start, COUNT), WriteBuf::new(received.as_mut_ptr(), COUNT)) };
    let (send, recv) = (SendMessage { message, peer: 1, from }, RecvMessage { message, peer: 0, to });
    let (one, two) = (PeerAccess::default(), PeerAccess::default());
    let send: BoxedOperation<'_> = Box::pin(send.run(CallContext { state: &state, rank: 0, peers: &one }));
    let recv: BoxedOperation<'_> = Box::pin(recv.run(CallContext { state: &state, rank: 1, peers: &two }));
    executor::run(vec![VecDeque::from([send]), VecDeque::from([recv])], 1, |_| ()).unwrap();
    // SAFETY: as above.
    assert!(received == unsafe { std::slice::from_raw_parts(start, COUNT) });
    let mailbox = Mailbox::new(&state, 0, 1);
    assert_eq!(mailbox.read_position(), mailbox.write_position());
    mailbox.write_position()
}

#[test]
fn unread_messages_are_listed_up_to_a_malformed_or_incomplete_one() {
    let state = SharedState::create(&[Process::current().unwrap(); 2]).unwrap().0;
    let mailbox = Mailbox::new(&state, 0, 1);
    let send = |count| CallHeader::PointToPoint {
        call: PeerCall::Send,
        data_type: if count == 3 { 0 } else { 7 },
        peer: 1,
        count,
    };
    mailbox.write_words(0, &[3, 0]);
    mailbox.write_words(32, &[1 << 20, 7 | RENDEZVOUS]);
    mailbox.write_words(32 + REQUEST, &[u64::MAX, 7]);
    mailbox.publish(32 + REQUEST + 2 * HEADER);
    assert_eq!(unread(&mailbox, 1), [send(3), send(1 << 20)]);
    mailbox.write_words(32 + REQUEST, &[1 << 30, 7]);
    assert_eq!(unread(&mailbox, 1), [send(3), send(1 << 20), send(1 << 30)]);
}

#[test]
fn long_message_uses_the_ring_only_if_necessary() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let (here, elsewhere) = (Process::current().unwrap(), Process::from_pid(child.id().into()).unwrap());
    let private: Vec<u8> = (0..COUNT).map(|index| index as u8).collect();
    let shared: *mut u8 = mem_alloc::allocate(COUNT).unwrap().cast();
    // SAFETY: the memory has this many bytes and belongs to this test.
    unsafe { shared.copy_from_nonoverlapping(private.as_ptr(), COUNT) };
    let all = HEADER + COUNT as u64;
    assert_eq!(bytes_in_ring(here, here, private.as_ptr()), REQUEST);
    assert_eq!(bytes_in_ring(here, elsewhere, private.as_ptr()), all);
    assert_eq!(bytes_in_ring(here, elsewhere, shared), REQUEST);
    // The other process has no such memory, so the receiver rejects the rendezvous with `NACK`.
    assert_eq!(bytes_in_ring(elsewhere, here, shared), REQUEST + all);
    // SAFETY: the memory is no longer used.
    unsafe { mem_alloc::free(shared.cast()) }.unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
}
