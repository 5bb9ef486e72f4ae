//! The rules for the arguments of operations, and the error messages.

use std::ptr;

use super::call::Call;
use crate::buffer::{MemorySpace, RawSlice};
use crate::communicator::Shared;
use crate::config::CollectiveConfig;
use crate::data_type::DataType;
use crate::error::{Error, InvalidArgumentKind, Result};
use crate::reduce_op::RawOperator;
use crate::sys;

/// Ranks and operators.
impl Call<'_, '_> {
    #[cold]
    pub(super) fn wrong(&self, kind: InvalidArgumentKind, problem: impl Into<String>) -> Error {
        Error::argument(self.operation.name, kind, problem.into())
    }

    pub(super) fn size(&self) -> usize {
        self.communicator.size()
    }

    pub(super) fn rank(&self) -> usize {
        self.communicator.rank()
    }

    /// Sets the root. Returns the root in C's type, and whether this rank is the root.
    pub(super) fn root(&mut self, root: usize) -> Result<(i32, bool)> {
        self.ranks[0] = Some(root);
        Ok((self.c_rank("root", root)?, root == self.rank()))
    }

    /// Sets the peer, and returns it in C's type.
    pub(super) fn peer(&mut self, peer: usize) -> Result<i32> {
        self.ranks[0] = Some(peer);
        self.c_rank("peer", peer)
    }

    /// Converts a rank to C's type; an error if it is out of range.
    #[inline]
    pub(super) fn c_rank(&self, what: &str, rank: usize) -> Result<i32> {
        // There are no more ranks than an i32 can count.
        if rank < self.size() { Ok(rank as i32) } else { Err(self.wrong_rank(what, rank)) }
    }

    #[cold]
    fn wrong_rank(&self, what: &str, rank: usize) -> Error {
        let problem = format!("{what} {rank} is not below {}, the communicator's size", self.size());
        self.wrong(InvalidArgumentKind::Rank, problem)
    }

    /// Returns the operator in C's type.
    pub(super) fn operator(&self, operator: RawOperator<'_>) -> Result<sys::ncclRedOp_t> {
        match operator {
            RawOperator::BuiltIn(op) => {
                op.require(self.library())?;
                Ok(op.as_raw())
            }
            RawOperator::Custom(raw, reduced, shared) => {
                self.check_custom(reduced, shared)?;
                Ok(raw)
            }
        }
    }

    #[cold]
    fn check_custom(&self, reduced: DataType, shared: &Shared) -> Result<()> {
        if !ptr::eq(shared, &**self.communicator.shared()) {
            let problem = "the reduction belongs to another communicator";
            return Err(self.wrong(InvalidArgumentKind::Communicator, problem));
        }
        let found = self.send.data_type();
        if reduced != found {
            let problem =
                format!("the elements of the buffer are {found}, and the reduction is of {reduced}");
            return Err(self.wrong(InvalidArgumentKind::DataType, problem));
        }
        Ok(())
    }
}

/// Checks of lengths. `whose` describes the buffer in error messages, or is empty.
impl Call<'_, '_> {
    /// Requires that the send buffer holds `count` elements for each of `ranks`.
    #[inline]
    pub(super) fn send_holds(&self, whose: &str, count: usize, ranks: usize) -> Result<()> {
        self.holds(whose, "send ", self.send.len(), count, ranks)
    }

    /// Requires that the receive buffer holds `count` elements for each of `ranks`.
    #[inline]
    pub(super) fn recv_holds(&self, whose: &str, count: usize, ranks: usize) -> Result<()> {
        self.holds(whose, "receive ", self.recv.len(), count, ranks)
    }

    #[inline]
    fn holds(&self, whose: &str, buffer: &str, length: usize, count: usize, ranks: usize) -> Result<()> {
        match count.checked_mul(ranks) {
            Some(needed) if needed <= length => Ok(()),
            _ => Err(self.too_short(whose, buffer, length, count, ranks)),
        }
    }

    #[cold]
    fn too_short(&self, whose: &str, buffer: &str, length: usize, count: usize, ranks: usize) -> Error {
        let needed = match count.checked_mul(ranks) {
            Some(needed) => needed.to_string(),
            None => "more than usize::MAX".into(),
        };
        let factors = if ranks == 1 { String::new() } else { format!(" ({ranks} ranks x {count})") };
        let problem =
            format!("the {whose}{buffer}buffer holds {length} elements but needs {needed}{factors}");
        self.wrong(InvalidArgumentKind::Length, problem)
    }

    /// Returns this rank's part of the in-place buffer, which has an equal part for each rank.
    pub(super) fn own_part(&self) -> Result<RawSlice> {
        self.is_divisible("", self.recv.len())?;
        let length = self.recv.len() / self.size();
        Ok(self.recv.slice(self.rank() * length, length))
    }

    /// Returns the number of elements of each part of the send buffer, which has an equal part for each rank.
    pub(super) fn send_part(&self) -> Result<usize> {
        self.is_divisible("send ", self.send.len())?;
        Ok(self.send.len() / self.size())
    }

    fn is_divisible(&self, buffer: &str, length: usize) -> Result<()> {
        let size = self.size();
        if length.is_multiple_of(size) {
            return Ok(());
        }
        let problem = format!(
            "the {buffer}buffer's {length} elements are not a multiple of {size}, the communicator's size"
        );
        Err(self.wrong(InvalidArgumentKind::Length, problem))
    }

    /// Returns the sum of the counts. Requires one count for each rank.
    pub(super) fn sum(&self, what: &str, counts: &[usize]) -> Result<usize> {
        let size = self.size();
        if counts.len() != size {
            let problem = format!("{} {what}; expected {size}, one for each rank", counts.len());
            return Err(self.wrong(InvalidArgumentKind::Length, problem));
        }
        counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count)).ok_or_else(|| {
            self.wrong(InvalidArgumentKind::Length, format!("the sum of the {what} is more than usize::MAX"))
        })
    }

    /// Requires that the length of a buffer is this rank's count.
    pub(super) fn has_own_count(&self, buffer: &str, length: usize, counts: &[usize]) -> Result<()> {
        let rank = self.rank();
        let count = counts[rank];
        if length == count {
            return Ok(());
        }
        let problem = format!(
            "the {buffer} buffer holds {length} elements; expected {count}, the count of rank {rank}"
        );
        Err(self.wrong(InvalidArgumentKind::Length, problem))
    }

    /// Returns this rank's part of the in-place buffer, which has a part of `counts[i]` elements for each rank `i`.
    pub(super) fn own_counted_part(&self, whose: &str, counts: &[usize]) -> Result<RawSlice> {
        let total = self.sum("counts", counts)?;
        self.holds(whose, "", self.recv.len(), total, 1)?;
        Ok(self.recv.slice(counts[..self.rank()].iter().sum(), counts[self.rank()]))
    }

    /// Requires that this rank receives as many elements from itself as it sends to itself.
    pub(super) fn own_exchange(&self, sent: usize, received: usize, what: &str) -> Result<()> {
        if sent == received {
            return Ok(());
        }
        let problem = format!("this rank sends {sent} elements to itself; {what} {received}");
        Err(self.wrong(InvalidArgumentKind::Length, problem))
    }
}

/// Checks that all operations share, and that rarely fail. In `check_device`, `place` is 0 for the stream, 1 for the send buffer
/// and 2 for the receive buffer; in `wrong_memory`, 0 and 1 for the buffers.
impl Call<'_, '_> {
    #[cold]
    #[inline(never)]
    pub(super) fn check_device(&self, place: usize, found: i32) -> Result<()> {
        let [sent, received] = self.operation.buffer_names;
        let name = ["the stream", sent, received][place];
        self.communicator.check_device(self.operation.name, Some(found), name)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn wrong_memory(&self, place: usize, found: MemorySpace) -> Error {
        self.communicator.wrong_memory(self.operation.name, self.operation.buffer_names[place], found)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn wrong_types(&self) -> Error {
        let [sent, received] = [self.send, self.recv].map(|buffer| buffer.data_type());
        let problem = format!("the elements of the send buffer are {sent}, of the receive buffer {received}");
        self.wrong(InvalidArgumentKind::DataType, problem)
    }

    /// Rejects CUDA's per-thread default stream: for a nonblocking communicator, NCCL may use the handle on another thread.
    #[cold]
    pub(super) fn check_per_thread_stream(&self) -> Result<()> {
        // The handle has no meaning on host memory.
        if self.communicator.memory_space() == MemorySpace::Host {
            return Ok(());
        }
        let problem = "the stream's handle is 2, CUDA's default stream of each thread; expected a stream that is the same on all threads";
        Err(self.wrong(InvalidArgumentKind::Address, problem))
    }

    #[cold]
    pub(super) fn check_config(&self, config: &CollectiveConfig) -> Result<()> {
        if config.is_default() || self.operation.function_with_config.is_some() {
            return Ok(());
        }
        Err(Error::usage(self.operation.name, "takes no options; NCCL has them for collectives only"))
    }
}
