//! A barrier, which NCCL lacks: not even an operation on zero elements synchronizes, as NCCL drops it.

use super::collectives;
use super::grouping::Grouping;
use super::operations::Operations;
use crate::{
    BufferElement, DeviceSliceMut, Error, InvalidArgumentKind, ReduceOp, Result, ResultCode, StreamRef,
};

#[inline(always)]
pub(super) fn barrier<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    buffer: DeviceSliceMut<'_, T>,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    if buffer.is_empty() {
        return Err(Error::argument(
            name,
            InvalidArgumentKind::Length,
            "the buffer is empty; expected one element",
        ));
    }
    collectives::all_reduce_in_place(name, operations, buffer.slice_mut(0, 1), ReduceOp::Max.into(), stream)
}
