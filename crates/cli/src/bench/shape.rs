use std::ops::Range;

use anyhow::{Context, Result};

use super::parameters::Parameters;
use crate::args::Operation;

/// How many elements an operation of a given size moves, and where they are; nccl-tests' reckoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// What NCCL calls the count.
    pub(crate) count: usize,
    /// Elements that a rank sends.
    pub(crate) send: usize,
    /// Elements that a rank receives.
    pub(crate) recv: usize,
    operation: Operation,
}

impl Shape {
    /// An error if this machine could not even count so many bytes.
    pub(crate) fn of(parameters: &Parameters, bytes: u64) -> Result<Self> {
        let bytes = usize::try_from(bytes).with_context(|| format!("{bytes} bytes cannot be addressed"))?;
        let element_size = parameters.data_type.size();
        Ok(Self::new(parameters.operation, bytes / element_size, element_size, parameters.ranks))
    }

    /// The size is that of a rank's larger buffer, rounded down to what can be divided among the ranks.
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

    /// Elements of the larger buffer, which serves as both in place.
    pub(crate) fn total(&self) -> usize {
        self.send.max(self.recv)
    }

    /// What a rank sends, within the buffer of an in-place operation.
    pub(crate) fn sent_in_place(&self, rank: usize) -> Range<usize> {
        let start = if self.operation == Operation::AllGather { rank * self.count } else { 0 };
        start..start + self.send
    }

    /// What it receives there.
    pub(crate) fn received_in_place(&self, rank: usize) -> Range<usize> {
        let start = if self.operation == Operation::ReduceScatter { rank * self.count } else { 0 };
        start..start + self.recv
    }
}

/// What the bandwidth seen by the caller has to be multiplied with to get that of the busiest link, which does
/// not depend on the number of ranks.
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
    use crate::args::Operation;

    #[test]
    fn factors_are_those_of_nccl_tests() {
        let factors = |operation| [1, 2, 4].map(|ranks| bus_factor(operation, ranks));
        assert_eq!(factors(Operation::AllReduce), [0.0, 1.0, 1.5]);
        assert_eq!(factors(Operation::AllGather), [0.0, 0.5, 0.75]);
        assert_eq!(factors(Operation::ReduceScatter), [0.0, 0.5, 0.75]);
        assert_eq!(factors(Operation::Broadcast), [1.0; 3]);
        assert_eq!(factors(Operation::Reduce), [1.0; 3]);
        assert_eq!(factors(Operation::SendRecv), [1.0; 3]);
    }

    #[test]
    fn parts_are_aligned() {
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
