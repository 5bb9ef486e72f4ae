//! Ranks that run out of file descriptors or threads.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;
use std::thread;
use std::time::Duration;

use libnccl::sys::ncclUniqueId;
use rustix::param::page_size;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{SYSTEM, grow, join, shrink, sum};
use crate::common::processes::{self, RankProcess, finish, kill, spawn};
use crate::common::{
    Comm, I32, OK, PROGRESS, REMOTE, STREAM, SUM, alone, assert_last_error, async_error, in_group,
    init_nonblocking, init_rank, init_with, last_error, on_threads, split, unique_id, wait_async,
    wait_for_peers,
};

pub(crate) fn init_out_of_descriptors(process: &RankProcess) {
    // Enough to reach the rendezvous, but not to receive anything there.
    limit_descriptors(2);
    assert_eq!(init_rank(process.id, process.ranks, process.rank()), Err(SYSTEM), "{}", last_error());
    assert_last_error("Too many open files");
}

pub(crate) fn init_beyond_file_size_limit(_: &RankProcess) {
    setrlimit(Resource::Fsize, Rlimit { current: Some(100 << 10), ..getrlimit(Resource::Fsize) }).unwrap();
    for ranks in [1, 2] {
        let id = unique_id();
        on_threads(ranks, |rank| {
            assert_eq!(init_rank(id, ranks, rank), Err(SYSTEM), "{}", last_error());
            assert_last_error("of shared memory exceed the limit of 102400 for a file (ulimit -f)");
        });
    }
}

/// Fails to derive a communicator, by the call that the argument names, because there are no file descriptors left.
pub(crate) fn derive_out_of_descriptors(process: &RankProcess) {
    let Comm(comm) = join(process);
    limit_descriptors(0);
    let derived = match process.arguments[0].as_str() {
        "split" => split(comm, 0, 0),
        "shrink" => shrink(comm, &[0], 0),
        _ => grow(comm, process.ranks + 1, None, -1),
    };
    assert_eq!(derived, Err(SYSTEM));
    assert_eq!(sum(comm, 1), Err(SYSTEM), "the rank is no longer in its communicator");
    thread::sleep(Duration::from_secs(60));
}

pub(crate) fn make_calls_without_threads(process: &RankProcess) {
    join(process);
    let comm = init_nonblocking(unique_id(), 1, 0);
    assert_eq!(wait_async(comm.0), OK);
    let mut child = ptr::null_mut();
    assert_eq!(nccl!(ncclCommSplit(comm.0, 0, 0, &mut child, ptr::null_mut())), OK);
    assert_eq!([wait_async(comm.0), wait_async(child)], [OK; 2]);
    if !exhaust_threads() {
        return println!("skipped: threads cannot be kept from starting here");
    }
    assert_calls_fail_without_threads(comm, Comm(child));
}

/// Lets this process open only `left` more file descriptors.
fn limit_descriptors(left: u64) {
    let next = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(next + left), ..limit }).unwrap();
    assert_eq!(File::open("/dev/null").is_ok(), left > 0);
}

/// Starts threads until there is no memory for another stack; returns false if threads can still be started.
fn exhaust_threads() -> bool {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = pages.split_once(' ').unwrap().0.parse().unwrap();
    let room = (pages * page_size() + (256 << 10)) as u64;
    setrlimit(Resource::As, Rlimit { current: Some(room), ..getrlimit(Resource::As) }).unwrap();
    // A few reuse the stack of a thread that has ended.
    (0..100).any(|_| thread::Builder::new().spawn(thread::park).is_err())
}

/// The parent has had a thread since it was created; the child has had no call.
fn assert_calls_fail_without_threads(parent: Comm, child: Comm) {
    let failed = init_with(unique_id(), 2, 0, |config| config.blocking = 0);
    assert_eq!(failed, (SYSTEM, Comm(ptr::null_mut())), "no communicator to query");
    assert_last_error("a thread for nonblocking calls cannot be started");

    assert_eq!(sum(child.0, 1), Err(SYSTEM));
    assert_eq!(async_error(child.0), OK, "no call has begun");
    let mut number = [1];
    let place = number.as_mut_ptr().cast();
    assert_eq!(nccl!(ncclAllReduce(place, place, 1, I32, SUM, parent.0, STREAM)), PROGRESS);
    assert_eq!(wait_async(parent.0), OK);

    let (mut comms, id) = ([ptr::dangling_mut(); 2], unique_id());
    let code = in_group(|| {
        for (rank, comm) in comms.iter_mut().enumerate() {
            assert_eq!(nccl!(ncclCommInitRank(comm, 2, id, rank as i32)), OK);
        }
    });
    assert_eq!((code, comms), (SYSTEM, [ptr::null_mut(); 2]));
    // Not before: their memory and the stack of the parent's thread would be free for another.
    child.destroy();
    parent.destroy();
}

/// A rank that is alive but cannot join the rendezvous fails the others' calls instead of blocking them.
#[test]
fn derived_comm_with_rank_out_of_descriptors_returns_remote_error() {
    let _alone = alone();
    for task in ["split", "shrink", "grow"] {
        let id = unique_id();
        let mut child = spawn(&format!("resource_limits::derive_out_of_descriptors {task}"), &id, 3, 2);
        let comms = on_threads(2, |rank| init_rank(id, 3, rank).unwrap());
        on_threads(2, |rank| assert_eq!(sum({ comms[rank] }.0, 1), Ok(3)));
        let mut token = ncclUniqueId::default();
        assert_eq!(nccl!(ncclCommGetUniqueId(comms[1].0, &mut token)), OK);
        on_threads(2, |rank| {
            let Comm(comm) = comms[rank];
            let derived = match task {
                "split" => split(comm, 0, 0),
                "shrink" if rank == 0 => return,
                "shrink" => shrink(comm, &[0], 0),
                _ => grow(comm, 4, (rank == 1).then_some(&token), -1),
            };
            assert_eq!(derived, Err(REMOTE), "{task}");
            assert_last_error("rank 2 has left: its communicator is gone");
        });
        assert!(child.try_wait().unwrap().is_none(), "{task}: rank 2 has ended");
        kill(&mut child);
        comms.into_iter().for_each(Comm::destroy);
    }
}

#[test]
fn init_out_of_descriptors_returns_system_error() {
    let _alone = alone();
    let id = unique_id();
    let root = init_nonblocking(id, 2, 0);
    wait_for_peers(&id, 0);
    finish(spawn("resource_limits::init_out_of_descriptors", &id, 2, 1));
    assert_eq!(wait_async(root.0), REMOTE);
    assert_last_error(
        "rank 1 failed before all ranks had joined: the ranks' shared memory cannot be received: ",
    );
    root.destroy();
}

/// The program `init2` under a limit of file sizes: SIGXFSZ ended it.
#[test]
fn init_beyond_the_file_size_limit_returns_system_error() {
    processes::run("resource_limits::init_beyond_file_size_limit", [[0]], &[]);
}

#[test]
fn nonblocking_calls_without_threads_return_system_error() {
    processes::run("resource_limits::make_calls_without_threads", [[0]], &[]);
}
