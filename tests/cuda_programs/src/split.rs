//! Communicators split from one of all GPUs. Each runs a collective at the same time as their parent.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;

use cudarc::nccl::sys;

use crate::rank::{Rank, assert_all, check, run_ranks};

/// The elements of a buffer.
const LENGTH: usize = 1 << 16;

/// `NCCL_SPLIT_NOCOLOR`.
const NO_COLOR: i32 = -1;

pub(crate) fn run(ranks: usize) {
    run_ranks(ranks, |rank| {
        odd_and_even(&rank, ranks);
        all_but_the_last(&rank, ranks);
        rank.destroy();
    });
}

/// Ranks of each parity, in the opposite order.
fn odd_and_even(rank: &Rank, ranks: usize) {
    let parity = rank.number % 2;
    let half = split(rank, parity as i32, -(rank.number as i32)).expect("a communicator");
    let members: Vec<usize> = (0..ranks).rev().filter(|number| number % 2 == parity).collect();
    let mut size = -1;
    // SAFETY: a communicator and a valid out-parameter.
    check(unsafe { sys::ncclCommCount(half.comm, &raw mut size) });
    assert_eq!(size as usize, members.len());
    assert_eq!(members[half.number], rank.number, "the order of the keys");

    // Both communicators work at the same time, on two streams.
    let from = rank.filled(LENGTH);
    let (mut of_all, mut of_half) = (rank.zeros(LENGTH), rank.zeros(LENGTH));
    rank.stream.synchronize().unwrap();
    check(rank.all_reduce(&from, &mut of_all, &rank.stream));
    check(half.all_reduce(&from, &mut of_half, &half.stream));
    assert_all(&rank.stream, &of_all, sum(0..ranks));
    assert_all(&half.stream, &of_half, sum(members));
    half.destroy();
}

/// The last rank takes part in the split and gets no communicator.
fn all_but_the_last(rank: &Rank, ranks: usize) {
    let is_last = rank.number == ranks - 1;
    let some = split(rank, if is_last { NO_COLOR } else { 0 }, 0);
    assert_eq!(some.is_none(), is_last);
    if let Some(some) = some {
        let (from, mut to) = (rank.filled(LENGTH), rank.zeros(LENGTH));
        check(some.all_reduce(&from, &mut to, &rank.stream));
        assert_all(&rank.stream, &to, sum(0..ranks - 1));
        some.destroy();
    }
}

/// Splits a communicator; returns the rank in the new one, with a new stream.
fn split(rank: &Rank, color: i32, key: i32) -> Option<Rank> {
    let (mut comm, mut number) = (ptr::null_mut(), -1);
    // SAFETY: a communicator, valid out-parameters, and no configuration.
    unsafe {
        check(sys::ncclCommSplit(rank.comm, color, key, &raw mut comm, ptr::null_mut()));
        if comm.is_null() {
            return None;
        }
        check(sys::ncclCommUserRank(comm, &raw mut number));
    }
    let context = Arc::clone(&rank.context);
    let stream = context.new_stream().unwrap();
    Some(Rank { number: number as usize, comm, context, stream })
}

/// The sum of the values in the ranks' buffers.
fn sum(ranks: impl IntoIterator<Item = usize>) -> f32 {
    ranks.into_iter().map(|number| (number + 1) as f32).sum()
}
