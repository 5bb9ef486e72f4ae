//! Options of a single collective, and estimates.

use libnccl::config::{CollectiveConfig, CtaPolicy};
use libnccl::{CallOptions, Nccl, ReduceOp};

use super::common::{STREAM, assert_works, cases, of_one_thread, on_threads};

cases! {
    every_collective_accepts_options,
    invalid_options_start_nothing,
    send_with_empty_options_works,
    simulate_returns_estimate_and_starts_nothing,
}

fn every_collective_accepts_options(nccl: &Nccl) {
    let every = CollectiveConfig::new()
        .min_ctas(1)
        .max_ctas(2)
        .nvls_ctas(1)
        .cga_cluster_size(0)
        .force_alg_selection(false)
        .cta_policy(CtaPolicy::Default)
        .user_profiler_tag(7)
        .alg_selection("ring");
    on_threads(nccl, 2, |comm| {
        let (rank, on) = (comm.rank() as i32, CallOptions::on(STREAM).config(&every));
        let (mut one, mut both) = ([rank + 1], [9; 2]);
        comm.all_reduce_in_place(&mut one, ReduceOp::Sum, on).unwrap();
        assert_eq!(one, [3]);
        comm.broadcast(&[rank], &mut one, 1, on).unwrap();
        assert_eq!(one, [1]);
        comm.reduce(&[rank + 1], &mut one, ReduceOp::Sum, 0, on).unwrap();
        assert_eq!(one, [[3], [1]][comm.rank()]);
        comm.all_gather(&[rank], &mut both, on).unwrap();
        assert_eq!(both, [0, 1]);
        comm.reduce_scatter(&[4, 5 + rank], &mut one, ReduceOp::Max, on).unwrap();
        assert_eq!(one, [[4], [6]][comm.rank()]);
        comm.all_to_all(&[rank * 2, rank * 2 + 1], &mut both, on).unwrap();
        assert_eq!(both, [[0, 2], [1, 3]][comm.rank()]);
        comm.gather(&[rank], &mut both, 1, on).unwrap();
        assert_eq!(both, [[0, 2], [0, 1]][comm.rank()]);
        comm.scatter(&[7, 8], &mut one, 0, on).unwrap();
        assert_eq!(one, [[7], [8]][comm.rank()]);
        let tenfold = comm.pre_mul_sum(10).unwrap();
        comm.all_reduce_in_place(&mut one, &tenfold, on).unwrap();
        assert_eq!(one, [150]);
    });
}

fn invalid_options_start_nothing(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 2);
    let wrong = CollectiveConfig::new().min_ctas(5).max_ctas(4);
    let (comm, sum, on) = (&comms[0], ReduceOp::Sum, CallOptions::on(STREAM).config(&wrong));
    let (send, mut recv) = ([1_i32; 2], [9; 4]);
    for (method, answer) in [
        ("all_reduce", comm.all_reduce(&send, &mut recv, sum, on)),
        ("broadcast", comm.broadcast(&send, &mut recv[..2], 0, on)),
        ("reduce", comm.reduce(&send, &mut recv, sum, 0, on)),
        ("all_gather", comm.all_gather(&send, &mut recv, on)),
        ("reduce_scatter", comm.reduce_scatter(&send, &mut recv[..1], sum, on)),
        ("all_to_all", comm.all_to_all(&send, &mut recv, on)),
        ("gather", comm.gather(&send, &mut recv, 0, on)),
        ("scatter", comm.scatter(&send, &mut recv[..1], 0, on)),
    ] {
        let problem = format!("{method}: min_ctas is 5, which is above max_ctas, 4");
        assert_eq!(answer.unwrap_err().to_string(), problem);
    }
    assert_eq!(recv, [9; 4]);
}

fn send_with_empty_options_works(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 1);
    let (sent, mut received, empty) = ([1_i8], [0_i8], CollectiveConfig::new());
    nccl.group(|g| {
        comms[0].send(&sent, 0, g.stream(CallOptions::on(STREAM).config(&empty)))?;
        comms[0].recv(&mut received, 0, g.stream(CallOptions::on(STREAM).config(&empty)))
    })
    .unwrap();
    assert_eq!(received, sent);
}

fn simulate_returns_estimate_and_starts_nothing(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 2);
    let estimate = |count: usize| {
        let mut buffer = vec![5_i32; count];
        let estimate = nccl
            .simulate(|g| comms[0].all_reduce_in_place(&mut buffer, ReduceOp::Sum, g.stream(STREAM)))
            .unwrap();
        assert!(buffer.iter().all(|element| *element == 5));
        estimate.expect("there is one")
    };
    let (short, long) = (estimate(100), estimate(1_000_000));
    assert!(short > 0.0 && short < long && long.is_finite(), "{short} {long}");
    // If the simulation had started something on rank 0, this would not match.
    std::thread::scope(|scope| {
        for comm in comms {
            scope.spawn(move || assert_works(&comm));
        }
    });
}
