use super::{Benchmark, Shape};

#[test]
fn bus_factor_is_that_of_nccl_tests() {
    let factors = |benchmark: Benchmark| [1, 2, 4].map(|ranks| benchmark.bus_factor(ranks));
    assert_eq!(factors(Benchmark::AllReduce), [0.0, 1.0, 1.5]);
    for benchmark in [
        Benchmark::AllGather,
        Benchmark::ReduceScatter,
        Benchmark::AllToAll,
        Benchmark::AllToAllV,
        Benchmark::Gather,
        Benchmark::Scatter,
    ] {
        assert_eq!(factors(benchmark), [0.0, 0.5, 0.75], "{benchmark}");
    }
    for benchmark in [Benchmark::Broadcast, Benchmark::Reduce, Benchmark::SendRecv, Benchmark::HyperCube] {
        assert_eq!(factors(benchmark), [1.0; 3], "{benchmark}");
    }
}

/// Returns count, sent elements, received elements, larger buffer and counted elements for 1000 floats.
fn sizes(benchmark: Benchmark, ranks: usize) -> [usize; 5] {
    let shape = Shape::new(benchmark, 1000, 4, ranks);
    [shape.count, shape.send, shape.recv, shape.total(), shape.moved()]
}

#[test]
fn parts_of_the_ranks_are_aligned() {
    assert_eq!(sizes(Benchmark::AllGather, 3), [332, 332, 996, 996, 996]);
    assert_eq!(sizes(Benchmark::Gather, 3), [332, 332, 996, 996, 996]);
    assert_eq!(sizes(Benchmark::ReduceScatter, 3), [332, 996, 332, 996, 996]);
    assert_eq!(sizes(Benchmark::Scatter, 3), [332, 996, 332, 996, 996]);
    assert_eq!(sizes(Benchmark::AllToAll, 3), [332, 996, 996, 996, 996]);
    assert_eq!(sizes(Benchmark::HyperCube, 4), [248, 248, 992, 992, 744]);
    for benchmark in [Benchmark::AllReduce, Benchmark::Broadcast, Benchmark::Reduce, Benchmark::SendRecv] {
        assert_eq!(sizes(benchmark, 3), [1000; 5], "{benchmark}");
    }
    assert_eq!(Shape::new(Benchmark::AllGather, 2, 4, 2).total(), 0);
}

#[test]
fn uneven_parts_grow_with_the_distance() {
    assert_eq!(sizes(Benchmark::AllToAllV, 4), [248, 988, 988, 988, 988]);
    let shape = Shape::new(Benchmark::AllToAllV, 1000, 4, 4);
    let sent = |from| [0, 1, 2, 3].map(|to| shape.part(from, to));
    assert_eq!(sent(0), [0, 164, 328, 496]);
    assert_eq!(sent(3), [164, 328, 496, 0]);
    for rank in 0..4 {
        assert_eq!((0..4).map(|from| shape.part(from, rank)).sum::<usize>(), 988, "{rank}");
    }
    assert_eq!(sizes(Benchmark::AllToAllV, 1), [1000; 5]);
    assert_eq!(Shape::new(Benchmark::AllToAllV, 2, 4, 2).total(), 0);
}

#[test]
fn parts_in_place_are_those_of_the_rank() {
    let parts = |benchmark| {
        let shape = Shape::new(benchmark, 1000, 4, 3);
        (shape.sent_in_place(2), shape.received_in_place(2))
    };
    for benchmark in [Benchmark::AllGather, Benchmark::Gather, Benchmark::HyperCube] {
        assert_eq!(parts(benchmark), (664..996, 0..996), "{benchmark}");
    }
    for benchmark in [Benchmark::ReduceScatter, Benchmark::Scatter] {
        assert_eq!(parts(benchmark), (0..996, 664..996), "{benchmark}");
    }
    assert_eq!(parts(Benchmark::AllReduce), (0..1000, 0..1000));
}
