//! Buffers that are not mapped, or read-only: a line names the call and the buffer, and the other ranks do not wait.
//!
//! A fault ends a process, so each program runs in separate processes.
#![allow(unsafe_code)] // mmap, handlers of signals

use std::ffi::c_void;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Output};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::common::processes::{self, RankProcess};
use crate::common::{
    ARGUMENT, Comm, F32, OK, STREAM, SUM, alone, assert_last_error, assert_sum, in_group, init, last_error,
    on_threads, unique_id,
};
use libnccl::sys::{NCCL_WIN_COLL_SYMMETRIC, ncclResult_t, ncclScalarResidence_t};

rank_tasks!(use_buffer, recover, raise);

const PAGE: usize = 1 << 16;

const SHORT: usize = 2 * PAGE;

const LONG: usize = 4 << 20;

const SYMMETRIC: i32 = NCCL_WIN_COLL_SYMMETRIC as i32;

/// Maps memory far from addresses that the kernel chooses, so that nothing else is mapped there once it is unmapped.
fn map(length: usize, protection: libc::c_int) -> *mut u8 {
    static NEXT: AtomicUsize = AtomicUsize::new(1 << 36);
    let hint = ptr::without_provenance_mut(NEXT.fetch_add(1 << 30, Relaxed));
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory, where nothing is mapped.
    let start = unsafe { libc::mmap(hint, length, protection, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start.cast()
}

/// Returns the start of `length` bytes that are invalid in this way.
fn wrong_buffer(kind: &str, length: usize) -> *mut u8 {
    let protection = if kind == "read_only" { libc::PROT_READ } else { libc::PROT_READ | libc::PROT_WRITE };
    let start = map(length, protection);
    let usable = match kind {
        "outside" => return ptr::without_provenance_mut(0x5a5a_5a5a_5a5a_5a5a),
        "unmapped" => 0,
        "short" => SHORT,
        _ => return start,
    };
    // SAFETY: the end of the memory that was mapped, which nothing uses.
    assert_eq!(unsafe { libc::munmap(start.add(usable).cast(), length - usable) }, 0);
    start
}

fn call(function: &str, rank: usize, buffer: *mut u8, length: usize, comm: Comm) -> ncclResult_t {
    let (count, good, buffer) =
        (length / 4, wrong_buffer("good", 2 * length).cast::<c_void>(), buffer.cast());
    let (other, comm) = (1 - rank as i32, comm.0);
    match function {
        "sum_from" => nccl!(ncclAllReduce(buffer, good, count, F32, SUM, comm, STREAM)),
        "sum_to" => nccl!(ncclAllReduce(good, buffer, count, F32, SUM, comm, STREAM)),
        "sum_in_place" => nccl!(ncclAllReduce(buffer, buffer, count, F32, SUM, comm, STREAM)),
        "broadcast_to" => nccl!(ncclBroadcast(good, buffer, count, F32, 0, comm, STREAM)),
        "gather_from" => nccl!(ncclAllGather(buffer, good, count, F32, comm, STREAM)),
        // The other rank makes the opposite call.
        "send" | "receive" if (function == "send") == (rank == 1) => {
            nccl!(ncclSend(buffer, count, F32, other, comm, STREAM))
        }
        "send" | "receive" => nccl!(ncclRecv(buffer, count, F32, other, comm, STREAM)),
        "grouped_sum_to" => {
            let sum = |to| nccl!(ncclAllReduce(good, to, count, F32, SUM, comm, STREAM));
            in_group(|| assert_eq!([sum(good), sum(buffer)], [OK; 2]))
        }
        // The other rank frees its part of the window.
        "put" => {
            let mut window = ptr::null_mut();
            assert_eq!(nccl!(ncclCommWindowRegister(comm, good, length, &mut window, SYMMETRIC)), OK);
            if rank == 0 {
                // SAFETY: the memory that was mapped.
                assert_eq!(unsafe { libc::munmap(good, 2 * length) }, 0);
            }
            assert_sum(comm, 2);
            match rank {
                1 => nccl!(ncclPutSignal(good, length / 4, F32, 0, window, 0, 0, 0, 0, comm, STREAM)),
                _ => OK,
            }
        }
        _ => panic!("{function}"),
    }
}

/// Uses a buffer that is invalid on rank 1 in a call: the function, the kind of buffer and its length are the arguments.
fn use_buffer(process: &RankProcess) {
    let [function, kind, length] = &process.arguments[..] else { panic!() };
    let length = length.parse().unwrap();
    on_threads(process.own.len(), |index| {
        let rank = process.own[index];
        let comm = process.join_as(rank);
        let buffer = wrong_buffer(if rank == 1 { kind } else { "good" }, length);
        let mut code = call(function, rank, buffer, length, comm);
        if rank == 0 && code == OK {
            // It may complete without the other rank, but the next call does not.
            code = call("sum_to", rank, buffer, 8, comm);
        }
        println!("{code:?}: {}", last_error());
    });
}

/// Runs a task in processes with these ranks, and returns for each the signal that killed it, and its output.
#[track_caller]
fn run(task: &str, ranks: &[&[usize]], variables: &[(&str, &str)]) -> Vec<(Option<i32>, String)> {
    let (id, mut children) = (unique_id(), vec![]);
    // Not in a closure, which would be the caller.
    for own in ranks {
        let mut command = processes::command(task, &id, 2, own);
        children.push(command.envs(variables.iter().copied()).spawn().unwrap());
    }
    let end = |child: Child| {
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let text = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        (status.signal(), text)
    };
    children.into_iter().map(end).collect()
}

const TWO: &[&[usize]] = &[&[0], &[1]];

const PROGRAMS: &[(&str, &str, usize, &str)] = &[
    ("sum_from", "unmapped", 40_000, "ncclAllReduce(count 10000, ncclFloat32, ncclSum): sendbuff"),
    ("sum_from", "unmapped", 400, "ncclAllReduce(count 100, ncclFloat32, ncclSum): sendbuff"),
    ("sum_from", "short", LONG, "ncclAllReduce(count 1048576, ncclFloat32, ncclSum): sendbuff"),
    ("sum_from", "outside", 400, "ncclAllReduce(count 100, ncclFloat32, ncclSum): sendbuff"),
    ("sum_to", "read_only", 400, "ncclAllReduce(count 100, ncclFloat32, ncclSum): recvbuff"),
    ("sum_to", "read_only", LONG, "ncclAllReduce(count 1048576, ncclFloat32, ncclSum): recvbuff"),
    ("sum_in_place", "read_only", 40_000, "ncclAllReduce(count 10000, ncclFloat32, ncclSum): recvbuff"),
    ("grouped_sum_to", "short", LONG, "ncclAllReduce(count 1048576, ncclFloat32, ncclSum): recvbuff"),
    ("broadcast_to", "unmapped", 400, "ncclBroadcast(count 100, ncclFloat32, root 0): recvbuff"),
    ("gather_from", "short", LONG, "ncclAllGather(count 1048576, ncclFloat32): sendbuff"),
    ("send", "unmapped", 400, "ncclSend(count 100, ncclFloat32, peer 0): sendbuff"),
    ("send", "short", LONG, "ncclSend(count 1048576, ncclFloat32, peer 0): sendbuff"),
    ("receive", "read_only", 400, "ncclRecv(count 100, ncclFloat32, peer 0): recvbuff"),
    ("receive", "unmapped", LONG, "ncclRecv(count 1048576, ncclFloat32, peer 0): recvbuff"),
];

/// Checks that a rank with an invalid buffer has reported it and was killed by the fault.
#[track_caller]
fn check(signal: Option<i32>, printed: &str, kind: &str, length: usize, buffer: &str) {
    let line = printed.lines().find(|line| line.ends_with(" [invalid-buffer]")).unwrap_or(printed);
    let cause = match kind {
        "outside" if cfg!(target_arch = "x86_64") => "this is no address of a process",
        "unmapped" | "short" | "outside" => "no memory is mapped there",
        _ => "the memory there is read-only",
    };
    let (place, bytes) = (format!("rank 1: {buffer} 0x"), format!(", {length} bytes, is invalid from byte "));
    let expected = [place.as_str(), &bytes, cause];
    assert!(expected.iter().all(|part| line.contains(*part)), "{expected:?}: {printed}");
    let at: usize =
        line.split("from byte ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().parse().unwrap();
    assert!(kind != "short" || (SHORT..length).contains(&at), "{printed}");
    assert_eq!(signal, Some(libc::SIGSEGV), "{printed}");
}

#[test]
fn invalid_buffer_is_named_and_other_processes_do_not_wait() {
    for (function, kind, length, buffer) in PROGRAMS {
        let outcomes = run(&format!("use_buffer {function} {kind} {length}"), TWO, &[]);
        let [(status, other), (signal, printed)] = &outcomes[..] else { panic!() };
        // Another process that reads the buffer may be first; then there is no signal.
        let is_read = other.contains(" of rank 1 is invalid from byte ")
            || other.contains("of rank 1 cannot be written");
        if !(is_read && signal.is_none()) {
            check(*signal, printed, kind, *length, buffer);
        }
        assert_eq!(*status, None, "{function} {kind}: {other}");
        assert!(other.contains("rank 1"), "{function} {kind}: {other}");
    }
}

#[test]
fn invalid_buffer_is_named_with_ranks_as_threads() {
    let put = ("put", "unmapped", 1 << 16, "ncclPutSignal(65536 bytes, peer 0): the peer's window");
    for (function, kind, length, buffer) in PROGRAMS.iter().chain([&put]) {
        let task = format!("use_buffer {function} {kind} {length}");
        let [(signal, printed)] = &run(&task, &[&[0, 1]], &[])[..] else { panic!() };
        check(*signal, printed, kind, *length, buffer);
    }
}

#[test]
fn ignored_invalid_buffer_is_only_a_fault() {
    let outcomes = run("use_buffer sum_from unmapped 400", TWO, &[("LIBNCCL_CPU_IGNORE", "invalid-buffer")]);
    let (signal, printed) = &outcomes[1];
    assert_eq!(*signal, Some(libc::SIGSEGV), "{printed}");
    assert!(!printed.contains("is invalid from byte"), "{printed}");
}

static PROTECTED: AtomicUsize = AtomicUsize::new(0);

/// A program whose handler makes memory writable that it has protected, as garbage collectors do.
fn recover(process: &RankProcess) {
    extern "C" fn unprotect(_: libc::c_int) {
        let start = ptr::with_exposed_provenance_mut(PROTECTED.load(Relaxed));
        // SAFETY: the memory of this program's buffer.
        unsafe { libc::mprotect(start, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
    }
    let handler = unprotect as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler does only what a handler may.
    unsafe { libc::signal(libc::SIGSEGV, handler) };
    let comm = process.join();
    let buffer = map(PAGE, libc::PROT_READ);
    PROTECTED.store(buffer.expose_provenance(), Relaxed);
    assert_eq!(call("sum_to", process.rank(), buffer, 400, comm), OK);
    comm.destroy();
}

#[test]
fn earlier_signal_handler_that_fixes_the_fault_is_called() {
    for (signal, printed) in run("recover", TWO, &[]) {
        assert_eq!(signal, None, "{printed}");
    }
}

/// A signal that is sent kills a process as if there were no handler.
fn raise(process: &RankProcess) {
    let signal: libc::c_int = process.arguments[0].parse().unwrap();
    // SAFETY: the action of other programs: the handler of Rust's library takes no notice of the signal, which ends this process.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    let _comms = init(1);
    // SAFETY: as above.
    unsafe { libc::raise(signal) };
}

#[test]
fn signal_sent_by_a_process_to_itself_kills_it() {
    for expected in [libc::SIGSEGV, libc::SIGBUS] {
        let [(signal, printed)] = &run(&format!("raise {expected}"), &[&[0]], &[])[..] else { panic!() };
        assert_eq!(*signal, Some(expected), "{printed}");
        assert!(!printed.contains("is invalid from byte"), "{printed}");
    }
}

/// Memory of a registration, of a window, and of the scalar of a reduction.
#[test]
fn unmapped_memory_in_other_calls_is_invalid_argument() {
    let _alone = alone();
    let comm = init(1)[0];
    let buffer = wrong_buffer("short", 4 * SHORT).cast::<c_void>();
    let (mut handle, mut window, mut op) = (ptr::null_mut(), ptr::null_mut(), SUM);
    assert_eq!(nccl!(ncclCommRegister(comm.0, buffer, 4 * SHORT, &mut handle)), ARGUMENT);
    let expected = format!("no memory is mapped from byte {SHORT} on");
    assert_last_error(&expected);
    assert_eq!(nccl!(ncclCommWindowRegister(comm.0, buffer, 4 * SHORT, &mut window, 0)), ARGUMENT);
    assert_last_error(&expected);
    assert_eq!(nccl!(ncclCommRegister(comm.0, buffer, SHORT, &mut handle)), OK);
    let scalar = wrong_buffer("unmapped", PAGE).cast();
    for residence in [0, 1].map(ncclScalarResidence_t) {
        let created = nccl!(ncclRedOpCreatePreMulSum(&mut op, scalar, F32, residence, comm.0));
        assert_eq!(created, ARGUMENT, "{residence:?}");
        assert_last_error("4 bytes: no memory is mapped from byte 0 on");
    }
    comm.destroy();
}
