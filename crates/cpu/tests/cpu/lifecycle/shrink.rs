//! `ncclCommShrink`.

use std::ptr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::calls::{assert_members, shrink, split, sum};
use crate::common::processes::{kill, spawn};
use crate::common::watchdog::Watchdog;
use crate::common::{
    ARGUMENT, Comm, Mode, OK, REMOTE, SOON, USAGE, alone, assert_last_error, async_error, init, init_rank,
    last_error, on_threads, unique_id,
};

#[test]
fn shrink_abort_after_killed_rank_creates_usable_comm() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let id = unique_id();
    let mut child = spawn("hang", &id, 4, 2);
    let comms = on_threads(4, |rank| (rank != 2).then(|| init_rank(id, 4, rank).unwrap()));
    let alive = |rank: usize| comms[rank].map(|comm| comm.0);
    on_threads(4, |rank| alive(rank).map(|comm| assert_eq!(sum(comm, 1), Ok(4))));
    kill(&mut child);
    on_threads(4, |rank| {
        let Some(comm) = alive(rank) else { return };
        // One rank shrinks before its communicator has noticed the failure; the others wait in an operation.
        if rank != 0 {
            assert_eq!(sum(comm, 1), Err(REMOTE));
            assert_eq!(shrink(comm, &[2], 0), Err(REMOTE), "the communicator has failed");
        }
        let fewer = shrink(comm, &[2], 1).unwrap_or_else(|code| panic!("{code:?} {}", last_error()));
        assert_members(fewer, rank as i32, &[0, 1, 3]);
        assert_eq!(async_error(comm), OK, "the shrink has cleared the error");
        assert_eq!(sum(comm, 1), Err(USAGE));
        assert_eq!(nccl!(ncclCommFinalize(comm)), ARGUMENT);
        Comm(comm).destroy();
        // The new communicator can be split.
        let fewest = split(fewer.0, i32::from(rank == 3), 0).unwrap();
        assert_members(fewest, rank as i32, if rank == 3 { &[3] } else { &[0, 1] });
        fewer.destroy();
        fewest.destroy();
    });
}

/// Another thread has used the communicator of that rank last, and keeps it for its next call.
#[test]
fn shrink_does_not_wait_for_a_survivor_that_has_aborted() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Threads, 3);
    let (looked, has_looked) = mpsc::channel();
    let (end, is_over) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let comm = comms[1];
        scope.spawn(move || {
            looked.send(async_error({ comm }.0)).unwrap();
            let _ = is_over.recv();
        });
        assert_eq!(has_looked.recv(), Ok(OK));
        assert_eq!(nccl!(ncclCommAbort({ comms[1] }.0)), OK);
        assert_eq!(shrink({ comms[0] }.0, &[2], 1), Err(REMOTE));
        assert_last_error("rank 1 aborted the communicator");
        drop(end);
    });
    for Comm(comm) in [comms[0], comms[2]] {
        assert_eq!(nccl!(ncclCommAbort(comm)), OK);
    }
}

#[test]
fn shrink_with_invalid_arguments_fails() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Group, 4);
    let Comm(comm) = comms[1];
    for (exclude, text) in [
        (&[4, 0][..], "invalid list of excluded ranks: rank 4 is not in 0..4"),
        (&[-1, 0], "rank -1 is not in 0..4"),
        (&[0, 0], "rank 0 is in it twice"),
        (&[0, 1], "rank 1 calls this and is in it"),
        (&[], "invalid number of excluded ranks 0: it has to be in 1..4"),
        (&[0, 1, 2, 3], "invalid number of excluded ranks 4"),
    ] {
        assert_eq!(shrink(comm, exclude, 0), Err(ARGUMENT), "{exclude:?}");
        assert_last_error(text);
    }
    assert_eq!(shrink(ptr::null_mut(), &[0], 0), Err(ARGUMENT));
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn shrink_sorts_list_of_excluded_ranks() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Threads, 4);
    let (mut list, mut child) = ([3, 0, 1], ptr::null_mut());
    let Comm(comm) = comms[2];
    let code = nccl!(ncclCommShrink(comm, list.as_mut_ptr(), 3, &mut child, ptr::null_mut(), 0));
    assert_eq!((code, list), (OK, [0, 1, 3]));
    assert_members(Comm(child), 2, &[2]);
    Comm(child).destroy();
    comms.into_iter().for_each(Comm::destroy);
}

/// Ranks wait in an operation for one that does not call it; `NCCL_SHRINK_ABORT` ends the wait.
#[test]
fn shrink_abort_ends_blocked_operations() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Threads, 3);
    thread::scope(|scope| {
        let blocked = [0, 1].map(|rank| {
            let comm = comms[rank];
            scope.spawn(move || sum({ comm }.0, 1))
        });
        thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        let fewer = on_threads(2, |rank| shrink({ comms[rank] }.0, &[2], 1).unwrap());
        for blocked in blocked {
            assert_eq!(blocked.join().unwrap(), Err(REMOTE));
        }
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        on_threads(2, |rank| assert_members(fewer[rank], rank as i32, &[0, 1]));
        fewer.into_iter().for_each(Comm::destroy);
    });
    // The operation that the others had entered may still complete; after it the excluded rank gets the error.
    assert!(matches!(sum({ comms[2] }.0, 1), Ok(3) | Err(REMOTE)));
    assert_eq!(sum({ comms[2] }.0, 1), Err(REMOTE));
    assert_last_error("shrank the communicator with NCCL_SHRINK_ABORT");
    comms.into_iter().for_each(Comm::destroy);
}
