//! Every operation against a plain computation, for every element type, by threads and in one thread.

use libnccl::{Communicator, DataType, Element, Nccl, ReduceOp, StreamRef};

use super::{cases, of_one_thread, on_threads};

const STREAM: StreamRef<'static> = StreamRef::DEFAULT;

cases! {
    all_reduce_of_every_type_and_operation,
    all_reduce_of_many_sizes,
    broadcast_from_every_root,
    reduce_to_every_root,
    all_gather_and_reduce_scatter,
    in_place_forms,
    a_ring_of_send_and_recv,
    a_rank_sends_to_itself,
    many_operations_one_after_the_other,
    a_count_of_zero_does_nothing,
    minimum_and_maximum_ignore_nan,
    integers_wrap_around,
    buffers_longer_than_needed_keep_their_rest,
    one_thread_drives_all_ranks,
}

/// Small whole numbers, which every type holds and adds exactly.
trait Number: Element + PartialEq + std::fmt::Debug {
    fn from_small(value: i64) -> Self;
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Number for $type {
            fn from_small(value: i64) -> Self {
                value as $type
            }
        }
    )*};
}
numbers!(i8, u8, i32, u32, i64, u64, f32, f64);

/// What `rank` puts at `index`: 1 to 4, so that sums and products of four ranks fit an i8 and sums are often
/// divisible.
fn input(rank: usize, index: usize) -> i64 {
    [2, 4, 1, 3][(rank + index / 4 + index) % 4]
}

fn expected(op: ReduceOp, size: usize, index: usize) -> i64 {
    let inputs = (0..size).map(|rank| input(rank, index));
    match op {
        ReduceOp::Sum => inputs.sum(),
        ReduceOp::Prod => inputs.product(),
        ReduceOp::Max => inputs.max().unwrap(),
        ReduceOp::Min => inputs.min().unwrap(),
        _ => inputs.sum::<i64>() / size as i64,
    }
}

fn filled<T: Number>(rank: usize, count: usize) -> Vec<T> {
    (0..count).map(|index| T::from_small(input(rank, index))).collect()
}

fn reduced<T: Number>(op: ReduceOp, size: usize, count: usize) -> Vec<T> {
    (0..count).map(|index| T::from_small(expected(op, size, index))).collect()
}

fn is_float(data_type: DataType) -> bool {
    matches!(data_type, DataType::Float32 | DataType::Float64)
}

fn all_reduce_of_every_type_and_operation(nccl: &Nccl) {
    fn check<T: Number>(comm: &Communicator) {
        let (rank, size) = (comm.rank(), comm.size());
        for op in ReduceOp::ALL {
            // The float average is not a whole number for three ranks; see `expected`.
            if op == ReduceOp::Avg && is_float(T::DATA_TYPE) && !size.is_power_of_two() {
                continue;
            }
            let send = filled::<T>(rank, 1000);
            let mut recv = vec![T::from_small(0); 1000];
            comm.all_reduce(&send, &mut recv, op, STREAM).unwrap();
            if op == ReduceOp::Avg && is_float(T::DATA_TYPE) {
                // Exact for powers of two: compare n times the average with the sum.
                let mut sum = recv.clone();
                let mut out = recv.clone();
                comm.all_reduce(&sum, &mut out, ReduceOp::Sum, STREAM).unwrap();
                std::mem::swap(&mut sum, &mut out);
                assert_eq!(sum, reduced::<T>(ReduceOp::Sum, size, 1000), "{} {op} {size}", T::DATA_TYPE);
            } else {
                assert_eq!(recv, reduced::<T>(op, size, 1000), "{} {op} {size}", T::DATA_TYPE);
            }
        }
    }
    for size in 1..=4 {
        on_threads(nccl, size, |comm| {
            check::<i8>(&comm);
            check::<u8>(&comm);
            check::<i32>(&comm);
            check::<u32>(&comm);
            check::<i64>(&comm);
            check::<u64>(&comm);
            check::<f32>(&comm);
            check::<f64>(&comm);
        });
    }
}

fn all_reduce_of_many_sizes(nccl: &Nccl) {
    on_threads(nccl, 3, |comm| {
        for count in [1, 2, 7, 255, 4095, 65_536, 300_001] {
            let mut buffer = filled::<i32>(comm.rank(), count);
            comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, STREAM).unwrap();
            assert!(buffer == reduced::<i32>(ReduceOp::Sum, 3, count), "{count}");
        }
    });
}

fn broadcast_from_every_root(nccl: &Nccl) {
    on_threads(nccl, 3, |comm| {
        for root in 0..3 {
            let send = if comm.rank() == root { filled::<u64>(root, 70_000) } else { Vec::new() };
            let mut recv = vec![0_u64; 70_000];
            comm.broadcast(&send, &mut recv, root, STREAM).unwrap();
            assert!(recv == filled::<u64>(root, 70_000), "{root}");
        }
    });
}

fn reduce_to_every_root(nccl: &Nccl) {
    on_threads(nccl, 3, |comm| {
        for root in 0..3 {
            let send = filled::<f32>(comm.rank(), 5000);
            let mut recv = if comm.rank() == root { vec![0_f32; 5000] } else { Vec::new() };
            comm.reduce(&send, &mut recv, ReduceOp::Prod, root, STREAM).unwrap();
            if comm.rank() == root {
                assert_eq!(recv, reduced::<f32>(ReduceOp::Prod, 3, 5000));
            }
        }
    });
}

fn all_gather_and_reduce_scatter(nccl: &Nccl) {
    const COUNT: usize = 40_000;
    for size in [1, 2, 4] {
        on_threads(nccl, size, |comm| {
            let send = filled::<i64>(comm.rank(), COUNT);
            let mut all = vec![0; COUNT * size];
            comm.all_gather(&send, &mut all, STREAM).unwrap();
            for rank in 0..size {
                assert!(all[rank * COUNT..][..COUNT] == filled::<i64>(rank, COUNT), "part {rank} of {size}");
            }

            let send = filled::<i64>(comm.rank(), COUNT * size);
            let mut part = vec![0; COUNT];
            comm.reduce_scatter(&send, &mut part, ReduceOp::Max, STREAM).unwrap();
            let whole = reduced::<i64>(ReduceOp::Max, size, COUNT * size);
            assert!(part == whole[comm.rank() * COUNT..][..COUNT], "{size}");
        });
    }
}

fn in_place_forms(nccl: &Nccl) {
    const COUNT: usize = 3000;
    on_threads(nccl, 3, |comm| {
        let (rank, size) = (comm.rank(), comm.size());

        let mut buffer = filled::<f64>(rank, COUNT);
        comm.broadcast_in_place(&mut buffer, 2, STREAM).unwrap();
        assert_eq!(buffer, filled::<f64>(2, COUNT));

        let mut buffer = filled::<f64>(rank, COUNT);
        comm.reduce_in_place(&mut buffer, ReduceOp::Sum, 1, STREAM).unwrap();
        let kept = filled::<f64>(rank, COUNT);
        assert_eq!(buffer, if rank == 1 { reduced::<f64>(ReduceOp::Sum, size, COUNT) } else { kept });

        let mut buffer = vec![0; COUNT * size];
        buffer[rank * COUNT..][..COUNT].copy_from_slice(&filled::<u8>(rank, COUNT));
        comm.all_gather_in_place(&mut buffer, STREAM).unwrap();
        let expected: Vec<u8> = (0..size).flat_map(|rank| filled::<u8>(rank, COUNT)).collect();
        assert_eq!(buffer, expected);

        let mut buffer = filled::<u32>(rank, COUNT * size);
        comm.reduce_scatter_in_place(&mut buffer, ReduceOp::Sum, STREAM).unwrap();
        let whole = reduced::<u32>(ReduceOp::Sum, size, COUNT * size);
        assert_eq!(buffer[rank * COUNT..][..COUNT], whole[rank * COUNT..][..COUNT]);
    });
}

fn a_ring_of_send_and_recv(nccl: &Nccl) {
    for (size, count) in [(2, 5), (3, 200_000), (4, 1000)] {
        on_threads(nccl, size, |comm| {
            let (next, previous) = ((comm.rank() + 1) % size, (comm.rank() + size - 1) % size);
            let send = filled::<i32>(comm.rank(), count);
            let mut recv = vec![0; count];
            nccl.group(|g| {
                g.send(&comm, &send, next, STREAM)?;
                g.recv(&comm, &mut recv, previous, STREAM)
            })
            .unwrap();
            assert!(recv == filled::<i32>(previous, count), "{size} {count}");
        });
    }
}

fn a_rank_sends_to_itself(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 1);
    let (send, mut recv) = (filled::<u64>(3, 100_000), vec![0; 100_000]);
    nccl.group(|g| {
        g.recv(&comms[0], &mut recv, 0, STREAM)?;
        g.send(&comms[0], &send, 0, STREAM)
    })
    .unwrap();
    assert!(recv == send);
}

fn many_operations_one_after_the_other(nccl: &Nccl) {
    let totals = on_threads(nccl, 4, |comm| {
        let mut total = 0;
        for round in 0..200 {
            let mut value = [round + comm.rank() as i64];
            comm.all_reduce_in_place(&mut value, ReduceOp::Sum, STREAM).unwrap();
            comm.broadcast_in_place(&mut value, round as usize % 4, STREAM).unwrap();
            total += value[0];
        }
        total
    });
    assert_eq!(totals, [(0..200).map(|round| 4 * round + 6).sum(); 4]);
}

fn a_count_of_zero_does_nothing(nccl: &Nccl) {
    // By one rank alone: it is not even a barrier.
    let comms = of_one_thread(nccl, 2);
    let mut nothing = [0_f32; 0];
    comms[0].all_reduce_in_place(&mut nothing, ReduceOp::Sum, STREAM).unwrap();
    comms[0].broadcast_in_place(&mut nothing, 1, STREAM).unwrap();
    comms[0].all_gather_in_place(&mut nothing, STREAM).unwrap();
}

fn minimum_and_maximum_ignore_nan(nccl: &Nccl) {
    on_threads(nccl, 2, |comm| {
        let send = if comm.rank() == 0 { [f32::NAN, 1.0, f32::NAN] } else { [2.0, f32::NAN, f32::NAN] };
        for op in [ReduceOp::Min, ReduceOp::Max] {
            let mut recv = [0.0; 3];
            comm.all_reduce(&send, &mut recv, op, STREAM).unwrap();
            assert!(recv[0] == 2.0 && recv[1] == 1.0 && recv[2].is_nan(), "{op}: {recv:?}");
        }
    });
}

fn integers_wrap_around(nccl: &Nccl) {
    on_threads(nccl, 2, |comm| {
        let mut sum = [i8::MAX, -100];
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum, STREAM).unwrap();
        assert_eq!(sum, [-2, 56]);
        let mut product = [u64::MAX];
        comm.all_reduce_in_place(&mut product, ReduceOp::Prod, STREAM).unwrap();
        assert_eq!(product, [1]);
        let mut average = [-3_i32 - comm.rank() as i32];
        comm.all_reduce_in_place(&mut average, ReduceOp::Avg, STREAM).unwrap();
        assert_eq!(average, [-3], "-7 / 2, truncated");
    });
}

fn buffers_longer_than_needed_keep_their_rest(nccl: &Nccl) {
    on_threads(nccl, 2, |comm| {
        let mut recv = [77_u8; 5];
        comm.all_gather(&[comm.rank() as u8, 9], &mut recv, STREAM).unwrap();
        assert_eq!(recv, [0, 9, 1, 9, 77]);
    });
}

fn one_thread_drives_all_ranks(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 3);
    let mut sums: Vec<Vec<f32>> = (0..3).map(|rank| filled(rank, 50_000)).collect();
    let mut gathered = vec![vec![0_u32; 3]; 3];
    let parts: Vec<[u32; 1]> = (10..13).map(|value| [value]).collect();
    nccl.group(|g| {
        for (comm, sum) in comms.iter().zip(&mut sums) {
            g.all_reduce_in_place(comm, sum, ReduceOp::Sum, STREAM)?;
        }
        for ((comm, part), all) in comms.iter().zip(&parts).zip(&mut gathered) {
            g.all_gather(comm, part, all, STREAM)?;
        }
        Ok(())
    })
    .unwrap();
    assert!(sums.iter().all(|sum| *sum == reduced::<f32>(ReduceOp::Sum, 3, 50_000)));
    assert_eq!(gathered, [[10, 11, 12]; 3]);
}
