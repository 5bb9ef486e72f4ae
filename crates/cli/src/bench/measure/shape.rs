use std::ops::Range;

use anyhow::{Context, Result};
use libnccl::observer::Role;

use crate::bench::benchmark::Benchmark;
use crate::bench::parameters::Parameters;

/// The number and the position of the elements that an operation of a given size moves, counted as in nccl-tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) count: usize,
    pub(crate) send: usize,
    pub(crate) recv: usize,
    benchmark: Benchmark,
    element_size: usize,
    ranks: usize,
}

/// What is measured: an operation of one size, out of place or in place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case<'a> {
    pub(crate) parameters: &'a Parameters,
    pub(crate) shape: &'a Shape,
    pub(crate) in_place: bool,
}

impl Shape {
    /// Returns the shape for a size. Fails if the size exceeds the address space.
    pub(crate) fn of(parameters: &Parameters, bytes: u64) -> Result<Self> {
        let bytes =
            usize::try_from(bytes).with_context(|| format!("{bytes} bytes exceed the address space"))?;
        let element_size = parameters.data_type.size();
        Ok(Self::new(parameters.benchmark, bytes / element_size, element_size, parameters.ranks))
    }

    /// Returns the shape for a rank's larger buffer, rounded down to a size that can be divided among the ranks.
    fn new(benchmark: Benchmark, elements: usize, element_size: usize, ranks: usize) -> Self {
        // Parts begin at multiples of 16 bytes, where the buffer does.
        let aligned = (16 / element_size).max(1);
        let part = elements / ranks / aligned * aligned;
        let count = if benchmark.has_parts() { part } else { elements };
        let [send, recv] = match benchmark {
            Benchmark::SendRecv => [count; 2],
            Benchmark::AllToAllV => {
                [(0..ranks).map(|to| uneven_part(0, to, part, element_size, ranks)).sum(); 2]
            }
            _ => {
                let operation = benchmark.operation();
                [operation.sends, operation.receives].map(|extent| extent.elements(count, ranks))
            }
        };
        Self { count, send, recv, benchmark, element_size, ranks }
    }

    /// Returns the elements of the larger buffer, the only one of an in-place operation.
    pub(crate) fn total(&self) -> usize {
        self.send.max(self.recv)
    }

    /// Returns the elements that a rank sends to another in alltoallv.
    pub(crate) fn part(&self, from: usize, to: usize) -> usize {
        uneven_part(from, to, self.count, self.element_size, self.ranks)
    }

    /// Returns the elements that count for the bandwidth.
    pub(crate) fn moved(&self) -> usize {
        // As in `counted_share`.
        if self.benchmark == Benchmark::HyperCube { self.recv - self.count } else { self.total() }
    }

    /// Returns the range that a rank sends from, in the buffer of an in-place operation: its part, unless it sends all.
    pub(crate) fn sent_in_place(&self, rank: usize) -> Range<usize> {
        let start = if self.send < self.recv { rank * self.count } else { 0 };
        start..start + self.send
    }

    /// Returns the range that a rank receives into, in the buffer of an in-place operation: its part, unless it receives
    /// all.
    pub(crate) fn received_in_place(&self, rank: usize) -> Range<usize> {
        let start = if self.recv < self.send { rank * self.count } else { 0 };
        start..start + self.recv
    }
}

/// Returns the elements that a rank sends to another in alltoallv, of `count` on average: as many as the distance to it
/// demands, in whole blocks of 16 bytes. nccl-tests has the same formula, and other ones by variables.
fn uneven_part(from: usize, to: usize, count: usize, element_size: usize, ranks: usize) -> usize {
    let bytes = count * ranks * element_size;
    let distances = ranks * (ranks - 1) / 2;
    let share = match (to + ranks - from) % ranks {
        _ if ranks == 1 => bytes,
        distance => (distance as f64 * bytes as f64 / distances as f64) as usize,
    };
    share / 16 * 16 / element_size
}

/// Returns the part of a row's bytes that counts for the bandwidth: in a hypercube, a rank's own part does not.
pub(crate) fn counted_share(benchmark: Benchmark, ranks: usize) -> f64 {
    if benchmark == Benchmark::HyperCube { (ranks - 1) as f64 / ranks as f64 } else { 1.0 }
}

/// Returns the ratio of bus bandwidth to algorithm bandwidth, as nccl-tests defines it: the bus bandwidth is that of
/// the busiest link and does not depend on the number of ranks.
pub(crate) fn bus_factor(benchmark: Benchmark, ranks: usize) -> f64 {
    let others = (ranks - 1) as f64 / ranks as f64;
    match benchmark.operation().role {
        _ if benchmark == Benchmark::HyperCube => 1.0,
        _ if benchmark.has_parts() => others,
        // The elements of all ranks are reduced, and the results return to all.
        Role::All => 2.0 * others,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::{Shape, bus_factor};
    use crate::bench::benchmark::Benchmark;

    #[test]
    fn bus_factor_is_that_of_nccl_tests() {
        let factors = |benchmark| [1, 2, 4].map(|ranks| bus_factor(benchmark, ranks));
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
        for benchmark in [Benchmark::Broadcast, Benchmark::Reduce, Benchmark::SendRecv, Benchmark::HyperCube]
        {
            assert_eq!(factors(benchmark), [1.0; 3], "{benchmark}");
        }
    }

    /// Returns count, elements sent, elements received, larger buffer and elements that count, of 1000 floats.
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
        for benchmark in [Benchmark::AllReduce, Benchmark::Broadcast, Benchmark::Reduce, Benchmark::SendRecv]
        {
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
}
