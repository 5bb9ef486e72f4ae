//! A job on the thread of a nonblocking communicator: its operations in a group.

use std::sync::Arc;

use crate::comm::communicator::Communicator;
use crate::comm::queued_operation::{self, QueuedOperation};
use crate::diag::error::Result;
use crate::diag::last_error;

/// Runs the operations of each communicator as its next job.
pub(super) fn enqueue(mut operations: Vec<QueuedOperation>, communicators: &[Arc<Communicator>]) -> Result {
    // The threads first: without one, nothing has begun.
    communicators.iter().try_for_each(|communicator| communicator.jobs().start_thread())?;
    for communicator in communicators {
        let is_own = |operation: &QueuedOperation| Arc::ptr_eq(&operation.communicator, communicator);
        let (own, others): (Vec<_>, _) = operations.into_iter().partition(is_own);
        operations = others;
        let is_exclusive = own.iter().any(|operation| operation.is_exclusive);
        let jobs = Arc::clone(communicator.jobs());
        let job = jobs.begin(is_exclusive);
        let communicator = Arc::clone(communicator);
        jobs.push(move || {
            communicator.synchronize();
            let result = communicator.check_usable().and_then(|()| {
                drop(communicator);
                queued_operation::run(&own).inspect_err(|error| last_error::set(&error.text))
            });
            drop(own);
            job.end(result);
        })?;
    }
    Ok(())
}
