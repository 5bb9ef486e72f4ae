//! Sends and receives.

mod common;

use std::ptr;

use common::{Comm, Mode, OK, REMOTE, USAGE, addresses, alone, init, last_error, on_threads, together};
use libnccl::sys::{ncclComm_t, ncclDataType_t, ncclResult_t};

const I32: ncclDataType_t = ncclDataType_t::ncclInt32;

fn send(buffer: &[i32], peer: usize, comm: ncclComm_t) -> ncclResult_t {
    nccl!(ncclSend(buffer.as_ptr().cast(), buffer.len(), I32, peer as i32, comm, ptr::null_mut()))
}

fn receive(buffer: &mut [i32], peer: usize, comm: ncclComm_t) -> ncclResult_t {
    nccl!(ncclRecv(buffer.as_mut_ptr().cast(), buffer.len(), I32, peer as i32, comm, ptr::null_mut()))
}

fn numbers(rank: usize, count: usize) -> Vec<i32> {
    (0..count).map(|index| (index * 31 + rank) as i32).collect()
}

/// In one group, each rank sends to the next and receives from the one before.
#[test]
fn a_ring() {
    for (mode, n, count) in [
        (Mode::Threads, 3, 1),
        (Mode::Threads, 4, 5),
        (Mode::Threads, 3, 100_001),
        (Mode::Group, 1, 100_001),
        (Mode::Group, 2, 7),
        (Mode::Group, 5, 100_001),
    ] {
        let comms = init(mode, n);
        let sends: Vec<_> = (0..n).map(|rank| numbers(rank, count)).collect();
        let mut received = vec![vec![0; count]; n];
        let places = addresses(&mut received);
        together(mode, &comms, |rank, comm| {
            assert_eq!(nccl!(ncclGroupStart()), OK);
            assert_eq!(send(&sends[rank], (rank + 1) % n, comm), OK);
            let (place, from) = (places[rank].0.cast(), ((rank + n - 1) % n) as i32);
            assert_eq!(nccl!(ncclRecv(place, count, I32, from, comm, ptr::null_mut())), OK);
            nccl!(ncclGroupEnd())
        });
        for rank in 0..n {
            assert!(received[rank] == sends[(rank + n - 1) % n], "{mode:?} {n} {count}");
        }
        comms.into_iter().for_each(Comm::destroy);
    }
}

#[test]
fn messages_arrive_in_order_and_whole() {
    let comms = init(Mode::Threads, 2);
    let lengths = [1, 2, 3, 16_380, 16_384, 40_000, 5];
    on_threads(2, |rank| {
        for (index, length) in lengths.into_iter().enumerate() {
            if rank == 0 {
                assert_eq!(send(&numbers(index, length), 1, comms[0].0), OK);
            } else {
                let mut buffer = vec![0; length];
                assert_eq!(receive(&mut buffer, 0, comms[1].0), OK);
                assert!(buffer == numbers(index, length));
            }
        }
    });
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn large_messages_cross_in_a_group_beside_a_collective() {
    let comms = init(Mode::Threads, 2);
    on_threads(2, |rank| {
        let (mine, mut theirs, mut sum) = (numbers(rank, 200_000), vec![0; 200_000], vec![1; 70_000]);
        let Comm(comm) = comms[rank];
        assert_eq!(nccl!(ncclGroupStart()), OK);
        for (part, message) in mine.chunks(50_000).zip(theirs.chunks_mut(50_000)) {
            assert_eq!(send(part, 1 - rank, comm), OK);
            assert_eq!(receive(message, 1 - rank, comm), OK);
        }
        let place = sum.as_mut_ptr().cast();
        let op = libnccl::sys::ncclRedOp_t::ncclSum;
        assert_eq!(nccl!(ncclAllReduce(place, place, 70_000, I32, op, comm, ptr::null_mut())), OK);
        assert_eq!(nccl!(ncclGroupEnd()), OK);
        assert!(theirs == numbers(1 - rank, 200_000));
        assert!(sum.iter().all(|element| *element == 2));
    });
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn a_rank_sends_to_itself_only_if_it_receives_in_the_same_group() {
    let _alone = alone();
    let comms = init(Mode::Group, 1);
    let Comm(comm) = comms[0];
    assert_eq!(send(&[1], 0, comm), USAGE);
    assert!(last_error().contains("sends to itself"), "{}", last_error());
    assert_eq!(receive(&mut [0], 0, comm), USAGE);
    let mut buffer = [0];
    assert_eq!(nccl!(ncclGroupStart()), OK);
    assert_eq!(receive(&mut buffer, 0, comm), OK);
    assert_eq!(send(&[5], 0, comm), OK);
    assert_eq!(nccl!(ncclGroupEnd()), OK);
    assert_eq!(buffer, [5]);
    comms[0].destroy();
}

/// A message that does not match is an error that names both sides; the next one gets through.
#[test]
fn a_mismatch_is_told_and_gone() {
    let _alone = alone();
    let comms = init(Mode::Threads, 2);
    for length in [10, 100_000] {
        let (failed, text) = on_threads(2, |rank| {
            let code = if rank == 0 {
                send(&numbers(0, length), 1, comms[0].0)
            } else {
                receive(&mut [0; 9], 0, comms[1].0)
            };
            (code, last_error())
        })
        .pop()
        .unwrap();
        assert_eq!(failed, USAGE);
        let expected =
            format!("rank 0 called ncclSend(count {length}, ncclInt32) to rank 1, which called ncclRecv");
        assert!(text.contains(&expected), "{text}");
        on_threads(2, |rank| {
            let mut buffer = [0; 2];
            if rank == 0 {
                assert_eq!(send(&[1, 2], 1, comms[0].0), OK);
            } else {
                assert_eq!(receive(&mut buffer, 0, comms[1].0), OK);
                assert_eq!(buffer, [1, 2]);
            }
        });
    }
    // A sender that is still at it is told, too.
    let codes = on_threads(2, |rank| match rank {
        0 => send(&numbers(0, 100_000), 1, comms[0].0),
        _ => receive(&mut [0; 9], 0, comms[1].0),
    });
    assert_eq!(codes, [USAGE, USAGE]);
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn who_waits_for_a_rank_that_left_is_told() {
    let _alone = alone();
    let comms = init(Mode::Group, 2);
    assert_eq!(send(&[7], 0, comms[1].0), OK);
    comms[1].destroy();
    let mut buffer = [0];
    assert_eq!(receive(&mut buffer, 1, comms[0].0), OK);
    assert_eq!(buffer, [7], "what it sent before it left still arrives");
    assert_eq!(receive(&mut buffer, 1, comms[0].0), REMOTE);
    assert!(last_error().contains("rank 1 has left"), "{}", last_error());
    comms[0].destroy();
}
