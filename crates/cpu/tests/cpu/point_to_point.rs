//! Sends and receives that do not match, or whose peer exits.

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

/// The error names both calls, and the next send arrives.
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

rank_tasks! { "mismatch" => send_after_mismatch }

fn send_after_mismatch(process: &RankProcess) {
    let (rank, Comm(comm)) = (process.rank(), process.join());
    let memory = Memory::new(100_000);
    let code =
        if rank == 0 { send(memory.elements(), 1, comm) } else { receive(&mut vec![0; 99_999], 0, comm) };
    assert_eq!(code, USAGE);
    assert_last_error(
        "rank 0 called ncclSend(count 100000, ncclInt32) to rank 1, which called ncclRecv(count 99999, ncclInt32)",
    );
    // The next message arrives.
    let mut buffer = vec![0; 100_000];
    if rank == 0 {
        assert_eq!(send(&numbers(0, 100_000), 1, comm), OK);
    } else {
        assert_eq!(receive(&mut buffer, 0, comm), OK);
        assert!(buffer == numbers(0, 100_000));
    }
    Comm(comm).destroy();
}

#[test]
fn count_mismatch_between_processes_is_invalid_usage() {
    let _watchdog = Watchdog::new();
    processes::run("mismatch", 2);
}
