//! Results of every operation, compared with a plain computation, with one thread per rank and with one for all.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use libnccl::{CallOptions, Communicator, Element, Nccl, ReduceOp, Result};

use super::common::{STREAM, cases, of_one_thread, on_threads};

cases! {
    broadcast_any_root_reaches_all_ranks,
    reduce_any_root_gets_the_result,
    all_gather_and_reduce_scatter_move_every_part,
    in_place_operations_match_out_of_place,
    zero_count_returns_without_peers,
    longer_buffers_are_used_from_their_start,
    one_thread_drives_all_ranks_in_a_group,
    all_to_all_gather_and_scatter_move_every_part,
    all_to_all_gather_and_scatter_fall_back_to_send_recv,
    pre_mul_sum_scales_each_ranks_elements,
    nested_group_starts_at_the_outer_end,
    barrier_waits_for_every_rank,
}

/// Element types, which all hold and add small whole numbers exactly.
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

/// Returns the element of `rank` at `index`: 1 to 4, so that sums and products of four ranks fit an i8.
fn input(rank: usize, index: usize) -> i64 {
    [2, 4, 1, 3][(rank + index / 4 + index) % 4]
}

fn expected(op: ReduceOp, size: usize, index: usize) -> i64 {
    let values = (0..size).map(|rank| input(rank, index));
    match op {
        ReduceOp::Prod => values.product(),
        ReduceOp::Max => values.max().expect("there are ranks"),
        ReduceOp::Min => values.min().expect("there are ranks"),
        ReduceOp::Avg => values.sum::<i64>() / size as i64,
        _ => values.sum(),
    }
}

fn filled<T: Number>(rank: usize, count: usize) -> Vec<T> {
    (0..count).map(|index| T::from_small(input(rank, index))).collect()
}

fn reduced<T: Number>(op: ReduceOp, size: usize, count: usize) -> Vec<T> {
    (0..count).map(|index| T::from_small(expected(op, size, index))).collect()
}

fn broadcast_any_root_reaches_all_ranks(nccl: &Nccl) {
    on_threads(nccl, 3, |comm| {
        for root in 0..3 {
            let send = if comm.rank() == root { filled::<u64>(root, 70_000) } else { Vec::new() };
            let mut recv = vec![0_u64; 70_000];
            comm.broadcast(&send, &mut recv, root, STREAM).unwrap();
            assert!(recv == filled::<u64>(root, 70_000), "{root}");
        }
    });
}

fn reduce_any_root_gets_the_result(nccl: &Nccl) {
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

fn all_gather_and_reduce_scatter_move_every_part(nccl: &Nccl) {
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

fn in_place_operations_match_out_of_place(nccl: &Nccl) {
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

fn zero_count_returns_without_peers(nccl: &Nccl) {
    // Only one rank calls: an empty operation is not even a barrier.
    let comms = of_one_thread(nccl, 2);
    let mut nothing = [0_f32; 0];
    comms[0].all_reduce_in_place(&mut nothing, ReduceOp::Sum, STREAM).unwrap();
    comms[0].broadcast_in_place(&mut nothing, 1, STREAM).unwrap();
    comms[0].all_gather_in_place(&mut nothing, STREAM).unwrap();
}

/// Every operation whose buffers may be longer than it needs, on two ranks.
fn longer_buffers_are_used_from_their_start(nccl: &Nccl) {
    on_threads(nccl, 2, |comm| {
        let (rank, is_root) = (comm.rank(), comm.rank() == 1);
        let mine = [[1, 2], [3, 4]][rank];
        let (all, of_rank) = ([1, 2, 3, 4], |all: [i32; 4]| [[all[0], all[1]], [all[2], all[3]]][rank]);
        // What is left of a buffer that an operation needs in part, or not at all on this rank.
        const TAIL: [i32; 3] = [77, 78, 79];
        let long = |start: &[i32]| [start, &TAIL].concat();
        let check = |name: &str, length: usize, expected: &[i32], call: &dyn Fn(&mut [i32]) -> Result<()>| {
            let mut recv = long(&vec![-1; length]);
            call(&mut recv).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(recv, long(expected), "{name} of rank {rank}");
        };
        let root_only = |expected: &[i32]| if is_root { expected.to_vec() } else { vec![-1; expected.len()] };
        check("all_reduce", 2, &[4, 6], &|recv| comm.all_reduce(&mine, recv, ReduceOp::Sum, STREAM));
        check("reduce", 2, &root_only(&[4, 6]), &|recv| comm.reduce(&mine, recv, ReduceOp::Sum, 1, STREAM));
        check("all_gather", 4, &all, &|recv| comm.all_gather(&mine, recv, STREAM));
        check("gather", 4, &root_only(&all), &|recv| comm.gather(&mine, recv, 1, STREAM));
        let exchanged = [[1, 2, 1, 2], [3, 4, 3, 4]][rank];
        check("all_to_all", 4, &exchanged, &|recv| comm.all_to_all(&all, recv, STREAM));
        check("all_gather_v", 4, &all, &|recv| comm.all_gather_v(&mine, recv, &[2, 2], STREAM));
        check("gather_v", 4, &root_only(&all), &|recv| comm.gather_v(&mine, recv, &[2, 2], 1, STREAM));
        check("all_to_all_v", 4, &exchanged, &|recv| {
            comm.all_to_all_v(&long(&all), recv, &[2, 2], &[2, 2], STREAM)
        });
        // These need a part of the send buffer.
        type Call<'a> = &'a dyn Fn(&[i32], &mut [i32]) -> Result<()>;
        let check = |name: &str, expected: [i32; 2], call: Call<'_>| {
            let mut recv = [-1; 2];
            call(&long(&all), &mut recv).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(recv, expected, "{name} of rank {rank}");
        };
        let sums = of_rank([2, 4, 6, 8]);
        check("broadcast", [1, 2], &|send, recv| comm.broadcast(send, recv, 1, STREAM));
        check("scatter", of_rank(all), &|send, recv| comm.scatter(send, recv, 1, STREAM));
        check("scatter_v", of_rank(all), &|send, recv| comm.scatter_v(send, recv, &[2, 2], 1, STREAM));
        check("reduce_scatter", sums, &|send, recv| comm.reduce_scatter(send, recv, ReduceOp::Sum, STREAM));
        check("reduce_scatter_v", sums, &|send, recv| {
            comm.reduce_scatter_v(send, recv, &[2, 2], ReduceOp::Sum, STREAM)
        });
        // In place; the counts are those of the parts.
        let mut buffer = long(&all);
        comm.all_gather_v_in_place(&mut buffer, &[2, 2], STREAM).unwrap();
        assert_eq!(buffer, long(&all));
        comm.reduce_scatter_v_in_place(&mut buffer, &[2, 2], ReduceOp::Sum, STREAM).unwrap();
        assert_eq!((&buffer[2 * rank..][..2], &buffer[4..]), (&sums[..], &TAIL[..]));
        let mut buffer = if is_root { long(&all) } else { mine.to_vec() };
        comm.gather_v_in_place(&mut buffer, &[2, 2], 1, STREAM).unwrap();
        assert_eq!(buffer, if is_root { long(&all) } else { mine.to_vec() });
        comm.scatter_v_in_place(&mut buffer, &[2, 2], 1, STREAM).unwrap();
        assert_eq!(buffer, if is_root { long(&all) } else { mine.to_vec() });
        let mut buffer = long(&[]);
        comm.barrier(&mut buffer, STREAM).unwrap();
        assert_eq!(buffer[1..], TAIL[1..]);
    });
}

fn one_thread_drives_all_ranks_in_a_group(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 3);
    let mut sums: Vec<Vec<f32>> = (0..3).map(|rank| filled(rank, 50_000)).collect();
    let mut gathered = vec![vec![0_u32; 3]; 3];
    let parts: Vec<[u32; 1]> = (10..13).map(|value| [value]).collect();
    nccl.group(|g| {
        for (comm, sum) in comms.iter().zip(&mut sums) {
            comm.all_reduce_in_place(sum, ReduceOp::Sum, g.stream(STREAM))?;
        }
        for ((comm, part), all) in comms.iter().zip(&parts).zip(&mut gathered) {
            comm.all_gather(part, all, g.stream(STREAM))?;
        }
        Ok(())
    })
    .unwrap();
    assert!(sums.iter().all(|sum| *sum == reduced::<f32>(ReduceOp::Sum, 3, 50_000)));
    assert_eq!(gathered, [[10, 11, 12]; 3]);
}

// Regression: monarch's all_to_all does not check what it writes to.
fn all_to_all_gather_and_scatter_move_every_part(nccl: &Nccl) {
    const COUNT: usize = 1000;
    for size in [1, 3] {
        on_threads(nccl, size, |comm| check_exchanges(&comm, COUNT));
        // In groups.
        let comms = of_one_thread(nccl, size);
        let sends: Vec<Vec<i32>> = (0..size).map(|rank| filled(rank, 5 * size)).collect();
        let mut recvs = vec![vec![0; 5 * size]; size];
        nccl.group(|g| {
            comms
                .iter()
                .zip(&sends)
                .zip(&mut recvs)
                .try_for_each(|((comm, send), recv)| comm.all_to_all(send, recv, g.stream(STREAM)))
        })
        .unwrap();
        for (rank, recv) in recvs.iter().enumerate() {
            let expected: Vec<i32> = sends.iter().flat_map(|send| send[rank * 5..][..5].to_vec()).collect();
            assert_eq!(*recv, expected);
        }
    }
}

fn check_exchanges(comm: &Communicator, count: usize) {
    let (rank, size) = (comm.rank(), comm.size());
    let part =
        |sender: usize, part: usize| filled::<f32>(sender, count * size)[part * count..][..count].to_vec();
    let whole = filled::<f32>(rank, count * size);

    let mut recv = vec![0.0; count * size];
    comm.all_to_all(&whole, &mut recv, STREAM).unwrap();
    let expected: Vec<f32> = (0..size).flat_map(|sender| part(sender, rank)).collect();
    assert_eq!(recv, expected);

    for root in 0..size {
        let mut gathered = if rank == root { vec![0.0; count * size] } else { Vec::new() };
        comm.gather(&whole[..count], &mut gathered, root, STREAM).unwrap();
        if rank == root {
            let expected: Vec<f32> = (0..size).flat_map(|sender| part(sender, 0)).collect();
            assert_eq!(gathered, expected);
        }

        let send = if rank == root { &whole[..] } else { &[] };
        let mut scattered = vec![0.0; count];
        comm.scatter(send, &mut scattered, root, STREAM).unwrap();
        assert_eq!(scattered, part(root, rank));

        // In place: on the root all parts, on the others one.
        let own = |rank: usize| part(rank, rank);
        let mut buffer = if rank == root { vec![0.0; count * size] } else { own(rank) };
        if rank == root {
            buffer[rank * count..][..count].copy_from_slice(&own(rank));
        }
        comm.gather_in_place(&mut buffer, root, STREAM).unwrap();
        let all: Vec<f32> = (0..size).flat_map(own).collect();
        assert_eq!(buffer, if rank == root { all } else { own(rank) });

        let mut buffer = if rank == root { whole.clone() } else { vec![0.0; count] };
        comm.scatter_in_place(&mut buffer, root, STREAM).unwrap();
        assert_eq!(buffer, if rank == root { whole.clone() } else { part(root, rank) });
    }
    let short = comm.all_to_all(&whole, &mut recv[..count * size - 1], STREAM).unwrap_err();
    assert!(short.to_string().starts_with("all_to_all: the receive buffer holds "), "{short}");
    let short = comm.gather(&whole, &mut recv[..count * size - 1], rank, STREAM).unwrap_err();
    assert!(short.to_string().starts_with("gather: the root's receive buffer holds "), "{short}");
    let short = comm.scatter(&whole[1..], &mut recv[..count], rank, STREAM).unwrap_err();
    assert!(short.to_string().starts_with("scatter: the root's send buffer holds "), "{short}");
    let beyond = comm.gather(&whole, &mut recv, size, STREAM).unwrap_err().to_string();
    assert_eq!(beyond, format!("gather: root {size} is not below {size}, the communicator's size"));
}

/// Removes the functions that came with 2.28.3 and later.
fn all_to_all_gather_and_scatter_fall_back_to_send_recv(nccl: &Nccl) {
    let functions = libnccl::sys::Functions {
        ncclAlltoAll: None,
        ncclGather: None,
        ncclScatter: None,
        ncclAlltoAllConfig: None,
        ..*nccl.as_raw()
    };
    // SAFETY: the functions of `nccl`, but for some that it lacks.
    let older = unsafe { Nccl::from_table("an older library", functions) }.unwrap();
    all_to_all_gather_and_scatter_move_every_part(&older);
    longer_buffers_are_used_from_their_start(&older);
    let comms = of_one_thread(&older, 1);
    let options = libnccl::config::CollectiveConfig::new().max_ctas(1);
    let error =
        comms[0].all_to_all(&[1_i8], &mut [0_i8], CallOptions::on(STREAM).config(&options)).unwrap_err();
    assert!(matches!(error, libnccl::Error::Unsupported { function: "ncclAlltoAllConfig", .. }), "{error}");
}

fn pre_mul_sum_scales_each_ranks_elements(nccl: &Nccl) {
    on_threads(nccl, 2, |comm| {
        let rank = comm.rank();
        // Each rank has its own scalar.
        let scaled = comm.pre_mul_sum(10_i32.pow(rank as u32)).unwrap();
        let mut sum = [0; 3];
        comm.all_reduce(&[1, 2, 3], &mut sum, &scaled, STREAM).unwrap();
        assert_eq!(sum, [11, 22, 33]);
        let mut part = [0];
        comm.reduce_scatter(&[4, 5], &mut part, &scaled, STREAM).unwrap();
        assert_eq!(part, [[44], [55]][rank]);
        let mut buffer = [6];
        comm.reduce_in_place(&mut buffer, &scaled, 1, STREAM).unwrap();
        assert_eq!(buffer, [[6], [66]][rank]);
        let mut grouped = [7];
        nccl.group(|g| comm.all_reduce_in_place(&mut grouped, &scaled, g.stream(STREAM))).unwrap();
        assert_eq!(grouped, [77]);
        drop(scaled);

        let half = [0.5_f64];
        let halves = comm.pre_mul_sum_device(&half).unwrap();
        let mut mean = [0.0];
        comm.all_reduce(&[rank as f64 * 3.0], &mut mean, &halves, STREAM).unwrap();
        assert_eq!(mean, [1.5]);
        let empty = comm.pre_mul_sum_device::<f32>(&[]).unwrap_err().to_string();
        assert_eq!(empty, "pre_mul_sum_device: the scalar's buffer is empty; expected one element");
    });
}

fn nested_group_starts_at_the_outer_end(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 2);
    let (mut first, mut second) = ([1_u64], [2_u64]);
    nccl.group(|g| {
        g.group(|g| comms[0].all_reduce_in_place(&mut first, ReduceOp::Sum, g.stream(STREAM)))?;
        // If the first inner group had started its operation, it would wait for this one for ever.
        g.group(|g| comms[1].all_reduce_in_place(&mut second, ReduceOp::Sum, g.stream(STREAM)))
    })
    .unwrap();
    assert_eq!((first, second), ([3], [3]));
}

// Regression: ferrotorch's barrier does not wait.
fn barrier_waits_for_every_rank(nccl: &Nccl) {
    let arrivals = AtomicUsize::new(0);
    on_threads(nccl, 3, |comm| {
        for round in 1..=20 {
            if comm.rank() == round % 3 {
                thread::sleep(Duration::from_millis(2));
            }
            arrivals.fetch_add(1, SeqCst);
            comm.barrier(&mut [0_u8], STREAM).unwrap();
            assert_eq!(arrivals.load(SeqCst), 3 * round);
            comm.barrier(&mut [0_u8], STREAM).unwrap();
        }
    });
    let error = of_one_thread(nccl, 2)[0].barrier(&mut [0_u8; 0], STREAM).unwrap_err();
    assert_eq!(error.to_string(), "barrier: the buffer is empty; expected one element");
}
