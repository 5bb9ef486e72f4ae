//! A barrier, which NCCL lacks: not even an operation on zero elements synchronizes, as NCCL drops it.

use super::collectives::{self, Operator};
use super::handle::Communicator;
use super::operations::Operations;
use crate::{Group, NcclBuffer, ReduceOp, Result, StreamRef};

impl<'scope> Operations<'scope> {
    /// Waits for all ranks; see [`Communicator::barrier`]. Since NCCL 2.19.3.
    ///
    /// # Errors
    /// The errors of [`Communicator::barrier`].
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
    /// Waits until all ranks have reached the barrier, by an all-reduce of one element. Since NCCL 2.19.3.
    ///
    /// On a GPU the *stream* waits: work that is enqueued on it afterwards runs when the streams of all ranks have
    /// reached their barrier. Synchronize with the stream to make the host wait too. On the CPU implementation, all
    /// ranks have reached the barrier when this returns, or at the end of the group.
    ///
    /// The first barrier allocates the element, which the communicator keeps. Barriers of one communicator run one
    /// after the other, as do all its operations.
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
    /// The errors of [every operation](Operations#errors); the first time also those of
    /// [`Nccl::alloc`](crate::Nccl::alloc).
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
    /// Waits for all ranks as [`Communicator::barrier`] does, for one thread that has several ranks. It does not order
    /// the other operations of the group. Since NCCL 2.19.3.
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
    /// The errors of [`Communicator::barrier`].
    pub fn barrier(
        &'scope self,
        communicator: &'scope Communicator,
        stream: impl Into<StreamRef<'scope>>,
    ) -> Result<()> {
        self.on(communicator).barrier(stream)
    }
}
