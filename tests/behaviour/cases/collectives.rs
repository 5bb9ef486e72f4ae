//! Results of every operation, compared with a plain computation, with one thread per rank and with one for all.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use libnccl::{CallOptions, Nccl, ReduceOp, Result};

use super::common::{STREAM, cases, of_one_thread, on_threads};

cases! {
    rooted_operations_reach_and_collect_from_all_ranks,
    in_place_operations_use_this_ranks_part,
    zero_count_returns_without_peers,
    longer_buffers_are_used_from_their_start,
    one_thread_drives_all_ranks_in_a_group,
    all_to_all_gather_and_scatter_fall_back_to_send_recv,
    pre_mul_sum_scales_each_ranks_elements,
    nested_group_starts_at_the_outer_end,
    barrier_waits_for_every_rank,
}

fn rooted_operations_reach_and_collect_from_all_ranks(nccl: &Nccl) {
    on_threads(nccl, 3, |comm| {
        let rank = comm.rank() as i32;
        for root in 0..3 {
            let is_root = comm.rank() == root;
            let mut one = [-1];
            let from_root = [root as i32 + 7];
            comm.broadcast(if is_root { &from_root[..] } else { &[] }, &mut one, root, STREAM).unwrap();
            assert_eq!(one, from_root, "broadcast from {root}");
            let mut at_root = vec![-1; usize::from(is_root)];
            comm.reduce(&[rank + 1], &mut at_root, ReduceOp::Prod, root, STREAM).unwrap();
            assert!(!is_root || at_root == [6], "reduce to {root}: {at_root:?}");
            let mut at_root = vec![-1; if is_root { 3 } else { 0 }];
            comm.gather(&[rank], &mut at_root, root, STREAM).unwrap();
            assert!(!is_root || at_root == [0, 1, 2], "gather to {root}: {at_root:?}");
            comm.scatter(if is_root { &[5, 6, 7][..] } else { &[] }, &mut one, root, STREAM).unwrap();
            assert_eq!(one, [rank + 5], "scatter from {root}");
        }
    });
}

fn in_place_operations_use_this_ranks_part(nccl: &Nccl) {
    on_threads(nccl, 3, |comm| {
        let rank = comm.rank();
        let own = |value: i32| [0, 1, 2].map(|part| if part == rank { value } else { -1 });
        let mut buffer = [rank as i32; 3];
        comm.broadcast_in_place(&mut buffer, 2, STREAM).unwrap();
        assert_eq!(buffer, [2; 3]);
        comm.reduce_in_place(&mut buffer, ReduceOp::Sum, 1, STREAM).unwrap();
        assert_eq!(buffer, [if rank == 1 { 6 } else { 2 }; 3]);
        let mut buffer = own(rank as i32);
        comm.all_gather_in_place(&mut buffer, STREAM).unwrap();
        assert_eq!(buffer, [0, 1, 2]);
        comm.reduce_scatter_in_place(&mut buffer, ReduceOp::Sum, STREAM).unwrap();
        assert_eq!(buffer[rank], 3 * rank as i32);
        for root in 0..3 {
            // All parts on the root, one part on the others.
            let is_root = rank == root;
            let mut buffer = if is_root { own(rank as i32).to_vec() } else { vec![rank as i32] };
            comm.gather_in_place(&mut buffer, root, STREAM).unwrap();
            assert_eq!(buffer, if is_root { vec![0, 1, 2] } else { vec![rank as i32] });
            let mut buffer = if is_root { vec![4, 5, 6] } else { vec![-1] };
            comm.scatter_in_place(&mut buffer, root, STREAM).unwrap();
            assert_eq!(buffer, if is_root { vec![4, 5, 6] } else { vec![rank as i32 + 4] });
        }
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
        // The rest of a buffer that the operation uses only in part, or not at all on this rank.
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
        // In place; the counts are the lengths of the parts.
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
    let mut sums = [1_f32, 2.0, 3.0].map(|value| vec![value; 50_000]);
    let (mut gathered, mut exchanged) = ([[0_u32; 3]; 3], [[0_i32; 3]; 3]);
    let (parts, sends) = ([[10_u32], [11], [12]], [[0, 1, 2], [3, 4, 5], [6, 7, 8]]);
    nccl.group(|g| {
        for (comm, sum) in comms.iter().zip(&mut sums) {
            comm.all_reduce_in_place(sum, ReduceOp::Sum, g.stream(STREAM))?;
        }
        for (comm, (all, recv)) in comms.iter().zip(gathered.iter_mut().zip(&mut exchanged)) {
            comm.all_gather(&parts[comm.rank()], all, g.stream(STREAM))?;
            comm.all_to_all(&sends[comm.rank()], recv, g.stream(STREAM))?;
        }
        Ok(())
    })
    .unwrap();
    assert!(sums.iter().flatten().all(|sum| *sum == 6.0));
    assert_eq!((gathered, exchanged), ([[10, 11, 12]; 3], [[0, 3, 6], [1, 4, 7], [2, 5, 8]]));
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
    rooted_operations_reach_and_collect_from_all_ranks(&older);
    in_place_operations_use_this_ranks_part(&older);
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
        // If the first inner group had started its operation, it would wait for this one forever.
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
