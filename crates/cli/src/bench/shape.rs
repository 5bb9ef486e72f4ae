use std::ops::Range;

use anyhow::{Context, Result};

use super::parameters::Parameters;
use crate::bench::arguments::Operation;

/// The number and the position of the elements that an operation of a given size moves, counted as in nccl-tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The count argument of NCCL.
    pub(crate) count: usize,
    /// Elements that a rank sends.
    pub(crate) send: usize,
    /// Elements that a rank receives.
    pub(crate) recv: usize,
    operation: Operation,
}

impl Shape {
    /// Returns the shape for a size. Fails if the size exceeds the address space.
    pub(crate) fn of(parameters: &Parameters, bytes: u64) -> Result<Self> {
        let bytes =
            usize::try_from(bytes).with_context(|| format!("{bytes} bytes exceed the address space"))?;
        let element_size = parameters.data_type.size();
        Ok(Self::new(parameters.operation, bytes / element_size, element_size, parameters.ranks))
    }

    /// Returns the shape for a rank's larger buffer, rounded down to a size that can be divided among the ranks.
    fn new(operation: Operation, elements: usize, element_size: usize, ranks: usize) -> Self {
        // Parts begin at multiples of 16 bytes, where the buffer does.
        let aligned = (16 / element_size).max(1);
        let part = elements / ranks / aligned * aligned;
        let (count, send, recv) = match operation {
            Operation::AllGather => (part, part, part * ranks),
            Operation::ReduceScatter => (part, part * ranks, part),
            _ => (elements, elements, elements),
        };
        Self { count, send, recv, operation }
    }

    /// Returns the elements of the larger buffer, the only one of an in-place operation.
    pub(crate) fn total(&self) -> usize {
        self.send.max(self.recv)
    }

    /// Returns the range that a rank sends from, in the buffer of an in-place operation.
    pub(crate) fn sent_in_place(&self, rank: usize) -> Range<usize> {
        let start = if self.operation == Operation::AllGather { rank * self.count } else { 0 };
        start..start + self.send
    }

    /// Returns the range that a rank receives into, in the buffer of an in-place operation.
    pub(crate) fn received_in_place(&self, rank: usize) -> Range<usize> {
        let start = if self.operation == Operation::ReduceScatter { rank * self.count } else { 0 };
        start..start + self.recv
    }
}

/// Returns the ratio of bus bandwidth to algorithm bandwidth, as nccl-tests defines it: the bus bandwidth is that of
/// the busiest link and does not depend on the number of ranks.
pub(crate) fn bus_factor(operation: Operation, ranks: usize) -> f64 {
    let others = (ranks - 1) as f64 / ranks as f64;
    match operation {
        Operation::AllReduce => 2.0 * others,
        Operation::AllGather | Operation::ReduceScatter => others,
        Operation::Broadcast | Operation::Reduce | Operation::SendRecv => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::{Shape, bus_factor};
    use crate::bench::arguments::Operation;

    #[test]
    fn bus_factor_is_that_of_nccl_tests() {
        let factors = |operation| [1, 2, 4].map(|ranks| bus_factor(operation, ranks));
        assert_eq!(factors(Operation::AllReduce), [0.0, 1.0, 1.5]);
        assert_eq!(factors(Operation::AllGather), [0.0, 0.5, 0.75]);
        assert_eq!(factors(Operation::ReduceScatter), [0.0, 0.5, 0.75]);
        assert_eq!(factors(Operation::Broadcast), [1.0; 3]);
        assert_eq!(factors(Operation::Reduce), [1.0; 3]);
        assert_eq!(factors(Operation::SendRecv), [1.0; 3]);
    }

    #[test]
    fn parts_of_the_ranks_are_aligned() {
        let shape = Shape::new(Operation::AllGather, 1000, 4, 3);
        assert_eq!((shape.count, shape.send, shape.recv, shape.total()), (332, 332, 996, 996));
        assert_eq!((shape.sent_in_place(2), shape.received_in_place(2)), (664..996, 0..996));
        let shape = Shape::new(Operation::ReduceScatter, 1000, 4, 3);
        assert_eq!((shape.count, shape.send, shape.recv, shape.total()), (332, 996, 332, 996));
        assert_eq!((shape.sent_in_place(2), shape.received_in_place(2)), (0..996, 664..996));
        let shape = Shape::new(Operation::AllReduce, 1000, 4, 3);
        assert_eq!((shape.count, shape.send, shape.recv, shape.total()), (1000, 1000, 1000, 1000));
        assert_eq!(Shape::new(Operation::AllGather, 2, 4, 2).total(), 0);
    }
}
