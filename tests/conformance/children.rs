//! Communicators created from others, and calls that change a communicator: split, shrink, grow, revoke and suspend.

use std::ffi::c_int;
use std::ptr;

use libnccl::sys::{
    NCCL_SHRINK_ABORT, NCCL_SUSPEND_MEM, ncclComm_t, ncclCommMemStat_t, ncclConfig_t, ncclUniqueId,
};

use crate::rank::{ARGUMENT, I32, MOMENT, OK, Rank, SUM, USAGE};
use crate::{Case, cases};

pub(crate) fn cases() -> Vec<Case> {
    cases! {
        1..=4 => split_orders_ranks_by_color_and_key, split_in_a_group;
        2..=4 => shrink_excludes_ranks, shrink_with_abort_ends_work, grow_adds_ranks;
        2..=3 => revoke_ends_work_and_refuses_calls;
        1..=3 => suspended_communicator_works_after_resume;
    }
}

fn split(rank: &Rank, comm: ncclComm_t, color: c_int, key: c_int) -> ncclComm_t {
    let mut child = ptr::null_mut();
    check!(rank, ncclCommSplit(comm, color, key, &mut child, ptr::null_mut()));
    rank.finish(comm);
    if !child.is_null() {
        rank.finish(child);
    }
    child
}

fn split_orders_ranks_by_color_and_key(rank: &Rank) {
    for blocking in [1, 0] {
        let mut config = ncclConfig_t { blocking, ..ncclConfig_t::initializer() };
        let comm = rank.join_with(&format!("communicator {blocking}"), &mut config);
        let all: Vec<usize> = (0..rank.size).collect();
        let reversed: Vec<usize> = all.iter().rev().copied().collect();
        let parity: Vec<usize> = all.iter().copied().filter(|other| other % 2 == rank.number % 2).collect();
        for (color, key, members) in [
            (3, -(rank.number as c_int), reversed),
            // Equal keys keep the order.
            (0, 7, all),
            (rank.number as c_int % 2, c_int::MAX, parity),
            (rank.number as c_int, 0, vec![rank.number]),
        ] {
            let child = split(rank, comm, color, key);
            rank.assert_members(child, &members);
            let grandchild = split(rank, child, 0, 0);
            rank.assert_members(grandchild, &members);
            rank.destroy(grandchild);
            rank.destroy(child);
        }
        rank.assert_works(comm);
        rank.destroy(comm);
    }
}

fn split_in_a_group(rank: &Rank) {
    let (comm, mut children) = (rank.join("communicator"), [ptr::null_mut(); 2]);
    let code = rank.group(|| {
        for (turn, child) in children.iter_mut().enumerate() {
            let color = if turn == 1 { rank.number as c_int } else { 0 };
            check!(rank, ncclCommSplit(comm, color, 0, child, ptr::null_mut()));
        }
    });
    assert_eq!(code, OK, "{}", rank.last_error());
    rank.assert_works(children[0]);
    rank.assert_members(children[1], &[rank.number]);
    children.into_iter().chain([comm]).for_each(|comm| rank.destroy(comm));
}

fn shrink(rank: &Rank, comm: ncclComm_t, excluded: &mut [c_int], flags: u32) -> ncclComm_t {
    let (mut child, number) = (ptr::null_mut(), excluded.len() as c_int);
    let list = excluded.as_mut_ptr();
    check!(rank, ncclCommShrink(comm, list, number, &mut child, ptr::null_mut(), flags as c_int));
    rank.finish(comm);
    child
}

fn shrink_excludes_ranks(rank: &Rank) {
    let comm = rank.join("communicator");
    let last = rank.size - 1;
    if rank.number != last {
        let child = shrink(rank, comm, &mut [last as c_int], 0);
        rank.assert_members(child, &(0..last).collect::<Vec<_>>());
        rank.destroy(child);
    }
    if rank.number == 0 {
        // NCCL sorts the list.
        let mut excluded: Vec<c_int> = (1..rank.size as c_int).rev().collect();
        let child = shrink(rank, comm, &mut excluded, 0);
        assert!(excluded.is_sorted());
        rank.assert_members(child, &[0]);
        rank.destroy(child);
    }
    rank.barrier("shrunk");
    rank.assert_works(comm);
    rank.destroy(comm);
}

/// The last rank never makes the call that the others wait in.
fn shrink_with_abort_ends_work(rank: &Rank) {
    let comm = rank.join_nonblocking("communicator");
    rank.assert_works(comm);
    let last = rank.size - 1;
    if rank.number != last {
        let buffer = rank.upload(&[5_i32; 1000]);
        rank.start_sum(comm, &buffer);
        assert!(!rank.is_done_within(comm, MOMENT), "a sum ended without a rank");
        rank.barrier_of(last, "the others wait");
        let child = rank.soon(|| shrink(rank, comm, &mut [last as c_int], NCCL_SHRINK_ABORT));
        rank.finish(child);
        assert!(rank.is_idle_within(MOMENT), "the work has not ended");
        rank.assert_members(child, &(0..last).collect::<Vec<_>>());
        rank.destroy(child);
    }
    rank.barrier("shrunk");
    assert_eq!(rank.soon(|| call!(rank, ncclCommAbort(comm))), OK);
}

/// The first two ranks have a communicator, which grows by the others.
fn grow_adds_ranks(rank: &Rank) {
    let (is_old, none) = (rank.number < 2, ptr::null_mut());
    if rank.size == 2 {
        rank.skip("it needs ranks that are not in the communicator");
    }
    let (mut comm, mut token) = (ptr::null_mut(), ncclUniqueId::default());
    if is_old {
        let id = rank.share_id("id");
        check!(rank, ncclCommInitRank(&mut comm, 2, id, rank.number as c_int));
        rank.assert_members(comm, &[0, 1]);
    }
    if rank.number == 1 {
        check!(rank, ncclCommGetUniqueId(comm, &mut token));
        assert_eq!(call!(rank, ncclCommGetUniqueId(comm, &mut token)), USAGE, "the id is unused");
        rank.publish_id("token", &token);
    }
    token = rank.receive_id("token");
    let mut grown = ptr::null_mut();
    let mut grow = |comm, size: usize, id: Option<&ncclUniqueId>, number| {
        let id = id.map_or(ptr::null(), ptr::from_ref);
        call!(rank, ncclCommGrow(comm, size as c_int, id, number, &mut grown, none))
    };
    if is_old && rank.implementation.is_cpu_backend() {
        assert_eq!(grow(comm, 2, Some(&token), -1), ARGUMENT, "the size does not grow");
        assert_eq!(grow(comm, 5, Some(&token), 1), ARGUMENT, "an old rank must pass -1");
        assert_eq!(grow(comm, 5, Some(&rank.new_id()), -1), ARGUMENT, "an id of another kind");
        assert_eq!(grow(ptr::null_mut(), 5, None, 3), ARGUMENT);
        assert_eq!(grow(comm, 3, None, -1), USAGE);
        rank.assert_last_error("one rank has to pass the id");
        assert_eq!(grow(comm, 3 + rank.number, (rank.number == 1).then_some(&token), -1), ARGUMENT);
        rank.assert_last_error("rank 1 passed 4, rank 0 passed 3");
        if rank.number == 0 {
            assert_eq!(grow(comm, 5, Some(&token), -1), ARGUMENT, "an id from another rank");
        }
    }
    let code = match rank.number {
        0 => grow(comm, rank.size, None, -1),
        1 => grow(comm, rank.size, Some(&token), -1),
        number => grow(none.cast(), rank.size, Some(&token), number as c_int),
    };
    assert_eq!(code, OK, "{}", rank.last_error());
    rank.assert_works(grown);
    rank.destroy(grown);
    if is_old {
        // The parent is unchanged, and can grow again by another id.
        rank.assert_members(comm, &[0, 1]);
        if rank.number == 1 {
            let mut other = ncclUniqueId::default();
            check!(rank, ncclCommGetUniqueId(comm, &mut other));
            assert_ne!(other.internal, token.internal);
        }
        rank.destroy(comm);
    }
}

fn revoke_ends_work_and_refuses_calls(rank: &Rank) {
    let comm = rank.join_nonblocking("communicator");
    rank.assert_works(comm);
    let buffer = rank.upload(&[5_i32; 1000]);
    if rank.number == 0 {
        assert_eq!(call!(rank, ncclCommRevoke(ptr::null_mut(), 0)), OK);
        rank.start_sum(comm, &buffer);
        assert!(!rank.is_done_within(comm, MOMENT), "a sum ended with one rank");
    }
    rank.barrier("the work waits");
    if rank.number != 0 {
        rank.receive("revoked by rank 0");
    }
    rank.soon(|| check!(rank, ncclCommRevoke(comm, 0)));
    rank.publish("revoked by rank 0", "");
    rank.finish(comm);
    assert!(rank.is_idle_within(MOMENT), "the work has not ended");
    let place = buffer.at(0);
    assert_eq!(call!(rank, ncclAllReduce(place, place, 10, I32, SUM, comm, rank.stream())), USAGE);
    assert_eq!(call!(rank, ncclCommRevoke(comm, 0)), ARGUMENT, "already revoked");
    assert_eq!(call!(rank, ncclCommFinalize(comm)), ARGUMENT);
    assert_eq!(rank.async_error(comm), OK);
    rank.barrier("revoked");
    let child = split(rank, comm, 0, 0);
    rank.assert_works(child);
    rank.destroy(child);
    rank.destroy(comm);
}

/// Returns the memory statistics: suspendable, suspended, persistent, total.
fn memory(rank: &Rank, comm: ncclComm_t) -> [u64; 4] {
    std::array::from_fn(|stat| {
        let mut value = u64::MAX;
        check!(rank, ncclCommMemStats(comm, ncclCommMemStat_t(stat as u32), &mut value));
        value
    })
}

fn suspended_communicator_works_after_resume(rank: &Rank) {
    let (comm, buffer) = (rank.join("communicator"), rank.upload(&[1_i32; 300_000]));
    let suspend = || call!(rank, ncclCommSuspend(comm, NCCL_SUSPEND_MEM as c_int));
    let resume = || call!(rank, ncclCommResume(comm));
    let is_cpu = rank.implementation.is_cpu_backend();
    for round in 0..3 {
        rank.assert_works(comm);
        rank.start_sum(comm, &buffer);
        rank.synchronize();
        rank.barrier(&format!("round {round}"));
        assert_eq!(memory(rank, comm)[1], 0);
        rank.expect_success("ncclCommSuspend", suspend());
        // The statistic says whether there is any suspended memory, not how much.
        let [temporary, suspended, persistent, total] = memory(rank, comm);
        assert_eq!(suspended, 1);
        if is_cpu {
            // Parts of pages are not released.
            assert!(
                temporary <= 2 * 4096 && total == temporary + persistent,
                "{temporary} {persistent} {total}"
            );
            let place = buffer.at(0);
            let sum = call!(rank, ncclAllReduce(place, place, 1, I32, SUM, comm, rank.stream()));
            assert_eq!([sum, suspend()], [USAGE; 2]);
            assert_eq!(rank.place(comm), (rank.size, rank.number), "queries are allowed");
        }
        rank.barrier(&format!("suspended {round}"));
        rank.expect_success("ncclCommResume", resume());
        assert!(!is_cpu || resume() == USAGE);
    }
    rank.assert_works(comm);
    // NCCL ignores other flags.
    if is_cpu {
        for (flags, resumed) in [(2, USAGE), (c_int::MIN, USAGE), (3, OK), (-1, OK)] {
            assert_eq!((call!(rank, ncclCommSuspend(comm, flags)), resume()), (OK, resumed), "{flags}");
        }
        // A suspended communicator can be destroyed.
        assert_eq!(suspend(), OK);
    }
    rank.destroy(comm);
}
