//! Ranks in several processes, and failures of one of them.

use std::process::Child;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::processes::{self, RankProcess, finish, spawn};
use crate::common::watchdog::Watchdog;
use crate::common::{
    Comm, OK, REMOTE, SOON, all_reduce, alone, init_rank, last_error, on_threads, rendezvous_name, unique_id,
    wait_for_peers,
};
use libnccl::sys::ncclComm_t;

rank_tasks! {
    "exit" => exit_without_destroying,
    "hang" => hang,
    "reduce_forever" => reduce_until_failure,
    "sum" => sum_and_destroy,
}

fn sum_and_destroy(process: &RankProcess) {
    let Comm(comm) = process.join();
    sums(process.ranks, comm);
    Comm(comm).destroy();
}

fn exit_without_destroying(process: &RankProcess) {
    assert_eq!(all_reduce(&mut [1.0], process.join().0), OK);
    std::process::exit(0);
}

fn hang(process: &RankProcess) {
    assert_eq!(all_reduce(&mut [1.0], process.join().0), OK);
    thread::sleep(Duration::from_secs(60));
}

fn reduce_until_failure(process: &RankProcess) {
    let Comm(comm) = process.join();
    while all_reduce(&mut vec![1.0; 300_000], comm) == OK {}
}

fn sums(ranks: usize, comm: ncclComm_t) {
    for round in 0..20 {
        let mut buffer = vec![1.0 + f64::from(round); 20_000];
        assert_eq!(all_reduce(&mut buffer, comm), OK, "{}", last_error());
        assert!(buffer.iter().all(|sum| *sum == ranks as f64 * (1.0 + f64::from(round))));
    }
}

#[test]
fn all_reduce_between_processes_is_correct() {
    processes::run("sum", 3);
}

#[test]
fn all_reduce_between_threads_and_process_is_correct() {
    let id = unique_id();
    let child = spawn("sum", &id, 4, 1);
    on_threads(4, |rank| {
        if rank != 1 {
            let Comm(comm) = init_rank(id, 4, rank).unwrap();
            sums(4, comm);
            Comm(comm).destroy();
        }
    });
    finish(child);
}

/// Joins two threads with a process that `end` ends, and expects them to notice; `rank_failure.rs` measures how soon.
fn assert_failure_is_noticed(task: &str, end: impl Fn(&mut Child) + Sync) {
    let _alone = alone();
    let id = unique_id();
    let child = Mutex::new(spawn(task, &id, 3, 2));
    on_threads(2, |rank| {
        let Comm(comm) = init_rank(id, 3, rank).unwrap();
        assert_eq!(all_reduce(&mut [1.0], comm), OK);
        if rank == 0 {
            // The other thread waits in its operation by then.
            thread::sleep(Duration::from_millis(20));
            end(&mut child.lock().unwrap());
        }
        let start = Instant::now();
        assert_eq!(all_reduce(&mut [1.0], comm), REMOTE);
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        let mut code = OK;
        assert_eq!(nccl!(ncclCommGetAsyncError(comm, &mut code)), OK);
        assert_eq!(code, REMOTE);
        Comm(comm).destroy();
    });
    child.into_inner().unwrap().wait().unwrap();
}

#[test]
fn all_reduce_with_killed_rank_returns_remote_error() {
    assert_failure_is_noticed("hang", |child| child.kill().unwrap());
}

#[test]
fn all_reduce_with_exited_rank_returns_remote_error() {
    assert_failure_is_noticed("exit", |child| assert!(child.wait().unwrap().success()));
}

#[test]
fn rank_killed_during_all_reduce_gives_remote_error() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let id = unique_id();
    let mut child = spawn("reduce_forever", &id, 3, 1);
    let busy = Barrier::new(3);
    let busy = &busy;
    thread::scope(|scope| {
        let others = [0, 2].map(|rank| {
            scope.spawn(move || {
                let Comm(comm) = init_rank(id, 3, rank).unwrap();
                let mut buffer = vec![1.0; 300_000];
                assert_eq!(all_reduce(&mut buffer, comm), OK);
                busy.wait();
                let code = loop {
                    match all_reduce(&mut buffer, comm) {
                        OK => {}
                        code => break code,
                    }
                };
                let noticed = Instant::now();
                Comm(comm).destroy();
                (code, noticed)
            })
        });
        busy.wait();
        thread::sleep(Duration::from_millis(50));
        child.kill().unwrap();
        let killed = Instant::now();
        for other in others {
            let (code, noticed) = other.join().unwrap();
            assert_eq!(code, REMOTE);
            assert!(noticed - killed < SOON, "{:?}", noticed - killed);
        }
    });
    child.wait().unwrap();
}

/// A rank dies while others wait for the last one to join: once the root of the rendezvous, once a peer.
#[test]
fn rank_killed_during_init_gives_remote_error() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    for root_dies in [true, false] {
        let id = unique_id();
        let join = || (init_rank(id, 3, 0).map(|_| ()), last_error());
        let (killed, (code, text)) = thread::scope(|scope| {
            // The first to join is the root.
            let early = (!root_dies).then(|| {
                let early = scope.spawn(join);
                wait_for_peers(&id, 0);
                early
            });
            let mut child = spawn("sum", &id, 3, 2);
            let survivor = early.unwrap_or_else(|| {
                wait_for_peers(&id, 0);
                scope.spawn(join)
            });
            wait_for_peers(&id, 1);
            child.kill().unwrap();
            let killed = Instant::now();
            child.wait().unwrap();
            (killed, survivor.join().unwrap())
        });
        assert_eq!(code, Err(REMOTE));
        assert!(text.contains("died before all ranks had joined"), "{text}");
        assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
    }
}

/// Connections without the id's secret are rejected, and do not disturb the ranks.
#[test]
fn init_rejects_connection_with_wrong_secret() {
    let _alone = alone();
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};

    let id = unique_id();
    let name = rendezvous_name(&id);
    let name = SocketAddr::from_abstract_name(name).unwrap();
    let codes = on_threads(2, |rank| {
        if rank == 1 {
            thread::sleep(Duration::from_millis(50));
            // A socket of the wrong type.
            assert!(UnixStream::connect_addr(&name).is_err());
            let mut wrong = id;
            wrong.internal[30] ^= 1;
            assert_eq!(init_rank(wrong, 2, 1).map(|_| ()), Err(REMOTE), "{}", last_error());
        }
        init_rank(id, 2, rank).map(Comm::destroy)
    });
    assert_eq!(codes, [Ok(()); 2]);
}
