//! The operations that can be measured, and the elements that they move.

use std::fmt;
use std::ops::Range;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use libnccl::observer::{Extent, Operation, Role};

/// An operation that `nccl bench` measures: one of libnccl's, or a combination of sends and receives from nccl-tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Benchmark {
    /// Reduce all ranks' buffers; every rank gets the result
    AllReduce,
    /// Gather all ranks' buffers at every rank
    AllGather,
    /// Copy the root's buffer to every rank
    Broadcast,
    /// Reduce all ranks' buffers; the root gets the result
    Reduce,
    /// Reduce all ranks' buffers; every rank gets its part of the result
    ReduceScatter,
    /// Send a part of the buffer to each rank, and receive one from each
    #[value(name = "alltoall")]
    AllToAll,
    /// Send a part of the buffer to each rank, the larger the further away it is, and receive one from each
    #[value(name = "alltoallv")]
    AllToAllV,
    /// Gather all ranks' buffers at the root
    Gather,
    /// Send a part of the root's buffer to each rank
    Scatter,
    /// Send to the next rank and receive from the previous one
    #[value(name = "sendrecv")]
    SendRecv,
    /// Gather all ranks' buffers at every rank, by messages along the edges of a hypercube
    #[value(name = "hypercube")]
    HyperCube,
}

impl Benchmark {
    /// Returns the libnccl operation that has the same effect.
    pub(crate) fn operation(self) -> &'static Operation {
        match self {
            Self::AllReduce => const { Operation::of("all_reduce") },
            Self::AllGather | Self::HyperCube => const { Operation::of("all_gather") },
            Self::Broadcast => const { Operation::of("broadcast") },
            Self::Reduce => const { Operation::of("reduce") },
            Self::ReduceScatter => const { Operation::of("reduce_scatter") },
            Self::AllToAll => const { Operation::of("all_to_all") },
            Self::AllToAllV => const { Operation::of("all_to_all_v") },
            Self::Gather => const { Operation::of("gather") },
            Self::Scatter => const { Operation::of("scatter") },
            Self::SendRecv => const { Operation::of("send_recv") },
        }
    }

    /// Returns whether the send or the receive buffer has a part for each rank.
    pub(crate) fn has_parts(self) -> bool {
        let operation = self.operation();
        self != Self::SendRecv && [operation.sends, operation.receives] != [Extent::Count; 2]
    }

    /// Returns whether nccl-tests measures this operation once for each reduction.
    pub(crate) fn has_op(self) -> bool {
        self.operation().reduces || self == Self::SendRecv
    }

    /// Returns the share of a row's bytes that counts for the bandwidth. For a hypercube, a rank's own part is excluded.
    pub(crate) fn counted_share(self, ranks: usize) -> f64 {
        if self == Self::HyperCube { (ranks - 1) as f64 / ranks as f64 } else { 1.0 }
    }

    /// Returns the ratio of bus bandwidth to algorithm bandwidth, as nccl-tests defines it. The bus bandwidth is the bandwidth of
    /// the busiest link, independent of the number of ranks.
    pub(crate) fn bus_factor(self, ranks: usize) -> f64 {
        let others = (ranks - 1) as f64 / ranks as f64;
        match self.operation().role {
            _ if self == Self::HyperCube => 1.0,
            _ if self.has_parts() => others,
            // The elements of all ranks are reduced, and the results return to all.
            Role::All => 2.0 * others,
            _ => 1.0,
        }
    }
}

impl fmt::Display for Benchmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().as_ref().map_or("", PossibleValue::get_name))
    }
}

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

impl Shape {
    /// Returns the shape if the larger of the two buffers has `elements` elements. Parts are rounded down to 16-byte multiples.
    pub(crate) fn new(benchmark: Benchmark, elements: usize, element_size: usize, ranks: usize) -> Self {
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

    /// Returns the number of elements of the larger buffer, which is the only buffer of an in-place operation.
    pub(crate) fn total(&self) -> usize {
        self.send.max(self.recv)
    }

    /// Returns the number of elements that rank `from` sends to rank `to` in alltoallv.
    pub(crate) fn part(&self, from: usize, to: usize) -> usize {
        uneven_part(from, to, self.count, self.element_size, self.ranks)
    }

    /// Returns the number of elements that count for the bandwidth.
    pub(crate) fn moved(&self) -> usize {
        // As in [`Benchmark::counted_share`].
        if self.benchmark == Benchmark::HyperCube { self.recv - self.count } else { self.total() }
    }

    /// Returns the range of elements that a rank sends in an in-place operation: either its own part or the whole buffer.
    pub(crate) fn sent_in_place(&self, rank: usize) -> Range<usize> {
        let start = if self.send < self.recv { rank * self.count } else { 0 };
        start..start + self.send
    }

    /// Returns the range of elements that a rank receives in an in-place operation.
    pub(crate) fn received_in_place(&self, rank: usize) -> Range<usize> {
        let start = if self.recv < self.send { rank * self.count } else { 0 };
        start..start + self.recv
    }
}

/// Returns the number of elements that rank `from` sends to rank `to` in alltoallv: `count` on average, more to ranks that are
/// further away, rounded down to 16 bytes. nccl-tests uses the same formula by default.
fn uneven_part(from: usize, to: usize, count: usize, element_size: usize, ranks: usize) -> usize {
    let bytes = count * ranks * element_size;
    let distances = ranks * (ranks - 1) / 2;
    let share = match (to + ranks - from) % ranks {
        _ if ranks == 1 => bytes,
        distance => (distance as f64 * bytes as f64 / distances as f64) as usize,
    };
    share / 16 * 16 / element_size
}

#[cfg(test)]
#[path = "../../tests/unit/benchmark.rs"]
mod tests;
