use super::{Benchmark, Shape};

#[test]
fn bus_factor_is_that_of_nccl_tests() {
    for (benchmarks, factors) in [
        (&[Benchmark::AllReduce][..], [0.0, 1.0, 1.5]),
        (
            &[
                Benchmark::AllGather,
                Benchmark::ReduceScatter,
                Benchmark::AllToAll,
                Benchmark::AllToAllV,
                Benchmark::Gather,
                Benchmark::Scatter,
            ],
            [0.0, 0.5, 0.75],
        ),
        (&[Benchmark::Broadcast, Benchmark::Reduce, Benchmark::SendRecv, Benchmark::HyperCube], [1.0; 3]),
    ] {
        for benchmark in benchmarks {
            assert_eq!([1, 2, 4].map(|ranks| benchmark.bus_factor(ranks)), factors, "{benchmark}");
        }
    }
}

#[test]
fn uneven_parts_grow_with_the_distance() {
    let shape = Shape::new(Benchmark::AllToAllV, 1000, 4, 4);
    assert_eq!([shape.count, shape.send, shape.recv, shape.moved()], [248, 988, 988, 988]);
    let sent = |from| [0, 1, 2, 3].map(|to| shape.part(from, to));
    assert_eq!([sent(0), sent(3)], [[0, 164, 328, 496], [164, 328, 496, 0]]);
    assert_eq!(Shape::new(Benchmark::AllToAllV, 1000, 4, 1).total(), 1000);
}

#[test]
fn own_part_of_a_hypercube_is_not_counted() {
    let shape = Shape::new(Benchmark::HyperCube, 1000, 4, 4);
    assert_eq!([shape.count, shape.recv, shape.moved()], [248, 992, 744]);
}
