#![allow(unsafe_code)] // Frees the memory of a stream's work.

use std::fmt;
use std::time::Duration;

use libnccl::communicator::ShrinkMode;
use libnccl::{Communicator, Config, Nccl, ReduceOp, Result, StreamRef};

use super::common::Machine;
use super::fault::Fault;

/// The number of ranks; the last one has the fault.
pub(crate) const RANKS: usize = 3;

/// The rank with the fault.
pub(crate) const FAULTY: usize = RANKS - 1;

/// The deadline of each call.
pub(crate) const DEADLINE: Duration = Duration::from_secs(1);

/// The elements of a buffer.
const LENGTH: usize = 6 << 10;

/// The elements of a message that a send does not buffer.
const UNBUFFERED: usize = 1 << 20;

macro_rules! calls {
    ($($call:ident $name:literal),* $(,)?) => {
        /// A call that all ranks make.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Call {
            $($call),*
        }

        impl Call {
            pub(crate) const ALL: &[Self] = &[$(Self::$call),*];

            /// Returns the method.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$call => $name),*
                }
            }
        }
    };
}

calls! {
    Init "init",
    AllReduce "all_reduce",
    Broadcast "broadcast",
    Reduce "reduce",
    AllGather "all_gather",
    ReduceScatter "reduce_scatter",
    AllToAll "all_to_all",
    Gather "gather",
    Scatter "scatter",
    Recv "recv",
    Send "send",
    Group "group",
    Split "split",
    Shrink "shrink",
    Grow "grow",
    Destroy "destroy",
    // The wait for a stream with an operation, on the stand-in for CUDA.
    Synchronize "synchronize",
}

impl Call {
    /// Returns the names of which an error has to contain one, without `_` and in lower case: the method or the C function.
    pub(crate) fn names(self) -> Vec<String> {
        let names = match self {
            Self::Group => vec!["group", "all_reduce", "all_gather"],
            // The operation may fail before it is waited for.
            Self::Synchronize => vec!["synchronize", "all_reduce"],
            _ => vec![self.name()],
        };
        names.into_iter().map(|name| name.replace('_', "")).collect()
    }

    /// Returns `false` where there is no such fault: a split or an end has no size, and a new rank that has not joined has
    /// nothing to abort.
    pub(crate) fn meets(self, fault: Fault) -> bool {
        !matches!(
            (self, fault),
            (Self::Split | Self::Destroy, Fault::OtherSize) | (Self::Grow, Fault::Aborts)
        )
    }

    /// Returns `true` if this rank needs nothing of the faulty one, so that it may succeed.
    pub(crate) fn may_succeed(self, rank: usize) -> bool {
        match self {
            // Rank 0 sends to the faulty one, or rank 1 gets nothing of it.
            Self::Broadcast | Self::Scatter | Self::Reduce | Self::Gather => true,
            Self::Send | Self::Recv | Self::Shrink => rank == 1,
            // Each rank ends on its own.
            Self::Destroy => true,
            _ => false,
        }
    }

    /// Makes the call on a communicator of all ranks, perhaps with a larger buffer than the others.
    pub(crate) fn make(
        self,
        nccl: &Nccl,
        comm: Communicator,
        config: &Config,
        is_larger: bool,
    ) -> Result<()> {
        let length = LENGTH + if is_larger { RANKS } else { 0 };
        let (rank, stream) = (comm.rank(), StreamRef::DEFAULT);
        let (send, mut recv) = (vec![1_f32; length], vec![0_f32; length]);
        let part = length / RANKS;
        match self {
            Self::AllReduce => comm.all_reduce(&send, &mut recv, ReduceOp::Sum, stream),
            Self::Broadcast => comm.broadcast_in_place(&mut recv, 0, stream),
            Self::Reduce => comm.reduce_in_place(&mut recv, ReduceOp::Sum, 0, stream),
            Self::AllGather => comm.all_gather(&send[..part], &mut recv, stream),
            Self::ReduceScatter => comm.reduce_scatter(&send, &mut recv[..part], ReduceOp::Sum, stream),
            Self::AllToAll => comm.all_to_all(&send, &mut recv, stream),
            Self::Gather => comm.gather(&send[..part], &mut recv, 0, stream),
            Self::Scatter => comm.scatter(&send, &mut recv[..part], 0, stream),
            // Rank 1 exchanges nothing.
            Self::Recv if rank == 0 => comm.recv(&mut recv, FAULTY, stream),
            Self::Recv if rank == FAULTY => comm.send(&send, 0, stream),
            Self::Send if rank == 0 => comm.send(&vec![1_u64; UNBUFFERED], FAULTY, stream),
            Self::Send if rank == FAULTY => {
                comm.recv(&mut vec![0_u64; UNBUFFERED + length - LENGTH], 0, stream)
            }
            Self::Group => {
                let mut gathered = vec![0_f32; length];
                nccl.group(|g| {
                    comm.all_reduce(&send, &mut recv, ReduceOp::Sum, g.stream(stream))?;
                    comm.all_gather(&send[..part], &mut gathered, g.stream(stream))
                })
            }
            Self::Split => {
                comm.split(Some(0), 0).config(config).init()?.map_or(Ok(()), Communicator::destroy)
            }
            Self::Shrink if rank != 1 => {
                let exclude = if is_larger { vec![0] } else { vec![1] };
                comm.shrink(&exclude, ShrinkMode::Default).config(config).init()?.destroy()
            }
            Self::Destroy => comm.destroy(),
            Self::Synchronize => on_stream(comm, length, false),
            Self::Recv | Self::Send | Self::Shrink | Self::Init | Self::Grow => Ok(()),
        }
    }

    /// Makes another call than the others.
    pub(crate) fn make_another(self, nccl: &Nccl, comm: Communicator, config: &Config) -> Result<()> {
        let other = match self {
            Self::Synchronize => return on_stream(comm, LENGTH, true),
            Self::AllReduce | Self::Group => Self::Broadcast,
            _ => Self::AllReduce,
        };
        other.make(nccl, comm, config, false)
    }
}

/// Enqueues an operation on a stream, and waits for it.
fn on_stream(comm: Communicator, length: usize, is_broadcast: bool) -> Result<()> {
    let machine = Machine::new(RANKS);
    let rank = machine.create(comm.rank(), || Ok::<_, libnccl::Error>(comm))?;
    let mut buffer = rank.buffer(&vec![1.0; length])?;
    let enqueued = if is_broadcast {
        rank.comm.broadcast_in_place(&mut buffer, 0, rank.stream())
    } else {
        rank.comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, rank.stream())
    };
    let waited = enqueued.and_then(|()| rank.wait(DEADLINE));
    drop(rank.comm);
    // SAFETY: the stream was waited for, or the end of the communicator has ended its work.
    unsafe { buffer.assume_idle() };
    waited
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
