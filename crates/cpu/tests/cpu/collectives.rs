//! Collectives in place, on unaligned buffers, several in one group, and with more ranks than cores.
//!
//! `exactness.rs` tests types, reductions and counts.

use std::ptr;

use crate::common::{self, Address, Comm, Mode, OK, addresses, init, together};
use libnccl::sys::{ncclDataType_t, ncclRedOp_t};

fn inputs(ranks: usize, length: usize) -> Vec<Vec<i32>> {
    let value = |rank: usize, index: usize| (index.wrapping_mul(2_654_435_761) ^ (rank * 40_503)) as i32;
    (0..ranks).map(|rank| (0..length).map(|index| value(rank, index)).collect()).collect()
}

fn sums(inputs: &[Vec<i32>]) -> Vec<i32> {
    let sum = |index: usize| inputs.iter().fold(0i32, |sum, input| sum.wrapping_add(input[index]));
    (0..inputs[0].len()).map(sum).collect()
}

/// Makes a call on every rank with the address of its one buffer, and returns the buffers.
fn in_place(
    comms: &[Comm],
    length: usize,
    call: impl Fn(usize, *mut i32, Comm) -> libnccl::sys::ncclResult_t + Sync,
) -> Vec<Vec<i32>> {
    let mut buffers = inputs(comms.len(), length);
    let places = addresses(&mut buffers);
    together(Mode::Threads, comms, |rank, comm| {
        let Address(buffer) = places[rank];
        call(rank, buffer, Comm(comm))
    });
    buffers
}

#[test]
fn in_place_collectives_give_correct_results() {
    const COUNT: usize = 50_000;
    const TYPE: ncclDataType_t = ncclDataType_t::ncclInt32;
    const SUM: ncclRedOp_t = ncclRedOp_t::ncclSum;
    let n = 3;
    let comms = init(Mode::Threads, n);
    let stream = ptr::null_mut;
    let at = |buffer: *mut i32, rank: usize| buffer.wrapping_add(rank * COUNT);

    let (short, long) = (inputs(n, COUNT), inputs(n, n * COUNT));
    let buffers = in_place(&comms, COUNT, |_, buffer, comm| {
        nccl!(ncclAllReduce(buffer.cast(), buffer.cast(), COUNT, TYPE, SUM, comm.0, stream()))
    });
    assert!(buffers.iter().all(|buffer| *buffer == sums(&short)));

    let buffers = in_place(&comms, COUNT, |_, buffer, comm| {
        nccl!(ncclReduce(buffer.cast(), buffer.cast(), COUNT, TYPE, SUM, 1, comm.0, stream()))
    });
    assert_eq!((&buffers[0], &buffers[1]), (&short[0], &sums(&short)));

    let buffers = in_place(&comms, COUNT, |_, buffer, comm| {
        nccl!(ncclBcast(buffer.cast(), COUNT, TYPE, 2, comm.0, stream()))
    });
    assert!(buffers.iter().all(|buffer| *buffer == short[2]));

    let buffers = in_place(&comms, n * COUNT, |rank, buffer, comm| {
        nccl!(ncclAllGather(at(buffer, rank).cast(), buffer.cast(), COUNT, TYPE, comm.0, stream()))
    });
    let parts = |rank: usize| &long[rank][rank * COUNT..][..COUNT];
    assert!(buffers.iter().all(|buffer| *buffer == [parts(0), parts(1), parts(2)].concat()));

    let buffers = in_place(&comms, n * COUNT, |rank, buffer, comm| {
        nccl!(ncclReduceScatter(buffer.cast(), at(buffer, rank).cast(), COUNT, TYPE, SUM, comm.0, stream()))
    });
    let expected = sums(&long);
    for (rank, buffer) in buffers.iter().enumerate() {
        assert!(buffer[rank * COUNT..][..COUNT] == expected[rank * COUNT..][..COUNT]);
    }
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn all_reduce_of_unaligned_buffers_is_correct() {
    let comms = init(Mode::Group, 2);
    let mut buffers = vec![vec![0u8; 33]; 2];
    for (rank, buffer) in buffers.iter_mut().enumerate() {
        buffer[1..].copy_from_slice([rank as u64 + 1; 4].map(u64::to_ne_bytes).as_flattened());
    }
    let places = addresses(&mut buffers);
    together(Mode::Group, &comms, |rank, comm| {
        let buffer = places[rank].0.wrapping_add(1).cast();
        let (data_type, op) = (ncclDataType_t::ncclUint64, ncclRedOp_t::ncclSum);
        nccl!(ncclAllReduce(buffer, buffer, 4, data_type, op, comm, ptr::null_mut()))
    });
    assert!(buffers.iter().all(|buffer| buffer[1..] == *[3u64; 4].map(u64::to_ne_bytes).as_flattened()));
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn all_reduces_of_two_comms_in_one_group_complete() {
    let (one, two) = (init(Mode::Group, 3), init(Mode::Group, 2));
    let mut sums = vec![vec![0i64; 40]; 5];
    assert_eq!(nccl!(ncclGroupStart()), OK);
    for (sum, comm) in sums.iter_mut().zip(one.iter().chain(&two)) {
        sum[0] = 1;
        for step in 1..40 {
            let (from, to) = (sum[step - 1..].as_ptr(), sum[step..].as_mut_ptr());
            let (data_type, op) = (ncclDataType_t::ncclInt64, ncclRedOp_t::ncclSum);
            assert_eq!(
                nccl!(ncclAllReduce(from.cast(), to.cast(), 1, data_type, op, comm.0, ptr::null_mut())),
                OK
            );
        }
    }
    assert_eq!(nccl!(ncclGroupEnd()), OK);
    for (rank, sum) in sums.iter().enumerate() {
        let ranks: i64 = if rank < 3 { 3 } else { 2 };
        let expected: Vec<i64> = (0..40).map(|step| ranks.wrapping_pow(step)).collect();
        assert_eq!(*sum, expected);
    }
    one.into_iter().chain(two).for_each(Comm::destroy);
}

#[test]
fn oversubscribed_all_reduces_finish_in_time() {
    let comms = init(Mode::Threads, 4);
    let start = std::time::Instant::now();
    common::on_threads(4, |rank| {
        let Comm(comm) = comms[rank];
        let (mut buffer, mut large) = (vec![1f32; 4], vec![1f32; 100_000]);
        let (data_type, op, stream) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclMax, ptr::null_mut());
        for _ in 0..1000 {
            let place = buffer.as_mut_ptr().cast();
            assert_eq!(nccl!(ncclAllReduce(place, place, 4, data_type, op, comm, stream)), OK);
        }
        for _ in 0..10 {
            let place = large.as_mut_ptr().cast();
            assert_eq!(nccl!(ncclAllReduce(place, place, 100_000, data_type, op, comm, stream)), OK);
        }
    });
    let took = start.elapsed();
    println!("1000 small and 10 large all_reduces of 4 ranks: {took:?}");
    assert!(took.as_secs() < 10, "{took:?}");
    comms.into_iter().for_each(Comm::destroy);
}
