//! `ncclCommRevoke`.

use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use libnccl::sys::{ncclDataType_t, ncclRedOp_t};

use super::calls::{assert_members, init_nonblocking_pair, shrink, split, sum};
use crate::common::watchdog::Watchdog;
use crate::common::{
    ARGUMENT, Comm, Mode, OK, PROGRESS, REMOTE, SOON, USAGE, alone, assert_last_error, async_error, init,
    on_threads, wait_async,
};

#[test]
fn revoked_comm_can_be_split_and_shrunk() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    assert_eq!(nccl!(ncclCommRevoke(ptr::null_mut(), 0)), OK);
    let comms = init(Mode::Threads, 3);
    thread::scope(|scope| {
        let waiting = [1, 2].map(|rank| {
            let comm = comms[rank];
            scope.spawn(move || {
                assert_eq!(sum({ comm }.0, 1), Err(REMOTE));
                assert_last_error("rank 0 revoked the communicator");
            })
        });
        thread::sleep(Duration::from_millis(50));
        let (start, Comm(comm)) = (Instant::now(), comms[0]);
        assert_eq!(nccl!(ncclCommRevoke(comm, 1)), ARGUMENT);
        assert_eq!(nccl!(ncclCommRevoke(comm, 0)), OK);
        waiting.into_iter().for_each(|waiting| waiting.join().unwrap());
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        assert_eq!(sum(comm, 1), Err(USAGE));
        assert_eq!(nccl!(ncclCommRevoke(comm, 0)), ARGUMENT, "already revoked");
        assert_eq!(nccl!(ncclCommFinalize(comm)), ARGUMENT);
        assert_eq!(async_error(comm), OK);
        assert_eq!(async_error({ comms[1] }.0), REMOTE);
    });
    for Comm(comm) in &comms[1..] {
        assert_eq!(nccl!(ncclCommRevoke(*comm, 0)), OK);
        assert_eq!(async_error(*comm), OK);
    }
    on_threads(3, |rank| {
        let (Comm(comm), me) = (comms[rank], rank as i32);
        for _ in 0..2 {
            let child = split(comm, i32::from(rank == 1), -me).unwrap();
            assert_members(child, me, if rank == 1 { &[1] } else { &[2, 0] });
            child.destroy();
        }
        if rank != 1 {
            let fewer = shrink(comm, &[1], 0).unwrap();
            assert_members(fewer, me, &[0, 2]);
            fewer.destroy();
        }
    });
    comms.into_iter().for_each(Comm::destroy);

    let comms = init(Mode::Group, 1);
    assert_eq!(nccl!(ncclCommFinalize(comms[0].0)), OK);
    assert_eq!(nccl!(ncclCommRevoke(comms[0].0, 0)), ARGUMENT, "already finalized");
    comms[0].destroy();
}

#[test]
fn revoke_ends_nonblocking_operation() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init_nonblocking_pair();
    // In use until the communicator is destroyed.
    let mut place = [1];
    let (buffer, data_type, sum) =
        (place.as_mut_ptr().cast(), ncclDataType_t::ncclInt32, ncclRedOp_t::ncclSum);
    let started = nccl!(ncclAllReduce(buffer, buffer, 1, data_type, sum, comms[0].0, ptr::null_mut()));
    assert_eq!(started, PROGRESS);
    thread::sleep(Duration::from_millis(20));
    let start = Instant::now();
    let code = nccl!(ncclCommRevoke(comms[0].0, 0));
    assert!(matches!(code, OK | PROGRESS), "{code:?}");
    assert_eq!(wait_async(comms[0].0), OK);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(wait_async(comms[1].0), REMOTE);
    comms.into_iter().for_each(Comm::destroy);
}
