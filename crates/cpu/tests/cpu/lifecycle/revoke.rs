//! `ncclCommRevoke`.

use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use super::calls::sum;
use crate::common::watchdog::Watchdog;
use crate::common::{
    ARGUMENT, Comm, Mode, OK, REMOTE, SOON, USAGE, alone, assert_last_error, async_error, init,
};

#[test]
fn revoked_comm_refuses_calls_and_has_no_error() {
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
    comms.into_iter().for_each(Comm::destroy);

    let comms = init(Mode::Group, 1);
    assert_eq!(nccl!(ncclCommFinalize(comms[0].0)), OK);
    assert_eq!(nccl!(ncclCommRevoke(comms[0].0, 0)), ARGUMENT, "already finalized");
    comms[0].destroy();
}
