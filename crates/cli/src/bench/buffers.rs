//! The buffers of a rank, with the data that it sends and that it must receive.

use std::ops::Range;

use anyhow::Result;
use libnccl::{DataType, Nccl};

use super::arguments::Operation;
use super::data::Data;
use super::memory::{Buffer, Memory};
use super::parameters::Parameters;
use super::pattern::{Comparison, Pattern};
use super::shape::Shape;

/// The buffers of a rank. All ranges begin at the first element that is used.
pub(crate) struct Buffers {
    pub(crate) send: Buffer,
    pub(crate) recv: Buffer,
    rank: usize,
}

impl Buffers {
    /// Allocates buffers of `length` elements.
    pub(crate) fn new(
        nccl: &Nccl,
        memory: &Memory,
        data_type: DataType,
        rank: usize,
        length: usize,
    ) -> Result<Self> {
        let [send, recv] = [(); 2].map(|()| memory.buffer(nccl, data_type, length));
        Ok(Self { send: send?, recv: recv?, rank })
    }

    /// Writes the data to send, and a different pattern where data will be received.
    pub(crate) fn fill(&mut self, start: usize, shape: &Shape, in_place: bool, data: &Data) -> Result<()> {
        let sent = data.sent(self.rank);
        self.recv.fill(start..start + shape.total(), &data.untouched())?;
        if in_place {
            let part = shape.sent_in_place(self.rank);
            self.recv.fill(start + part.start..start + part.end, &sent)
        } else {
            self.send.fill(start..start + shape.send, &sent)
        }
    }

    /// Compares what this rank has received with what it must have received.
    pub(crate) fn compare(
        &self,
        start: usize,
        parameters: &Parameters,
        shape: &Shape,
        in_place: bool,
        data: &Data,
    ) -> Result<Comparison> {
        let start = start + if in_place { shape.received_in_place(self.rank).start } else { 0 };
        let mut all = Comparison::default();
        for (part, pattern) in self.expected(parameters, shape, in_place, data) {
            let comparison = self.recv.compare(start + part.start..start + part.end, &pattern)?;
            all.add(comparison, part.start);
        }
        Ok(all)
    }

    /// Returns the ranges that this rank receives, with their expected elements.
    fn expected(
        &self,
        parameters: &Parameters,
        shape: &Shape,
        in_place: bool,
        data: &Data,
    ) -> Vec<(Range<usize>, Pattern)> {
        let Parameters { operation, root, ranks, .. } = *parameters;
        let (rank, count) = (self.rank, shape.count);
        let all = |pattern| vec![(0..shape.recv, pattern)];
        let own_parts =
            || (0..ranks).map(|from| (from * count..(from + 1) * count, data.sent(from))).collect();
        match operation {
            Operation::AllReduce => all(data.reduced()),
            Operation::Broadcast => all(data.sent(root)),
            Operation::Reduce if rank == root => all(data.reduced()),
            // The receive buffer stays unchanged.
            Operation::Reduce if in_place => all(data.sent(rank)),
            Operation::Reduce => all(data.untouched()),
            Operation::AllGather | Operation::HyperCube => own_parts(),
            Operation::Gather if rank == root => own_parts(),
            Operation::Gather if in_place => {
                let before = (0..rank * count, data.untouched());
                let after = ((rank + 1) * count..shape.recv, data.untouched().from((rank + 1) * count));
                vec![before, (rank * count..(rank + 1) * count, data.sent(rank)), after]
            }
            Operation::Gather => all(data.untouched()),
            Operation::ReduceScatter => all(data.reduced().from(rank * count)),
            Operation::Scatter => all(data.sent(root).from(rank * count)),
            Operation::AllToAll => {
                let part = |from| (from * count..(from + 1) * count, data.sent(from).from(rank * count));
                (0..ranks).map(part).collect()
            }
            Operation::AllToAllV => {
                let mut end = 0;
                let part = |from| {
                    let (start, sent) = (end, (0..rank).map(|to| shape.part(from, to)).sum());
                    end += shape.part(from, rank);
                    (start..end, data.sent(from).from(sent))
                };
                (0..ranks).map(part).collect()
            }
            Operation::SendRecv => all(data.sent((rank + ranks - 1) % ranks)),
        }
    }
}
