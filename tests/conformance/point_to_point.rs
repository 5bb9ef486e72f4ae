//! Sends and receives.

use std::ffi::c_int;

use crate::rank::{ARGUMENT, Buffer, I32, OK, PROGRESS, Rank, USAGE};
use crate::{Case, cases};

pub(crate) fn cases() -> Vec<Case> {
    cases! {
        2..=2 => sends_of_all_sizes_arrive_in_order;
        1..=4 => all_to_all_of_all_sizes, send_to_itself;
        2..=3 => failed_group_sends_nothing;
    }
}

/// Counts around those where the protocol changes.
const COUNTS: [usize; 10] = [1, 3, 4, 16_383, 16_384, 16_385, 20_000, 262_143, 262_144, 1_000_000];

fn numbers(rank: usize, count: usize) -> Vec<i32> {
    (0..count).map(|index| (index * 31 + 7 * count + rank) as i32).collect()
}

/// Every other one is from and to memory of NCCL.
fn buffer<'a>(rank: &'a Rank, index: usize, elements: &[i32]) -> Buffer<'a> {
    if index.is_multiple_of(2) { rank.upload(elements) } else { rank.upload_to_nccl(elements) }
}

fn sends_of_all_sizes_arrive_in_order(rank: &Rank) {
    let (comm, peer) = (rank.join("communicator"), 1 - rank.number);
    for sender in [0, 1] {
        let sent = |count| if rank.number == sender { numbers(sender, count) } else { vec![0; count] };
        let buffers = COUNTS
            .iter()
            .enumerate()
            .map(|(index, count)| buffer(rank, index + rank.number * (index / 2), &sent(*count)));
        for (buffer, count) in buffers.collect::<Vec<_>>().iter().zip(COUNTS) {
            if rank.number == sender {
                rank.send(buffer, peer, comm);
            } else {
                rank.receive_into(buffer, peer, comm);
                assert!(buffer.read::<i32>() == numbers(sender, count), "{count} elements");
            }
        }
        rank.synchronize();
    }
    rank.destroy(comm);
}

/// Each rank sends buffers of all sizes to each rank, itself included, in one group.
fn all_to_all_of_all_sizes(rank: &Rank) {
    let comm = rank.join("communicator");
    let mut messages = vec![];
    for (index, count) in COUNTS.into_iter().enumerate() {
        for peer in 0..rank.size {
            let sent = buffer(rank, index, &numbers(10 * rank.number + peer, count));
            messages.push((peer, count, sent, buffer(rank, index / 2, &vec![0; count])));
        }
    }
    let code = rank.group(|| {
        for (peer, _, sent, received) in &messages {
            rank.send(sent, *peer, comm);
            rank.receive_into(received, *peer, comm);
        }
    });
    assert!(code == OK || code == PROGRESS, "{code:?}: {}", rank.last_error());
    for (peer, count, _, received) in &messages {
        let expected = numbers(10 * peer + rank.number, *count);
        assert!(received.read::<i32>() == expected, "{count} elements from {peer}");
    }
    rank.destroy(comm);
}

/// At least the beginning arrives where the buffers overlap.
fn send_to_itself(rank: &Rank) {
    let (comm, count, me) = (rank.join("communicator"), 100_000, rank.number as c_int);
    let offsets: &[usize] =
        if rank.implementation.is_cpu_backend() { &[0, 20_000, 100_000] } else { &[100_000] };
    for offset in offsets {
        let buffer = rank.upload(&numbers(1, 2 * count));
        let (from, to) = (buffer.at(0), buffer.at(4 * offset));
        let code = rank.group(|| {
            check!(rank, ncclSend(from, count, I32, me, comm, rank.stream()));
            check!(rank, ncclRecv(to, count, I32, me, comm, rank.stream()));
        });
        assert_eq!(code, OK, "{}", rank.last_error());
        assert_eq!(buffer.read::<i32>()[*offset..][..1000], numbers(1, 2 * count)[..1000], "{offset}");
    }
    let buffer = rank.upload(&[0; 2]);
    // Not tried on a GPU.
    let unpaired =
        [(0, 1), (1, 0), (1, 2), (2, 1)].into_iter().filter(|_| rank.implementation.is_cpu_backend());
    for (sends, receives) in unpaired {
        let code = rank.group(|| {
            for _ in 0..sends {
                check!(rank, ncclSend(buffer.at(0), 1, I32, me, comm, rank.stream()));
            }
            for _ in 0..receives {
                check!(rank, ncclRecv(buffer.at(4), 1, I32, me, comm, rank.stream()));
            }
        });
        assert_eq!(code, USAGE, "{sends} sends and {receives} receives");
    }
    rank.destroy(comm);
}

/// A rank whose group fails has sent nothing: the next send is the one that arrives.
fn failed_group_sends_nothing(rank: &Rank) {
    let comm = rank.join("communicator");
    rank.assert_works(comm);
    let last = rank.size - 1;
    let [stale, sent, received] = [7, 5, 0].map(|value| rank.upload(&[value; 1000]));
    if rank.number == 0 {
        let code = rank.group(|| {
            rank.send(&stale, last, comm);
            let code = call!(rank, ncclSend(stale.at(0), 1, I32, 9, comm, rank.stream()));
            assert_eq!(code, ARGUMENT);
        });
        assert_eq!(code, ARGUMENT);
        rank.send(&sent, last, comm);
    } else if rank.number == last {
        rank.receive_into(&received, 0, comm);
        assert_eq!(received.read::<i32>(), [5; 1000]);
    }
    rank.assert_works(comm);
    rank.destroy(comm);
}
