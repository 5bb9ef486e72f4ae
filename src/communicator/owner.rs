//! The owners of a communicator's objects, such as windows, which they end.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::communicator::Communicator;
use super::inside::Inside;
use super::shared::Shared;
use crate::{Error, Result, ResultCode};

/// A communicator as an object has it: borrowed, or shared with it, where a struct holds both.
pub(crate) trait Owner {
    fn shared(&self) -> &Arc<Shared>;

    /// Returns `true` if a group with calls for the object has failed, or has not ended.
    fn is_incomplete(&self) -> bool;

    /// Runs the call of NCCL that ends the object, if the communicator is live; shared, if it is in no other call.
    fn run_end(&self, call: &'static str, end: impl FnOnce() -> Result<ResultCode>) -> Result<ResultCode>;
}

impl Owner for &Communicator {
    fn shared(&self) -> &Arc<Shared> {
        Communicator::shared(self)
    }

    fn is_incomplete(&self) -> bool {
        self.is_in_group() || Communicator::shared(self).state.is_failed()
    }

    fn run_end(&self, call: &'static str, end: impl FnOnce() -> Result<ResultCode>) -> Result<ResultCode> {
        if self.is_in_group() { end() } else { self.query(call, end) }
    }
}

impl Owner for Arc<Shared> {
    fn shared(&self) -> &Arc<Shared> {
        self
    }

    fn is_incomplete(&self) -> bool {
        // It was complete when it was shared.
        false
    }

    fn run_end(&self, call: &'static str, end: impl FnOnce() -> Result<ResultCode>) -> Result<ResultCode> {
        let _inside = Inside::for_object(self, call)?;
        if self.is_finalized.load(Relaxed) {
            let problem = "the communicator is finalized; it can only be aborted or destroyed";
            return Err(Error::usage(call, problem));
        }
        end()
    }
}
