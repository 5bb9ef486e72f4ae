//! Operations as values: built from a call's arguments, run later in a group or at once.

use crate::coll::call_header::CallHeader;
use crate::coll::on_stream::OnStream;
use crate::diag::error::Result;
use crate::shm::buffer::{BufferRange, ReadBuf};
use crate::shm::call_context::CallContext;

/// An operation of one rank.
pub(crate) trait Operation: Send + Sync + 'static {
    /// Returns the call, as other ranks and the log describe it.
    fn header(&self) -> CallHeader;

    /// Returns the addresses of the send and the receive buffer, before they are resolved; 0 for one that the caller does
    /// not pass.
    fn buffers(&self) -> [usize; 2] {
        [0, 0]
    }

    /// Returns the send and the receive buffer, once they are resolved; an empty one if the caller does not pass it.
    fn ranges(&self) -> [BufferRange; 2] {
        [BufferRange::default(); 2]
    }

    /// Notes that a collective on the communicator came before it in its group.
    fn set_grouped(&mut self) {}

    /// Resolves the buffers, before it is enqueued on a stream of CUDA: what the caller passed are addresses that this
    /// process may be unable to access. Nothing else may access them before.
    fn resolve(&mut self, _: &mut OnStream) -> Result {
        Ok(())
    }

    /// Returns the same operation with another send buffer: that which `replace` returns for the present one and the size of
    /// its elements. Returns `None` if `rank` sends nothing.
    fn sending(&self, _rank: usize, _replace: impl FnOnce(ReadBuf, usize) -> ReadBuf) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }

    /// Runs the operation in the context of the rank that called it. One that is captured in a graph runs at each launch.
    async fn run(&self, context: CallContext<'_>) -> Result;
}
