//! Joining the other ranks of a new communicator, for each way of creating one.

use std::sync::Arc;

use libnccl::sys::ncclResult_t;

use crate::bootstrap::join::{JoinContext, ParentComm};
use crate::bootstrap::rendezvous;
use crate::bootstrap::unique_id::UniqueId;
use crate::comm::communicator::{Communicator, RankInfo};
use crate::diag::error::{Error, Result};
use crate::shm::shared_state::SharedState;

/// The communicator from which a new one is created.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parent<'a> {
    pub(crate) communicator: &'a Communicator,
    /// The ranks of the parent that become the first ranks of the new communicator.
    pub(crate) members: &'a [usize],
    /// Set if an abort of the parent fails the join.
    pub(crate) must_be_healthy: bool,
}

/// Joins `ranks` ranks by `id`, as `rank`.
pub(crate) fn join(
    communicator: &Communicator,
    parent: Option<Parent<'_>>,
    mut id: UniqueId,
    ranks: usize,
    rank: usize,
) -> Result<RankInfo> {
    let state = join_state(communicator, parent, &id, ranks, rank)?;
    // Its ranks exchange their devices before it is complete.
    state.set_name(communicator.name(&id));
    // With `NCCL_COMM_ID`, communicators share one id. Ids derived from it must differ.
    id.secret = state.nonce();
    Ok(RankInfo { state, rank, id })
}

/// Joins the other ranks and returns the state that they share.
pub(crate) fn join_state(
    communicator: &Communicator,
    parent: Option<Parent<'_>>,
    id: &UniqueId,
    ranks: usize,
    rank: usize,
) -> Result<Arc<SharedState>> {
    let name = &communicator.name(id);
    let Some(parent) = parent else {
        let context = JoinContext {
            name,
            check_cancelled: &|| check_cancelled(communicator),
            waits_for: &|text| communicator.set_join_wait(text),
            parent: None,
        };
        return rendezvous::join(id, ranks, rank, &context)
            .inspect(|_| communicator.set_join_wait(String::new()));
    };
    let old = parent.communicator;
    let stopped = old.stopped();
    let RankInfo { state, rank: old_rank, .. } = old.rank_info()?;
    let context = JoinContext {
        name,
        check_cancelled: &|| {
            check_cancelled(communicator)?;
            check_cancelled(old)?;
            if old.stopped() != stopped { Err(cancelled("revoked")) } else { Ok(()) }
        },
        // The caller receives the new communicator's handle only when it is complete, and queries the parent until then.
        waits_for: &|text| old.set_join_wait(text),
        parent: Some(ParentComm { state, members: parent.members, must_be_healthy: parent.must_be_healthy }),
    };
    let joined = rendezvous::join(id, ranks, rank, &context);
    old.set_join_wait(String::new());
    joined.inspect_err(|error| {
        // The other ranks detect failures of another rank, but not this rank's own errors. This rank therefore departs from the parent,
        // with which it is out of sync as well.
        if error.code == ncclResult_t::ncclSystemError || communicator.is_cancelled() {
            old.fail(error);
            state.depart(*old_rank);
        }
    })
}

fn check_cancelled(communicator: &Communicator) -> Result {
    if communicator.is_cancelled() { Err(cancelled("aborted or destroyed")) } else { Ok(()) }
}

fn cancelled(what: &str) -> Error {
    Error::remote(format!("the communicator was {what} while its ranks were joining"))
}
