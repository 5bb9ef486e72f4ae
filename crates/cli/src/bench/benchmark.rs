//! The operations that can be measured.

use std::fmt;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use libnccl::{AnySlice, AnySliceMut, Extent, Grouping, Operation, Operations, ReduceOp, Result, StreamRef};

/// An operation that `nccl bench` measures: one of libnccl's, or one that nccl-tests makes of messages.
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
    /// Returns the operation that has the same effect.
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
            Self::SendRecv => const { Operation::of("sendrecv") },
        }
    }

    /// Makes the call, if it is one of libnccl's. In place, it uses the second buffer alone.
    pub(crate) fn start<'b>(
        self,
        on: Operations<'_, impl Grouping<'b>>,
        (send, recv): (AnySlice<'b>, AnySliceMut<'b>),
        in_place: bool,
        op: ReduceOp,
        root: usize,
        stream: StreamRef<'b>,
    ) -> Result<()> {
        match (self, in_place) {
            (Self::AllReduce, false) => on.all_reduce(send, recv, op, stream),
            (Self::AllReduce, true) => on.all_reduce_in_place(recv, op, stream),
            (Self::Broadcast, false) => on.broadcast(send, recv, root, stream),
            (Self::Broadcast, true) => on.broadcast_in_place(recv, root, stream),
            (Self::Reduce, false) => on.reduce(send, recv, op, root, stream),
            (Self::Reduce, true) => on.reduce_in_place(recv, op, root, stream),
            (Self::AllGather, false) => on.all_gather(send, recv, stream),
            (Self::AllGather, true) => on.all_gather_in_place(recv, stream),
            (Self::ReduceScatter, false) => on.reduce_scatter(send, recv, op, stream),
            (Self::ReduceScatter, true) => on.reduce_scatter_in_place(recv, op, stream),
            (Self::AllToAll, _) => on.all_to_all(send, recv, stream),
            (Self::Gather, false) => on.gather(send, recv, root, stream),
            (Self::Gather, true) => on.gather_in_place(recv, root, stream),
            (Self::Scatter, false) => on.scatter(send, recv, root, stream),
            (Self::Scatter, true) => on.scatter_in_place(recv, root, stream),
            // Several calls, for which the measurement has loops.
            (Self::AllToAllV | Self::SendRecv | Self::HyperCube, _) => Ok(()),
        }
    }

    /// Returns whether a buffer has a part for each rank.
    pub(crate) fn has_parts(self) -> bool {
        let operation = self.operation();
        self != Self::SendRecv && [operation.sends, operation.receives] != [Extent::Count; 2]
    }

    /// Returns whether it has an in-place form. nccl-tests measures the others in place too, with results that are undefined.
    pub(crate) fn has_in_place(self) -> bool {
        self.operation().in_place_form().is_some()
    }

    /// Returns whether it consists of messages, which have to be started as a group.
    pub(crate) fn needs_group(self) -> bool {
        self.operation().function == "ncclSend"
    }

    /// Returns whether nccl-tests measures it once for each reduction.
    pub(crate) fn has_op(self) -> bool {
        self.operation().reduces || self == Self::SendRecv
    }
}

impl fmt::Display for Benchmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().as_ref().map_or("", PossibleValue::get_name))
    }
}
