//! Memory allocated by NCCL: plain, registered, and as windows for one-sided operations.

use libnccl::error::ResultCode;
use libnccl::window::{Signal, WaitSignal, Window, WindowFlags};
use libnccl::{Communicator, Error, Nccl, NcclBuffer, ReduceOp, Result};

use super::common::{STREAM, cases, of_one_thread, on_threads};

const COUNT: usize = 1000;
const HALF: usize = COUNT / 2;

cases! {
    nccl_memory_is_unmapped_by_its_last_user,
    put_signal_writes_next_ranks_window,
    window_memory_in_use_by_peers_is_kept,
    put_beyond_a_shorter_window_is_an_error,
}

fn register(comm: &Communicator, buffer: &mut NcclBuffer<i32>, flags: WindowFlags) -> Result<Window<i32>> {
    // SAFETY: all ranks register as many elements, or the CPU backend compares them.
    unsafe { comm.register_window(buffer, flags) }
}

fn signal_of(peer: usize) -> WaitSignal {
    WaitSignal { count: 1, peer: peer as u32, signal: Signal::default() }
}

/// Asserts that an `all_reduce` of the buffer gives the sum over the ranks.
fn assert_sums(comm: &Communicator, buffer: &mut NcclBuffer<i32>) {
    let own = vec![comm.rank() as i32 + 3; COUNT];
    comm.all_reduce(&own, &mut *buffer, ReduceOp::Sum, STREAM).unwrap();
    comm.all_reduce_in_place(&mut *buffer, ReduceOp::Max, STREAM).unwrap();
    let expected: i32 = (0..comm.size() as i32).map(|rank| rank + 3).sum();
    assert_eq!(contents(comm, buffer), vec![expected; COUNT]);
}

/// Copies a buffer's contents, including a window's, which is not a slice.
fn contents(comm: &Communicator, buffer: &NcclBuffer<i32>) -> Vec<i32> {
    let alone = comm.split(Some(comm.rank() as u32), 0).init().unwrap().expect("a child");
    let mut copy = vec![0; buffer.len()];
    alone.broadcast(buffer, &mut copy, 0, STREAM).unwrap();
    copy
}

/// Deregisters a window once no rank uses it any more.
fn end(comm: &Communicator, window: Window<i32>, buffer: &mut NcclBuffer<i32>) {
    comm.barrier(&mut [0_u8], STREAM).unwrap();
    // SAFETY: all ranks have reached the barrier, after which none uses a window.
    unsafe { buffer.assume_idle() };
    window.deregister().unwrap();
    assert!(buffer.as_slice().is_some());
}

/// Returns the file that is mapped at an address, as it appears in this process's memory map.
fn mapped(address: usize) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let range = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
    };
    let line = maps.lines().find(|line| range(line).is_some_and(|range| range.contains(&address)))?;
    // The device and the inode.
    Some(line.split_whitespace().skip(3).take(2).collect::<Vec<_>>().join(" "))
}

/// The last user is the buffer or its registration.
fn nccl_memory_is_unmapped_by_its_last_user(nccl: &Nccl) {
    let comm = of_one_thread(nccl, 1).remove(0);
    let mut files = Vec::new();
    for how in 0..3 {
        let mut buffer = nccl.alloc::<i32>(COUNT).unwrap();
        assert_eq!(buffer.as_slice(), Some(&[0; COUNT][..]));
        assert_sums(&comm, &mut buffer);
        files.push(mapped(buffer.as_ptr().addr()).expect("it is mapped"));
        match how {
            0 => buffer.free().unwrap(),
            1 => drop(buffer),
            _ => {
                let registration = comm.register(&buffer).unwrap();
                drop(buffer);
                drop(registration);
            }
        }
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for file in files {
        assert!(!maps.contains(&format!(" {file} ")), "{file} is still mapped");
    }
}

/// Puts the first half of every rank's window into the second half of the next rank's.
fn put_around(comm: &Communicator, buffer: &mut NcclBuffer<i32>, window: &Window<i32>) {
    let (rank, size) = (comm.rank(), comm.size());
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let own = vec![rank as i32 + 1; COUNT];
    let alone = comm.split(Some(rank as u32), 0).init().unwrap().expect("a child");
    alone.broadcast(&own, &mut *buffer, 0, STREAM).unwrap();
    // All ranks have filled their windows before any rank puts into one.
    comm.barrier(&mut [0_u8], STREAM).unwrap();
    let half = buffer.get(..HALF).expect("it is longer");
    comm.put_signal(half, next, window.at(HALF), Signal::default(), STREAM).unwrap();
    comm.wait_signal(&[signal_of(previous)], STREAM).unwrap();
    let expected = [[rank as i32 + 1; HALF], [previous as i32 + 1; HALF]].concat();
    assert_eq!(contents(comm, buffer), expected);
}

fn put_signal_writes_next_ranks_window(nccl: &Nccl) {
    for size in 1..=3 {
        on_threads(nccl, size, |comm| {
            let mut buffer = nccl.alloc(COUNT).unwrap();
            let window = register(&comm, &mut buffer, WindowFlags::COLL_SYMMETRIC).unwrap();
            for _ in 0..3 {
                put_around(&comm, &mut buffer, &window);
                comm.barrier(&mut [0_u8], STREAM).unwrap();
            }
            end(&comm, window, &mut buffer);
        });
    }
}

/// Rank 1 drops its window in every way that makes no promise, while rank 0 keeps writing to it.
fn window_memory_in_use_by_peers_is_kept(nccl: &Nccl) {
    for how in 0..4 {
        on_threads(nccl, 2, |comm| {
            let mut buffer = nccl.alloc::<i32>(COUNT).unwrap();
            let window = register(&comm, &mut buffer, WindowFlags::COLL_SYMMETRIC).unwrap();
            if comm.rank() == 0 {
                comm.barrier(&mut [0_u8], STREAM).unwrap();
                let half = buffer.get(..HALF).expect("it is longer");
                for _ in 0..100 {
                    // If rank 1 has ended, this is an error, not a crash.
                    let _ = comm.put_signal(half, 1, window.at(HALF), Signal::default(), STREAM);
                }
                return;
            }
            match how {
                0 => {
                    let refused = window.deregister().unwrap_err();
                    assert!(matches!(refused, Error::InvalidUsage { call: "deregister", .. }), "{refused}");
                    assert!(buffer.as_slice().is_none());
                    drop(buffer);
                    comm.barrier(&mut [0_u8], STREAM).unwrap();
                }
                1 => {
                    drop((window, buffer));
                    comm.barrier(&mut [0_u8], STREAM).unwrap();
                }
                2 => {
                    comm.barrier(&mut [0_u8], STREAM).unwrap();
                    drop((buffer, window));
                    comm.abort().unwrap();
                }
                _ => {
                    comm.barrier(&mut [0_u8], STREAM).unwrap();
                    comm.abort_handle().abort().unwrap();
                    drop(window);
                    assert!(buffer.as_slice().is_none());
                    assert!(matches!(buffer.free(), Err(Error::InvalidUsage { .. })));
                }
            }
        });
    }
}

fn put_beyond_a_shorter_window_is_an_error(nccl: &Nccl) {
    const MORE: usize = 3 * COUNT;
    on_threads(nccl, 2, |comm| {
        let mut buffer = nccl.alloc::<i32>([COUNT, MORE][comm.rank()]).unwrap();
        let window = register(&comm, &mut buffer, WindowFlags::COLL_SYMMETRIC).unwrap();
        if comm.rank() == 1 {
            let put = |at| {
                let one = buffer.get(..1).expect("it is longer");
                comm.put_signal(one, 0, window.at(at), Signal::default(), STREAM)
            };
            put(COUNT - 1).unwrap();
            let error = put(COUNT).unwrap_err();
            assert_eq!(error.code(), Some(ResultCode::INVALID_ARGUMENT), "{error}");
            assert!(error.to_string().contains("rank 0's part has 4000 bytes"), "{error}");
        }
        end(&comm, window, &mut buffer);
    });
}
