//! Options of a single collective, and estimates.

use libnccl::{CollectiveConfig, CtaPolicy, Error, Nccl, ReduceOp};

use super::common::{STREAM, assert_works, cases, of_one_thread, on_threads};

cases! {
    every_collective_accepts_options,
    options_in_group_may_be_dropped_before_its_end,
    invalid_options_start_nothing,
    send_with_options_is_invalid_usage,
    send_with_empty_options_works,
    simulate_returns_estimate_and_starts_nothing,
    failed_simulation_leaves_communicator_usable,
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
    for config in [CollectiveConfig::new(), CollectiveConfig::new().max_ctas(1), every] {
        on_threads(nccl, 2, |comm| {
            let rank = comm.rank() as i32;

            let mut one = [rank + 1];
            comm.operations().with(&config).all_reduce_in_place(&mut one, ReduceOp::Sum, STREAM).unwrap();
            assert_eq!(one, [3]);
            comm.operations().with(&config).broadcast(&[rank], &mut one, 1, STREAM).unwrap();
            assert_eq!(one, [1]);
            let mut at_root = [9];
            comm.operations()
                .with(&config)
                .reduce(&[rank + 1], &mut at_root, ReduceOp::Prod, 0, STREAM)
                .unwrap();
            assert_eq!(at_root, [[2], [9]][comm.rank()]);
            let mut both = [9; 2];
            comm.operations().with(&config).all_gather(&[rank], &mut both, STREAM).unwrap();
            assert_eq!(both, [0, 1]);
            comm.operations()
                .with(&config)
                .reduce_scatter(&[4, 5 + rank], &mut one, ReduceOp::Max, STREAM)
                .unwrap();
            assert_eq!(one, [[4], [6]][comm.rank()]);
            comm.operations().with(&config).all_to_all(&[rank * 2, rank * 2 + 1], &mut both, STREAM).unwrap();
            assert_eq!(both, [[0, 2], [1, 3]][comm.rank()]);
            let mut gathered = [9; 2];
            comm.operations().with(&config).gather(&[rank], &mut gathered, 1, STREAM).unwrap();
            assert_eq!(gathered, [[9, 9], [0, 1]][comm.rank()]);
            comm.operations().with(&config).scatter(&[7, 8], &mut one, 0, STREAM).unwrap();
            assert_eq!(one, [[7], [8]][comm.rank()]);
            let tenfold = comm.pre_mul_sum(10).unwrap();
            tenfold.operations().with(&config).all_reduce_in_place(&mut one, STREAM).unwrap();
            assert_eq!(one, [150]);
        });
    }
}

fn options_in_group_may_be_dropped_before_its_end(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 3);
    let config = CollectiveConfig::new().max_ctas(1).alg_selection("tree");
    let mut buffers = [[1_u64; 9]; 3];
    nccl.group(|g| {
        let mut pairs = comms.iter().zip(&mut buffers);
        pairs.try_for_each(|(comm, buffer)| {
            // The group keeps a copy of the options.
            g.on(comm).with(&config).all_reduce_in_place(buffer, ReduceOp::Sum, STREAM)
        })
    })
    .unwrap();
    assert_eq!(buffers, [[3; 9]; 3]);
}

fn invalid_options_start_nothing(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 2);
    let wrong = CollectiveConfig::new().min_ctas(5).max_ctas(4);
    let (comm, sum) = (&comms[0], ReduceOp::Sum);
    let (send, mut recv) = ([1_i32; 2], [9; 4]);
    for (method, answer) in [
        ("all_reduce", comm.operations().with(&wrong).all_reduce(&send, &mut recv, sum, STREAM)),
        ("broadcast", comm.operations().with(&wrong).broadcast(&send, &mut recv[..2], 0, STREAM)),
        ("reduce", comm.operations().with(&wrong).reduce(&send, &mut recv, sum, 0, STREAM)),
        ("all_gather", comm.operations().with(&wrong).all_gather(&send, &mut recv, STREAM)),
        ("reduce_scatter", comm.operations().with(&wrong).reduce_scatter(&send, &mut recv[..1], sum, STREAM)),
        ("all_to_all", comm.operations().with(&wrong).all_to_all(&send, &mut recv, STREAM)),
        ("gather", comm.operations().with(&wrong).gather(&send, &mut recv, 0, STREAM)),
        ("scatter", comm.operations().with(&wrong).scatter(&send, &mut recv[..1], 0, STREAM)),
    ] {
        let problem = format!("{method}: min_ctas is 5, which is above max_ctas, 4");
        assert_eq!(answer.unwrap_err().to_string(), problem);
    }
    assert_eq!(recv, [9; 4]);
}

fn send_with_options_is_invalid_usage(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 1);
    let config = CollectiveConfig::new().max_ctas(1);
    let error = comms[0].operations().with(&config).send(&[1_i8], 0, STREAM).unwrap_err();
    assert!(matches!(error, Error::InvalidUsage { call: "send", .. }), "{error}");
}

fn send_with_empty_options_works(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 1);
    let (sent, mut received, empty) = ([1_i8], [0_i8], CollectiveConfig::new());
    nccl.group(|g| {
        g.on(&comms[0]).with(&empty).send(&sent, 0, STREAM)?;
        g.on(&comms[0]).with(&CollectiveConfig::new()).recv(&mut received, 0, STREAM)
    })
    .unwrap();
    assert_eq!(received, sent);
}

fn simulate_returns_estimate_and_starts_nothing(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 2);
    let estimate = |count: usize| {
        let mut buffer = vec![5_i32; count];
        let estimate =
            nccl.simulate(|g| g.all_reduce_in_place(&comms[0], &mut buffer, ReduceOp::Sum, STREAM)).unwrap();
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

fn failed_simulation_leaves_communicator_usable(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 1);
    let mut buffer = [1_i32];
    let error = nccl.simulate(|g| g.recv(&comms[0], &mut buffer, 0, STREAM)).unwrap_err();
    assert!(matches!(error, Error::InvalidUsage { call: "recv", .. }), "{error}");
    let id = nccl.unique_id().unwrap();
    let error = nccl.simulate(|g| g.init_rank(1, 0, &id, &libnccl::Config::new()).map(drop)).unwrap_err();
    assert!(matches!(error, Error::InvalidUsage { call: "init_rank", .. }), "{error}");
    assert_works(&comms[0]);
}
