//! A worker, in either form.

use cudarc::driver::{CudaContext, CudaStream};

use crate::blocks::Block;
use crate::owner::Owned;
use crate::result::Result;

/// An id, as it is sent.
pub(crate) type Id = [u8; 128];

/// The communicator of a worker.
pub(crate) trait Worker: Send + Sized {
    fn id() -> Result<Id>;
    fn join(context: &CudaContext, rank: usize, size: usize, id: Id) -> Result<Self>;
    /// Overwrites the blocks by those of the root.
    fn broadcast(&self, blocks: &mut [Block], root: usize, stream: &CudaStream) -> Result;
    /// Overwrites the blocks by those of the root, with the communicator of another library. Returns its rank and size.
    fn broadcast_with(
        owned: &Owned,
        blocks: &mut [Block],
        root: usize,
        stream: &CudaStream,
    ) -> Result<(usize, usize)>;
    fn end(self) -> Result;
}
