//! The operations that can be measured.

use std::fmt;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use libnccl::buffer::AnyElement;
use libnccl::observer::{Extent, Operation};
use libnccl::{Communicator, OnStream, Operator, Result, Slice, SliceMut};

/// An operation that `nccl bench` measures: one of libnccl's, or one that nccl-tests composes of sends and receives.
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
            Self::SendRecv => const { Operation::of("send_recv") },
        }
    }

    /// Makes the call, if it is one of libnccl's. In place, it uses the second buffer alone.
    pub(crate) fn start<'b, 'c>(
        self,
        comm: &'c Communicator,
        (send, recv): (Slice<'b, AnyElement>, SliceMut<'b, AnyElement>),
        in_place: bool,
        op: Operator<'b, AnyElement>,
        root: usize,
        on: OnStream<'b, 'c>,
    ) -> Result<()> {
        match (self, in_place) {
            (Self::AllReduce, false) => comm.all_reduce(send, recv, op, on),
            (Self::AllReduce, true) => comm.all_reduce_in_place(recv, op, on),
            (Self::Broadcast, false) => comm.broadcast(send, recv, root, on),
            (Self::Broadcast, true) => comm.broadcast_in_place(recv, root, on),
            (Self::Reduce, false) => comm.reduce(send, recv, op, root, on),
            (Self::Reduce, true) => comm.reduce_in_place(recv, op, root, on),
            (Self::AllGather, false) => comm.all_gather(send, recv, on),
            (Self::AllGather, true) => comm.all_gather_in_place(recv, on),
            (Self::ReduceScatter, false) => comm.reduce_scatter(send, recv, op, on),
            (Self::ReduceScatter, true) => comm.reduce_scatter_in_place(recv, op, on),
            (Self::AllToAll, _) => comm.all_to_all(send, recv, on),
            (Self::Gather, false) => comm.gather(send, recv, root, on),
            (Self::Gather, true) => comm.gather_in_place(recv, root, on),
            (Self::Scatter, false) => comm.scatter(send, recv, root, on),
            (Self::Scatter, true) => comm.scatter_in_place(recv, root, on),
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

    /// Returns whether it consists of sends and receives, which have to be started as a group.
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
