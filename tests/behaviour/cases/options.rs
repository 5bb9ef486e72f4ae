//! Options of a single collective, and estimates.

use libnccl::config::CollectiveConfig;
use libnccl::{CallOptions, Nccl, ReduceOp};

use super::common::{STREAM, assert_works, cases, of_one_thread};

cases! {
    invalid_options_start_nothing,
    send_with_empty_options_works,
    simulate_returns_estimate_and_starts_nothing,
}

fn invalid_options_start_nothing(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 2);
    let wrong = CollectiveConfig::new().min_ctas(5).max_ctas(4);
    let (comm, sum, on) = (&comms[0], ReduceOp::Sum, CallOptions::on(STREAM).config(&wrong));
    let (send, mut recv) = ([1_i32; 2], [9; 4]);
    for (method, refused) in [
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
        assert_eq!(refused.unwrap_err().to_string(), problem);
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
