//! Sends and receives.

use std::ptr;
use std::thread;
use std::time::Duration;

use crate::common::memory::Memory;
use crate::common::processes::{self, RankProcess};
use crate::common::watchdog::Watchdog;
use crate::common::{
    Comm, I32, Mode, OK, REMOTE, USAGE, alone, assert_last_error, init, last_error, on_threads,
};
use libnccl::sys::{ncclComm_t, ncclResult_t};

fn send(buffer: &[i32], peer: usize, comm: ncclComm_t) -> ncclResult_t {
    nccl!(ncclSend(buffer.as_ptr().cast(), buffer.len(), I32, peer as i32, comm, ptr::null_mut()))
}

fn receive(buffer: &mut [i32], peer: usize, comm: ncclComm_t) -> ncclResult_t {
    nccl!(ncclRecv(buffer.as_mut_ptr().cast(), buffer.len(), I32, peer as i32, comm, ptr::null_mut()))
}

fn numbers(rank: usize, count: usize) -> Vec<i32> {
    (0..count).map(|index| (index * 31 + rank) as i32).collect()
}

/// The error names both calls, and the next message arrives.
#[test]
fn count_mismatch_is_invalid_usage_and_drops_message() {
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
    // A sender that is still sending gets the error, too.
    let codes = on_threads(2, |rank| match rank {
        0 => send(&numbers(0, 100_000), 1, comms[0].0),
        _ => receive(&mut [0; 9], 0, comms[1].0),
    });
    assert_eq!(codes, [USAGE, USAGE]);
    comms.into_iter().for_each(Comm::destroy);
}

/// Relies on buffers: with `LIBNCCL_CPU_STRICT=1`, the send waits.
#[test]
fn receive_from_departed_rank_returns_remote_error() {
    let _alone = alone();
    let comms = init(Mode::Group, 2);
    assert_eq!(send(&[7], 0, comms[1].0), OK);
    comms[1].destroy();
    let mut buffer = [0];
    assert_eq!(receive(&mut buffer, 1, comms[0].0), OK);
    assert_eq!(buffer, [7], "a message sent before it left still arrives");
    assert_eq!(receive(&mut buffer, 1, comms[0].0), REMOTE);
    assert_last_error("rank 1 has left");
    comms[0].destroy();
}

/// Sizes around those where the protocol changes, one message at a time, and all in one group.
#[test]
fn messages_of_all_sizes_between_threads_arrive() {
    let _watchdog = Watchdog::new();
    let lengths = [1, 3, 4, 16_383, 16_384, 16_385, 20_000, 262_143, 262_144, 1_000_000];
    let comms = init(Mode::Threads, 2);
    on_threads(2, |rank| all_sizes(&lengths, rank, { comms[rank] }.0));
    comms.into_iter().for_each(Comm::destroy);
}

fn all_sizes(lengths: &[usize], rank: usize, comm: ncclComm_t) {
    let mut buffers: Vec<Vec<i32>> = lengths.iter().map(|length| vec![0; *length]).collect();
    for (index, buffer) in buffers.iter_mut().enumerate() {
        if rank == index % 2 {
            assert_eq!(send(&numbers(index, buffer.len()), 1 - rank, comm), OK, "{}", last_error());
        } else {
            assert_eq!(receive(buffer, 1 - rank, comm), OK, "{}", last_error());
            assert!(*buffer == numbers(index, buffer.len()), "{}", buffer.len());
        }
    }
    let sent: Vec<Vec<i32>> = lengths.iter().map(|length| numbers(rank + length, *length)).collect();
    assert_eq!(nccl!(ncclGroupStart()), OK);
    for (sent, buffer) in sent.iter().zip(&mut buffers) {
        assert_eq!(send(sent, 1 - rank, comm), OK);
        assert_eq!(receive(buffer, 1 - rank, comm), OK);
    }
    assert_eq!(nccl!(ncclGroupEnd()), OK, "{}", last_error());
    for buffer in buffers {
        assert!(buffer == numbers(1 - rank + buffer.len(), buffer.len()), "{}", buffer.len());
    }
}

/// At least the beginning of the message arrives where the buffers overlap.
#[test]
fn overlapping_self_send_copies_message() {
    let _watchdog = Watchdog::new();
    let comms = init(Mode::Group, 1);
    let Comm(comm) = comms[0];
    let count = 100_000;
    let mut buffer = numbers(1, count + 50_000);
    for offset in [0, 20_000, 50_000] {
        let place = buffer.as_mut_ptr();
        let (from, to) = (place.cast(), place.wrapping_add(offset).cast());
        assert_eq!(nccl!(ncclGroupStart()), OK);
        assert_eq!(nccl!(ncclSend(from, count, I32, 0, comm, ptr::null_mut())), OK);
        assert_eq!(nccl!(ncclRecv(to, count, I32, 0, comm, ptr::null_mut())), OK);
        assert_eq!(nccl!(ncclGroupEnd()), OK, "{}", last_error());
        assert_eq!(buffer[offset..][..1000], numbers(1, 1000), "{offset}");
        buffer = numbers(1, count + 50_000);
    }
    comms[0].destroy();
}

#[test]
fn large_send_to_departing_rank_returns_remote_error() {
    let _alone = alone();
    let _watchdog = Watchdog::new();
    let comms = init(Mode::Threads, 2);
    let codes = on_threads(2, |rank| {
        if rank == 1 {
            thread::sleep(Duration::from_millis(20));
            comms[1].destroy();
            return REMOTE;
        }
        send(&numbers(0, 100_000), 1, comms[0].0)
    });
    assert_eq!(codes, [REMOTE; 2]);
    assert_last_error("rank 1 has left");
    comms[0].destroy();
}

rank_tasks! {
    "large_messages" => send_large_messages,
    "mismatch" => send_large_messages_after_mismatch,
}

fn send_large_messages(process: &RankProcess) {
    exchange_large_messages(process.rank(), process.join());
}

fn send_large_messages_after_mismatch(process: &RankProcess) {
    let (rank, Comm(comm)) = (process.rank(), process.join());
    let code = if rank == 0 {
        let memory = Memory::new(100_000);
        send(memory.elements(), 1, comm)
    } else {
        receive(&mut vec![0; 99_999], 0, comm)
    };
    assert_eq!(code, USAGE);
    let expected = "rank 0 called ncclSend(count 100000, ncclInt32) to rank 1, which called \
                    ncclRecv(count 99999, ncclInt32)";
    assert_last_error(expected);
    exchange_large_messages(rank, Comm(comm));
}

/// Sends messages from and to shared and private memory.
fn exchange_large_messages(rank: usize, Comm(comm): Comm) {
    for round in 0..3 {
        for shared in [false, true] {
            let (memory, mut private) = (Memory::new(400_000), vec![0; 400_000]);
            let buffer = if shared { memory.elements() } else { &mut private };
            if rank == round % 2 {
                buffer.copy_from_slice(&numbers(round, 400_000));
                assert_eq!(send(buffer, 1 - rank, comm), OK, "{}", last_error());
            } else {
                assert_eq!(receive(buffer, 1 - rank, comm), OK, "{}", last_error());
                assert!(*buffer == numbers(round, 400_000), "{round} {shared}");
            }
        }
    }
    all_sizes(&[1, 16_385, 5, 500_000], rank, comm);
    Comm(comm).destroy();
}

#[test]
fn large_messages_between_processes_arrive() {
    let _watchdog = Watchdog::new();
    processes::run("large_messages", 2);
}

#[test]
fn count_mismatch_between_processes_is_invalid_usage() {
    let _watchdog = Watchdog::new();
    processes::run("mismatch", 2);
}
