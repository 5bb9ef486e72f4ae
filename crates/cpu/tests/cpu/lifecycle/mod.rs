//! Lifecycles of communicators: how they are created from ids and from each other, and how they end.

mod children;
mod init;
mod nonblocking;
mod resource_limits;
mod teardown;

use std::ptr;
use std::thread;
use std::time::Duration;

use libnccl::sys::{ncclComm_t, ncclResult_t, ncclUniqueId};

use crate::common::processes::RankProcess;
use crate::common::{Comm, I32, OK, STREAM, all_reduce, init_nonblocking, last_error, unique_id, wait_async};

rank_tasks!(
    resource_limits::derive_out_of_descriptors,
    children::join_as_new_rank,
    hang,
    resource_limits::init_beyond_file_size_limit,
    resource_limits::init_out_of_descriptors,
    init::log_lifecycle,
    resource_limits::make_calls_without_threads
);

pub(crate) const SYSTEM: ncclResult_t = ncclResult_t::ncclSystemError;

pub(crate) fn sum(comm: ncclComm_t, number: i32) -> Result<i32, ncclResult_t> {
    let mut place = [number];
    match all_reduce(&mut place, comm) {
        OK => Ok(place[0]),
        code => Err(code),
    }
}

pub(crate) fn shrink(comm: ncclComm_t, exclude: &[i32], flags: i32) -> Result<Comm, ncclResult_t> {
    let (mut list, mut child) = (exclude.to_vec(), ptr::null_mut());
    let number = list.len() as i32;
    match nccl!(ncclCommShrink(comm, list.as_mut_ptr(), number, &mut child, ptr::null_mut(), flags)) {
        OK => Ok(Comm(child)),
        code => Err(code),
    }
}

pub(crate) fn grow(
    comm: ncclComm_t,
    ranks: usize,
    id: Option<&ncclUniqueId>,
    rank: i32,
) -> Result<Comm, ncclResult_t> {
    let (id, mut child) = (id.map_or(ptr::null(), ptr::from_ref), ptr::null_mut());
    match nccl!(ncclCommGrow(comm, ranks as i32, id, rank, &mut child, ptr::null_mut())) {
        OK => Ok(Comm(child)),
        code => Err(code),
    }
}

/// Creates a nonblocking communicator of two ranks, and waits for it.
pub(crate) fn init_nonblocking_pair() -> [Comm; 2] {
    let id = unique_id();
    let comms = [init_nonblocking(id, 2, 0), init_nonblocking(id, 2, 1)];
    comms.iter().for_each(|comm| assert_eq!(wait_async(comm.0), OK));
    comms
}

/// Asserts that a communicator's operations work, and that its ranks are `members` in this order.
pub(crate) fn assert_members(Comm(comm): Comm, me: i32, members: &[i32]) {
    let mut gathered = vec![me; members.len()];
    let (mine, all) = ((&raw const me).cast(), gathered.as_mut_ptr().cast());
    assert_eq!(nccl!(ncclAllGather(mine, all, 1, I32, comm, STREAM)), OK, "{}", last_error());
    assert_eq!(gathered, members);
    assert_eq!(sum(comm, me), Ok(members.iter().sum()));
}

/// Creates the communicator of a rank process, and uses it once.
pub(crate) fn join(process: &RankProcess) -> Comm {
    let comm = process.join();
    assert_eq!(sum(comm.0, 1), Ok(process.ranks as i32));
    comm
}

pub(crate) fn hang(process: &RankProcess) {
    join(process);
    thread::sleep(Duration::from_secs(60));
}
