//! One rank's side of a collective.

use crate::shm::buffer::{ReadBuf, WriteBuf};
use crate::shm::call_context::CallContext;

/// The context and the buffers of the rank that calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct LocalCall<'a> {
    pub(super) context: CallContext<'a>,
    pub(super) send: ReadBuf,
    pub(super) recv: WriteBuf,
}
