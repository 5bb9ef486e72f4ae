//! A barrier, which NCCL does not have: not even an operation on no elements is one, as NCCL drops those.

use super::collectives::{self, Operator};
use super::{Communicator, Operations};
use crate::{Group, NcclBuffer, ReduceOp, Result, StreamRef};

impl<'scope> Operations<'scope> {
    /// As [`Communicator::barrier`]. Since NCCL 2.19.3.
    ///
    /// # Errors
    /// As for [`Communicator::barrier`].
    pub fn barrier(self, stream: impl Into<StreamRef<'scope>>) -> Result<()> {
        let stream = stream.into();
        let buffer = self.communicator.barrier_buffer()?;
        self.issue("barrier", || {
            let operator = Operator(ReduceOp::Max.as_raw());
            collectives::all_reduce_in_place(self, buffer.view_mut(), operator, stream)
        })
    }
}

impl Communicator {
    /// Waits for all ranks to come here: an all-reduce of one element. Since NCCL 2.19.3.
    ///
    /// On a GPU it is the *stream* that waits: what is enqueued on it afterwards runs when all ranks' streams have
    /// come to their barrier, and synchronizing with the stream makes the host wait too. On the CPU implementation
    /// the ranks have come when this returns, or at the end of the group.
    ///
    /// The element's memory is the communicator's from the first barrier on. Its barriers are one after the other,
    /// as are all of its operations.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::StreamRef;
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let comms = nccl.init_all(&[0, 1])?;
    /// std::thread::scope(|scope| {
    ///     for comm in comms {
    ///         scope.spawn(move || comm.barrier(StreamRef::DEFAULT).unwrap());
    ///     }
    /// });
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [every operation](Operations#errors), and as for [`Nccl::alloc`](crate::Nccl::alloc) the first time.
    pub fn barrier<'scope>(&'scope self, stream: impl Into<StreamRef<'scope>>) -> Result<()> {
        self.operations().barrier(stream)
    }

    fn barrier_buffer(&self) -> Result<&NcclBuffer<u8>> {
        if let Some(buffer) = self.barrier.get() {
            return Ok(buffer);
        }
        let buffer = NcclBuffer::new(self.library(), 1)?;
        Ok(self.barrier.get_or_init(|| buffer))
    }
}

impl<'scope> Group<'scope, '_> {
    /// As [`Communicator::barrier`]; for one thread that has several ranks. It is no barrier between the operations
    /// of the group, which have no order. Since NCCL 2.19.3.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::StreamRef;
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let comms = nccl.init_all(&[0, 1])?;
    /// nccl.group(|g| comms.iter().try_for_each(|comm| g.barrier(comm, StreamRef::DEFAULT)))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Communicator::barrier`].
    pub fn barrier(
        &'scope self,
        communicator: &'scope Communicator,
        stream: impl Into<StreamRef<'scope>>,
    ) -> Result<()> {
        self.on(communicator).barrier(stream)
    }
}
