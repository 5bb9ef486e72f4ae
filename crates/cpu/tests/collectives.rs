//! Every collective, data type and reduction against an obvious reference.

mod common;

use std::fmt::Debug;
use std::ops::{Add, Mul};
use std::ptr;

use common::{Address, Comm, Mode, OK, addresses, init, together};
use libnccl::sys::{ncclDataType_t, ncclRedOp_t, ncclScalarResidence_t};

/// The reductions; the last stands for a custom one.
const OPS: [ncclRedOp_t; 6] = [
    ncclRedOp_t::ncclSum,
    ncclRedOp_t::ncclProd,
    ncclRedOp_t::ncclMax,
    ncclRedOp_t::ncclMin,
    ncclRedOp_t::ncclAvg,
    ncclRedOp_t::ncclNumOps,
];

trait Number: Copy + PartialEq + Debug + Default + Send + Sync {
    const RAW: ncclDataType_t;
    fn value(rank: usize, index: usize) -> Self;
    fn scalar(rank: usize) -> Self;
    fn reduce(op: ncclRedOp_t, inputs: &[Self]) -> Self;
}

macro_rules! integer {
    ($($type:ty: $raw:ident),*) => {$(
        impl Number for $type {
            const RAW: ncclDataType_t = ncclDataType_t::$raw;

            fn value(rank: usize, index: usize) -> Self {
                (index.wrapping_mul(2_654_435_761) ^ rank.wrapping_mul(40_503) ^ index >> 3) as Self
            }

            fn scalar(rank: usize) -> Self {
                rank as Self + 2
            }

            fn reduce(op: ncclRedOp_t, inputs: &[Self]) -> Self {
                let values = inputs.iter().copied();
                match op {
                    ncclRedOp_t::ncclSum => values.fold(0, Self::wrapping_add),
                    ncclRedOp_t::ncclProd => values.fold(1, Self::wrapping_mul),
                    ncclRedOp_t::ncclMax => values.max().unwrap(),
                    ncclRedOp_t::ncclMin => values.min().unwrap(),
                    ncclRedOp_t::ncclAvg => values.fold(0, Self::wrapping_add) / inputs.len() as Self,
                    _ => values
                        .enumerate()
                        .map(|(rank, value)| value.wrapping_mul(Self::scalar(rank)))
                        .fold(0, Self::wrapping_add),
                }
            }
        }
    )*};
}

macro_rules! float {
    ($($type:ty: $raw:ident),*) => {$(
        impl Number for $type {
            const RAW: ncclDataType_t = ncclDataType_t::$raw;

            fn value(rank: usize, index: usize) -> Self {
                (i16::value(rank, index) as Self) / 7.0
            }

            fn scalar(rank: usize) -> Self {
                0.3 + rank as Self
            }

            fn reduce(op: ncclRedOp_t, inputs: &[Self]) -> Self {
                let values = inputs.iter().copied();
                let reciprocal = 1.0 / inputs.len() as Self;
                match op {
                    ncclRedOp_t::ncclSum => values.reduce(Self::add),
                    ncclRedOp_t::ncclProd => values.reduce(Self::mul),
                    ncclRedOp_t::ncclMax => values.reduce(Self::max),
                    ncclRedOp_t::ncclMin => values.reduce(Self::min),
                    ncclRedOp_t::ncclAvg => values.map(|value| value * reciprocal).reduce(Self::add),
                    _ => values
                        .enumerate()
                        .map(|(rank, value)| value * Self::scalar(rank))
                        .reduce(Self::add),
                }
                .unwrap()
            }
        }
    )*};
}

integer!(i8: ncclInt8, u8: ncclUint8, i32: ncclInt32, u32: ncclUint32, i64: ncclInt64, u64: ncclUint64);
// Only to make values of floats.
integer!(i16: ncclInt32);
float!(f32: ncclFloat32, f64: ncclFloat64);

/// Ranks to test with.
struct Ranks {
    mode: Mode,
    comms: Vec<Comm>,
}

impl Ranks {
    fn count(&self) -> usize {
        self.comms.len()
    }

    /// The same call on every rank, with its send and its receive buffer; returns what was received.
    fn run<T: Number>(
        &self,
        sends: &[Vec<T>],
        length: usize,
        call: impl Fn(usize, *const T, *mut T, common::Comm) -> libnccl::sys::ncclResult_t + Sync,
    ) -> Vec<Vec<T>> {
        let mut received = vec![vec![T::default(); length]; self.count()];
        let receive: Vec<Address<T>> = addresses(&mut received);
        together(self.mode, &self.comms, |rank, comm| {
            let Address(receive) = receive[rank];
            call(rank, sends[rank].as_ptr(), receive, Comm(comm))
        });
        received
    }
}

/// What each rank sends: `length` elements.
fn inputs<T: Number>(ranks: usize, length: usize) -> Vec<Vec<T>> {
    (0..ranks).map(|rank| (0..length).map(|index| T::value(rank, index)).collect()).collect()
}

/// What reducing the ranks' inputs gives.
fn reduced<T: Number>(op: ncclRedOp_t, inputs: &[Vec<T>]) -> Vec<T> {
    (0..inputs[0].len())
        .map(|index| T::reduce(op, &inputs.iter().map(|input| input[index]).collect::<Vec<_>>()))
        .collect()
}

/// The reduction to pass: each rank's own if it is a custom one.
fn create_op<T: Number>(op: ncclRedOp_t, rank: usize, comm: Comm) -> ncclRedOp_t {
    if op != ncclRedOp_t::ncclNumOps {
        return op;
    }
    let (mut created, mut scalar) = (ncclRedOp_t::ncclSum, T::scalar(rank));
    let residence = ncclScalarResidence_t((rank % 2) as u32);
    let scalar = ptr::from_mut(&mut scalar).cast();
    assert_eq!(nccl!(ncclRedOpCreatePreMulSum(&mut created, scalar, T::RAW, residence, comm.0)), OK);
    created
}

/// A reduction may be destroyed once the last call that uses it has returned.
fn destroy_op(op: ncclRedOp_t, comm: Comm) {
    if op.0 >= ncclRedOp_t::ncclNumOps.0 {
        assert_eq!(nccl!(ncclRedOpDestroy(op, comm.0)), OK);
    }
}

fn reductions<T: Number>(ranks: &Ranks, op: ncclRedOp_t, count: usize) {
    let (n, root) = (ranks.count(), count % ranks.count());
    let what = format!("{:?} {:?} {op:?} {n} ranks count {count}", ranks.mode, T::RAW);

    let sends = inputs::<T>(n, count);
    let expected = reduced(op, &sends);
    let received = ranks.run(&sends, count, |rank, send, receive, comm| {
        let op = create_op::<T>(op, rank, comm);
        let code =
            nccl!(ncclAllReduce(send.cast(), receive.cast(), count, T::RAW, op, comm.0, ptr::null_mut()));
        destroy_op(op, comm);
        code
    });
    assert!(received.iter().all(|received| *received == expected), "ncclAllReduce {what}");

    let received = ranks.run(&sends, count, |rank, send, receive, comm| {
        let op = create_op::<T>(op, rank, comm);
        let receive = if rank == root { receive } else { ptr::null_mut() };
        let stream = ptr::null_mut();
        let code =
            nccl!(ncclReduce(send.cast(), receive.cast(), count, T::RAW, op, root as i32, comm.0, stream));
        destroy_op(op, comm);
        code
    });
    assert!(received[root] == expected, "ncclReduce {what}");

    let sends = inputs::<T>(n, n * count);
    let expected = reduced(op, &sends);
    let received = ranks.run(&sends, count, |rank, send, receive, comm| {
        let op = create_op::<T>(op, rank, comm);
        let stream = ptr::null_mut();
        let code = nccl!(ncclReduceScatter(send.cast(), receive.cast(), count, T::RAW, op, comm.0, stream));
        destroy_op(op, comm);
        code
    });
    assert!(received.concat() == expected, "ncclReduceScatter {what}");
}

fn moves<T: Number>(ranks: &Ranks, count: usize) {
    let (n, root) = (ranks.count(), count % ranks.count());
    let what = format!("{:?} {:?} {n} ranks count {count}", ranks.mode, T::RAW);

    let sends = inputs::<T>(n, count);
    let received = ranks.run(&sends, count, |rank, send, receive, comm| {
        let send = if rank == root { send } else { ptr::null() };
        let stream = ptr::null_mut();
        nccl!(ncclBroadcast(send.cast(), receive.cast(), count, T::RAW, root as i32, comm.0, stream))
    });
    assert!(received.iter().all(|received| *received == sends[root]), "ncclBroadcast {what}");

    let received = ranks.run(&sends, n * count, |_, send, receive, comm| {
        nccl!(ncclAllGather(send.cast(), receive.cast(), count, T::RAW, comm.0, ptr::null_mut()))
    });
    assert!(received.iter().all(|received| *received == sends.concat()), "ncclAllGather {what}");

    let received = ranks.run(&sends, n * count, |rank, send, receive, comm| {
        let receive = if rank == root { receive } else { ptr::null_mut() };
        nccl!(ncclGather(send.cast(), receive.cast(), count, T::RAW, root as i32, comm.0, ptr::null_mut()))
    });
    assert!(received[root] == sends.concat(), "ncclGather {what}");

    let sends = inputs::<T>(n, n * count);
    let received = ranks.run(&sends, count, |rank, send, receive, comm| {
        let send = if rank == root { send } else { ptr::null() };
        nccl!(ncclScatter(send.cast(), receive.cast(), count, T::RAW, root as i32, comm.0, ptr::null_mut()))
    });
    assert!(received.concat() == sends[root], "ncclScatter {what}");

    let received = ranks.run(&sends, n * count, |_, send, receive, comm| {
        nccl!(ncclAlltoAll(send.cast(), receive.cast(), count, T::RAW, comm.0, ptr::null_mut()))
    });
    for (rank, received) in received.iter().enumerate() {
        let parts: Vec<&[T]> = sends.iter().map(|send| &send[rank * count..][..count]).collect();
        assert!(*received == parts.concat(), "ncclAlltoAll {what}");
    }
}

fn all<T: Number>(ranks: &Ranks, counts: &[usize]) {
    for count in counts {
        moves::<T>(ranks, *count);
        for op in OPS {
            reductions::<T>(ranks, op, *count);
        }
    }
}

fn every_type(mode: Mode) {
    for n in 1..=5 {
        let ranks = Ranks { mode, comms: init(mode, n) };
        let counts = &[0, 1, 7, 4095];
        all::<i8>(&ranks, counts);
        all::<u8>(&ranks, counts);
        all::<i32>(&ranks, counts);
        all::<u32>(&ranks, counts);
        all::<i64>(&ranks, counts);
        all::<u64>(&ranks, counts);
        all::<f32>(&ranks, counts);
        all::<f64>(&ranks, counts);
        ranks.comms.into_iter().for_each(Comm::destroy);
    }
}

/// Several steps each, and a last one that is shorter.
fn large(mode: Mode) {
    for n in 1..=5 {
        let ranks = Ranks { mode, comms: init(mode, n) };
        moves::<u8>(&ranks, 70_000);
        moves::<f64>(&ranks, 70_000);
        reductions::<i8>(&ranks, ncclRedOp_t::ncclAvg, 70_000);
        reductions::<u32>(&ranks, ncclRedOp_t::ncclProd, 70_000);
        reductions::<i64>(&ranks, ncclRedOp_t::ncclMin, 70_000);
        reductions::<f32>(&ranks, ncclRedOp_t::ncclNumOps, 70_000);
        reductions::<f64>(&ranks, ncclRedOp_t::ncclSum, 70_000);
        ranks.comms.into_iter().for_each(Comm::destroy);
    }
}

#[test]
fn every_type_and_reduction_on_threads() {
    every_type(Mode::Threads);
}

#[test]
fn every_type_and_reduction_in_a_group() {
    every_type(Mode::Group);
}

#[test]
fn large_counts_on_threads() {
    large(Mode::Threads);
}

#[test]
fn large_counts_in_a_group() {
    large(Mode::Group);
}

/// Every rank has one buffer of `length`; `call` gets its address.
fn in_place(
    comms: &[Comm],
    length: usize,
    call: impl Fn(usize, *mut i32, Comm) -> libnccl::sys::ncclResult_t + Sync,
) -> Vec<Vec<i32>> {
    let mut buffers = inputs::<i32>(comms.len(), length);
    let places = addresses(&mut buffers);
    together(Mode::Threads, comms, |rank, comm| {
        let Address(buffer) = places[rank];
        call(rank, buffer, Comm(comm))
    });
    buffers
}

#[test]
fn in_place_in_every_way_that_nccl_allows() {
    const COUNT: usize = 50_000;
    const TYPE: ncclDataType_t = ncclDataType_t::ncclInt32;
    const SUM: ncclRedOp_t = ncclRedOp_t::ncclSum;
    let n = 3;
    let comms = init(Mode::Threads, n);
    let stream = ptr::null_mut;
    let at = |buffer: *mut i32, rank: usize| buffer.wrapping_add(rank * COUNT);

    let (short, long) = (inputs::<i32>(n, COUNT), inputs::<i32>(n, n * COUNT));
    let buffers = in_place(&comms, COUNT, |_, buffer, comm| {
        nccl!(ncclAllReduce(buffer.cast(), buffer.cast(), COUNT, TYPE, SUM, comm.0, stream()))
    });
    assert!(buffers.iter().all(|buffer| *buffer == reduced(SUM, &short)));

    let buffers = in_place(&comms, COUNT, |_, buffer, comm| {
        nccl!(ncclReduce(buffer.cast(), buffer.cast(), COUNT, TYPE, SUM, 1, comm.0, stream()))
    });
    assert_eq!((&buffers[0], &buffers[1]), (&short[0], &reduced(SUM, &short)));

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
    let expected = reduced(SUM, &long);
    for (rank, buffer) in buffers.iter().enumerate() {
        assert!(buffer[rank * COUNT..][..COUNT] == expected[rank * COUNT..][..COUNT]);
    }
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn buffers_need_no_alignment() {
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
fn many_collectives_of_several_communicators_in_one_group() {
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
fn four_ranks_on_few_cores_do_not_collapse() {
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
