//! The owners of a communicator's objects, such as windows, which they end.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::communicator::Communicator;
use super::inside::Inside;
use super::shared::Shared;
use super::state::Purpose;
use crate::{Error, Result};

/// A communicator as an object has it: borrowed, or shared with it, where a struct holds both.
pub(crate) trait Owner {
    fn shared(&self) -> &Arc<Shared>;

    /// Returns `true` if a group with calls for the object has failed, or has not ended.
    fn is_incomplete(&self) -> bool;

    /// Enters NCCL to destroy the object, if the communicator is live; an owned object, if the communicator is in no other
    /// call. Returns `None` in a group of this thread, which has entered before.
    fn enter_for_object(&self, call: &'static str) -> Result<Option<Inside<&Arc<Shared>>>>;
}

impl Owner for &Communicator {
    fn shared(&self) -> &Arc<Shared> {
        Communicator::shared(self)
    }

    fn is_incomplete(&self) -> bool {
        self.is_in_group() || Communicator::shared(self).state.is_failed()
    }

    fn enter_for_object(&self, call: &'static str) -> Result<Option<Inside<&Arc<Shared>>>> {
        if self.is_in_group() {
            return Ok(None);
        }
        Inside::new(Communicator::shared(self), call, Purpose::Query).map(Some)
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

    fn enter_for_object(&self, call: &'static str) -> Result<Option<Inside<&Arc<Shared>>>> {
        let inside = Inside::for_object(self, call)?;
        if self.is_finalized.load(Relaxed) {
            let problem = "the communicator is finalized; it can only be aborted or destroyed";
            return Err(Error::usage(call, problem));
        }
        Ok(Some(inside))
    }
}
