//! Ranks in several processes, and what the others see when one dies.
//!
//! A rank's process is this test program, told by its environment to be one.

mod common;
#[path = "common/watchdog.rs"]
mod watchdog;
#[path = "common/worker.rs"]
mod worker;

use std::process::Child;
use std::ptr;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{Comm, OK, REMOTE, alone, hex, init_rank, last_error, on_threads, unique_id, wait_for_guests};
use libnccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};
use watchdog::Watchdog;
use worker::{Worker, finish, spawn, told};

/// How long what should take no time may take on a loaded machine.
const SOON: Duration = Duration::from_secs(5);

fn all_reduce(buffer: &mut [f64], comm: ncclComm_t) -> ncclResult_t {
    let (place, data_type, op) =
        (buffer.as_mut_ptr().cast(), ncclDataType_t::ncclFloat64, ncclRedOp_t::ncclSum);
    nccl!(ncclAllReduce(place, place, buffer.len(), data_type, op, comm, ptr::null_mut()))
}

/// What a rank's process does.
#[test]
fn worker() {
    let Some(Worker { task, ranks, comm: Comm(comm), .. }) = told() else { return };
    match task.as_str() {
        "sum" => {
            sums(ranks, comm);
            Comm(comm).destroy();
        }
        "exit" => {
            assert_eq!(all_reduce(&mut [1.0], comm), OK);
            std::process::exit(0);
        }
        "hang" => {
            assert_eq!(all_reduce(&mut [1.0], comm), OK);
            thread::sleep(Duration::from_secs(60));
        }
        "busy" => while all_reduce(&mut vec![1.0; 300_000], comm) == OK {},
        _ => panic!("{task}"),
    }
}

fn sums(ranks: usize, comm: ncclComm_t) {
    for round in 0..20 {
        let mut buffer = vec![1.0 + f64::from(round); 20_000];
        assert_eq!(all_reduce(&mut buffer, comm), OK, "{}", last_error());
        assert!(buffer.iter().all(|sum| *sum == ranks as f64 * (1.0 + f64::from(round))));
    }
}

#[test]
fn processes_reduce() {
    worker::together("sum", 3);
}

#[test]
fn threads_and_a_process_reduce() {
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

/// Joins `ranks - 1` threads with one process that ends somehow, and expects them to notice; how soon, death.rs measures.
fn with_a_death(task: &str, end: impl Fn(&mut Child) + Sync) {
    let _alone = alone();
    let id = unique_id();
    let child = Mutex::new(spawn(task, &id, 3, 2));
    on_threads(2, |rank| {
        let Comm(comm) = init_rank(id, 3, rank).unwrap();
        assert_eq!(all_reduce(&mut [1.0], comm), OK);
        if rank == 0 {
            // The other one waits already.
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
fn a_killed_rank_is_noticed() {
    with_a_death("hang", |child| child.kill().unwrap());
}

#[test]
fn a_rank_that_exits_without_destroying_is_noticed() {
    with_a_death("exit", |child| assert!(child.wait().unwrap().success()));
}

#[test]
fn a_rank_killed_in_the_middle_of_a_collective_is_noticed() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let id = unique_id();
    let mut child = spawn("busy", &id, 3, 1);
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

/// A rank dies while others wait for the last one to come: whether it hosts the meeting or has joined it.
#[test]
fn a_death_while_ranks_gather_is_noticed() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    for host_dies in [true, false] {
        let id = unique_id();
        let join = || (init_rank(id, 3, 0).map(|_| ()), last_error());
        let (killed, (code, text)) = thread::scope(|scope| {
            // Who comes first is the host.
            let early = (!host_dies).then(|| {
                let early = scope.spawn(join);
                wait_for_guests(&id, 0);
                early
            });
            let mut child = spawn("sum", &id, 3, 2);
            let survivor = early.unwrap_or_else(|| {
                wait_for_guests(&id, 0);
                scope.spawn(join)
            });
            wait_for_guests(&id, 1);
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

/// Nobody who does not know the id's secret gets in, and who gets in the way does not disturb.
#[test]
fn strangers_are_sent_away() {
    let _alone = alone();
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};

    let id = unique_id();
    let name = format!("libnccl-cpu-{}", hex(&id.internal[8..24]));
    let name = SocketAddr::from_abstract_name(name).unwrap();
    let codes = on_threads(2, |rank| {
        if rank == 1 {
            thread::sleep(Duration::from_millis(50));
            // Not even the right kind of socket.
            assert!(UnixStream::connect_addr(&name).is_err());
            let mut wrong = id;
            wrong.internal[30] ^= 1;
            assert_eq!(init_rank(wrong, 2, 1).map(|_| ()), Err(REMOTE), "{}", last_error());
        }
        init_rank(id, 2, rank).map(Comm::destroy)
    });
    assert_eq!(codes, [Ok(()); 2]);
}
