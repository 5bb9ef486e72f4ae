//! Splitting a communicator: every rank contributes its color and its key, and the ranks of a color form a new one.
//!
//! Each also proposes an id; that of the first rank in the new order is used.

use std::ffi::c_int;

use libnccl::sys::NCCL_SPLIT_NOCOLOR;

use crate::bootstrap::unique_id::UniqueId;
use crate::coll::call_header::{CallHeader, ControlCall};
use crate::coll::control_allgather::control_allgather;
use crate::coll::wait_report::WaitReport;
use crate::comm::communicator::{Communicator, RankInfo};
use crate::comm::join::{Parent, join, join_state};
use crate::diag::error::{Error, Result};
use crate::shm::call_context::CallContext;
use crate::shm::liveness::AbortReason;
use crate::shm::peer_access::PeerAccess;
use crate::shm::shared_state::SharedState;
use crate::sync::executor;

/// Bytes that a rank contributes: its color, its key, and an id.
const PROPOSAL: usize = 8 + UniqueId::SECRET_LENGTH;

/// Returns this rank's membership in the new communicator, or `None` if it has no color.
pub(crate) fn split(
    communicator: &Communicator,
    parent: &Communicator,
    color: c_int,
    key: c_int,
) -> Result<Option<RankInfo>> {
    let RankInfo { state, rank, id } = parent.rank_info()?;
    let mut own = [0; PROPOSAL];
    own[..4].copy_from_slice(&color.to_ne_bytes());
    own[4..8].copy_from_slice(&key.to_ne_bytes());
    own[8..].copy_from_slice(&UniqueId::generate()?.secret_bytes());
    let is_healthy = parent.stopped().is_none();
    let proposals = if is_healthy {
        allgather(communicator, parent, state, *rank, ControlCall::Split, &own)?
    } else {
        // Its ranks are out of sync: they join anew, only for this exchange.
        let all: Vec<usize> = (0..state.ranks()).collect();
        let id = id.derive("ncclCommSplit", parent.children().next_number(&all), &all);
        let old = Parent { communicator: parent, members: &all, must_be_healthy: false };
        let state = join_state(communicator, Some(old), &id, all.len(), *rank)?;
        allgather(communicator, parent, &state, *rank, ControlCall::Split, &own)?
    };
    if color == NCCL_SPLIT_NOCOLOR {
        return Ok(None);
    }
    let number =
        |bytes: &[u8], at: usize| bytes[at..].first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes));
    let of_color = |rank: &usize| number(&proposals[*rank], 0) == Some(color);
    let mut members: Vec<usize> = (0..proposals.len()).filter(of_color).collect();
    members.sort_by_key(|rank| number(&proposals[*rank], 4));
    let new_rank = members
        .iter()
        .position(|member| member == rank)
        .ok_or_else(|| Error::internal("a rank is missing from its own all-gather"))?;
    let id = id.with_secret(&proposals[members[0]][8..]);
    let old = Parent { communicator: parent, members: &members, must_be_healthy: is_healthy };
    join(communicator, Some(old), id, members.len(), new_rank).map(Some)
}

/// Gathers control data of all ranks of `state`, while `communicator` is made of `parent`.
pub(crate) fn allgather(
    communicator: &Communicator,
    parent: &Communicator,
    state: &SharedState,
    rank: usize,
    call: ControlCall,
    data: &[u8],
) -> Result<Vec<Vec<u8>>> {
    let mut all = vec![];
    let header = CallHeader::Control { call, length: data.len() as u64 };
    let number = state.begin_call(rank, header.encode());
    let (mut report, peers) = (WaitReport::default(), PeerAccess::default());
    let operation = async {
        all = control_allgather(state, rank, call, data).await?;
        Ok(())
    };
    executor::run_one(operation, state.ranks(), |waited| {
        state.check_liveness();
        report.check_call(waited, number, header, CallContext { state, rank, peers: &peers });
        if communicator.is_cancelled() || parent.is_cancelled() {
            state.set_abort(rank, AbortReason::Aborted);
        }
    })?;
    state.end_call(rank);
    Ok(all)
}
