//! A barrier, which NCCL lacks: not even an operation on zero elements synchronizes, as NCCL drops it.

use super::collectives;
use super::handle::Communicator;
use super::operations::Operations;
use crate::{NcclBuffer, ReduceOp, Result, ResultCode, StreamRef};

pub(super) fn barrier(
    name: &'static str,
    operations: Operations<'_>,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let buffer = operations.communicator.barrier_buffer()?;
    collectives::all_reduce_in_place(name, operations, buffer.view_mut(), ReduceOp::Max.into(), stream)
}

impl Communicator {
    fn barrier_buffer(&self) -> Result<&NcclBuffer<u8>> {
        if let Some(buffer) = self.barrier.get() {
            return Ok(buffer);
        }
        let buffer = NcclBuffer::new(self.library(), 1)?;
        Ok(self.barrier.get_or_init(|| buffer))
    }
}
