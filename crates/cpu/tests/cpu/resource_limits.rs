//! Ranks that run out of file descriptors, memory or threads, and the file descriptors that memory takes.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::ptr;
use std::thread;
use std::time::Duration;

use libnccl::sys::ncclUniqueId;
use rustix::param::page_size;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::common::processes::{self, RankProcess, finish, is_own_process, kill, spawn};
use crate::common::{
    Comm, Memory, OK, PROGRESS, REMOTE, SYSTEM, all_reduce, alone, assert_last_error, assert_sum, grow,
    in_group, init_nonblocking, init_rank, init_with, last_error, on_threads, shrink, split, sum, unique_id,
    wait_async, wait_for_peers,
};

rank_tasks!(
    derive_out_of_descriptors,
    init_beyond_file_size_limit,
    init_out_of_descriptors,
    make_calls_without_threads
);

/// Sets the current limit of a resource.
fn limit(resource: Resource, current: u64) {
    setrlimit(resource, Rlimit { current: Some(current), ..getrlimit(resource) }).unwrap();
}

fn init_out_of_descriptors(process: &RankProcess) {
    // Enough to reach the rendezvous, but not to receive anything there.
    limit_descriptors(2);
    assert_eq!(init_rank(process.id, process.ranks, process.rank()), Err(SYSTEM), "{}", last_error());
    assert_last_error("Too many open files");
}

fn init_beyond_file_size_limit(_: &RankProcess) {
    limit(Resource::Fsize, 100 << 10);
    for ranks in [1, 2] {
        let id = unique_id();
        on_threads(ranks, |rank| {
            assert_eq!(init_rank(id, ranks, rank), Err(SYSTEM), "{}", last_error());
            assert_last_error("of shared memory exceed the limit of 102400 for a file (ulimit -f)");
        });
    }
}

/// Fails to derive a communicator, by the call that the argument names, because there are no file descriptors left.
fn derive_out_of_descriptors(process: &RankProcess) {
    let Comm(comm) = process.join();
    assert_sum(comm, process.ranks);
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

/// Makes calls while there is no memory for the stack of another thread.
fn make_calls_without_threads(process: &RankProcess) {
    assert_sum(process.join().0, 1);
    let comm = init_nonblocking(unique_id(), 1, 0);
    assert_eq!(wait_async(comm.0), OK);
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = pages.split_once(' ').unwrap().0.parse().unwrap();
    limit(Resource::As, (pages * page_size() + (256 << 10)) as u64);
    // A few reuse the stack of a thread that has ended.
    if (0..100).all(|_| thread::Builder::new().spawn(thread::park).is_ok()) {
        return println!("skipped: threads cannot be kept from starting here");
    }
    let failed = init_with(unique_id(), 2, 0, |config| config.blocking = 0);
    assert_eq!(failed, (SYSTEM, Comm(ptr::null_mut())), "no communicator to query");
    assert_last_error("a thread for nonblocking calls cannot be started");
    // It has had a thread since it was created.
    let mut number = [1];
    assert_eq!([all_reduce(&mut number, comm.0), wait_async(comm.0)], [PROGRESS, OK]);
    let (mut comms, id) = ([ptr::dangling_mut(); 2], unique_id());
    let code = in_group(|| {
        for (rank, comm) in comms.iter_mut().enumerate() {
            assert_eq!(nccl!(ncclCommInitRank(comm, 2, id, rank as i32)), OK);
        }
    });
    assert_eq!((code, comms), (SYSTEM, [ptr::null_mut(); 2]));
    // Not before: its memory and the stack of its thread would be free for another.
    comm.destroy();
}

/// Lets this process open only `left` more file descriptors.
pub(crate) fn limit_descriptors(left: u64) {
    let next = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    limit(Resource::Nofile, next + left);
    assert_eq!(File::open("/dev/null").is_ok(), left > 0);
}

/// A rank that is alive but cannot join the rendezvous fails the others' calls instead of blocking them.
#[test]
fn derived_comm_with_rank_out_of_descriptors_returns_remote_error() {
    let _alone = alone();
    for task in ["split", "shrink", "grow"] {
        let id = unique_id();
        let mut child = spawn(&format!("derive_out_of_descriptors {task}"), &id, 3, 2);
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
            assert_last_error("rank 2 has finalized or destroyed its communicator");
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
    finish(spawn("init_out_of_descriptors", &id, 2, 1));
    assert_eq!(wait_async(root.0), REMOTE);
    assert_last_error(
        "rank 1 failed before all ranks had joined: the ranks' shared memory cannot be received: ",
    );
    root.destroy();
}

/// The program `init2` under a limit of file sizes: SIGXFSZ ended it.
#[test]
fn init_beyond_the_file_size_limit_returns_system_error() {
    processes::run("init_beyond_file_size_limit", [[0]], &[]);
}

#[test]
fn nonblocking_calls_without_threads_return_system_error() {
    processes::run("make_calls_without_threads", [[0]], &[]);
}

fn files() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let names = links.flat_map(|link| std::fs::read_link(link.path()));
    names.filter(|name| name.to_string_lossy().starts_with("/memfd:")).count()
}

#[test]
fn mem_free_closes_file_descriptors() {
    if !is_own_process() {
        return;
    }
    let before = files();
    let kept: Vec<_> = (0..20).map(|_| Memory::new(1024)).collect();
    assert_eq!(files(), before + 20, "each allocation has one descriptor");
    (0..980).for_each(|round| drop(Memory::new(1 + round)));
    drop(kept);
    assert_eq!(files(), before);
}

#[test]
fn allocation_beyond_the_process_limits_is_private() {
    if !is_own_process() {
        return;
    }
    let use_memory = |size: usize| {
        let memory = ManuallyDrop::new(Memory::new(size / 4));
        assert!(memory.elements().iter().all(|element| *element == 0));
        memory.elements().fill(1);
    };
    let before = files();
    limit(Resource::Fsize, 8192);
    use_memory(8192);
    use_memory(8196);
    assert_eq!(files(), before + 1, "the second is longer than a file may be");
    limit(Resource::Nofile, 400);
    (0..400).for_each(|_| use_memory(4096));
    assert!((before + 2..=before + 201).contains(&files()), "half of the file descriptors: {}", files());
    limit(Resource::Nofile, 1);
    File::open("/proc/self/exe").expect_err("no file descriptor is left");
    use_memory(4096);
}
