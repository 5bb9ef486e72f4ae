//! Suspending a communicator: releasing memory that can be allocated again.
//!
//! That is a rank's eager and staging buffers. Messages that were sent and not received yet stay.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::coll::call_header::{CallHeader, ControlCall};
use crate::coll::control_allgather::control_allgather;
use crate::coll::operation::Operation;
use crate::diag::error::Result;
use crate::shm::call_context::CallContext;

/// The operation of `ncclCommSuspend`: releases this rank's memory once no rank uses it any more.
#[derive(Debug)]
pub(crate) struct Suspend {
    pub(crate) suspended: Arc<AtomicBool>,
}

/// The operation of `ncclCommResume`: waits until all ranks resume. The memory returns when it is used.
#[derive(Debug)]
pub(crate) struct Resume {
    pub(crate) suspended: Arc<AtomicBool>,
}

impl Operation for Suspend {
    fn header(&self) -> CallHeader {
        CallHeader::Control { call: ControlCall::Suspend, length: 0 }
    }

    async fn run(&self, CallContext { state, rank, .. }: CallContext<'_>) -> Result {
        control_allgather(state, rank, ControlCall::Suspend, &[]).await?;
        state.release_buffers(rank);
        self.suspended.store(true, Relaxed);
        Ok(())
    }
}

impl Operation for Resume {
    fn header(&self) -> CallHeader {
        CallHeader::Control { call: ControlCall::Resume, length: 0 }
    }

    async fn run(&self, CallContext { state, rank, .. }: CallContext<'_>) -> Result {
        control_allgather(state, rank, ControlCall::Resume, &[]).await?;
        self.suspended.store(false, Relaxed);
        Ok(())
    }
}
