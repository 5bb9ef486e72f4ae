//! Growing a communicator: its ranks learn the id by which the new ranks join from the rank that created it, and join
//! them.

use crate::bootstrap::unique_id::UniqueId;
use crate::coll::call_header::ControlCall;
use crate::comm::communicator::{Communicator, RankInfo};
use crate::comm::join::{Parent, join};
use crate::comm::split::allgather;
use crate::diag::error::{Error, Result};

/// Bytes that an existing rank contributes: the new number of ranks, and the id if it has it, which is never all zeros.
const PROPOSAL: usize = 8 + UniqueId::SECRET_LENGTH;

/// Returns an existing rank's membership in a communicator of `ranks` ranks. One of them passes the id.
pub(crate) fn grow(
    communicator: &Communicator,
    parent: &Communicator,
    ranks: usize,
    grow_id: Option<UniqueId>,
) -> Result<Option<RankInfo>> {
    let RankInfo { state, rank, id } = parent.rank_info()?;
    let mut own = [0; PROPOSAL];
    own[..8].copy_from_slice(&(ranks as u64).to_ne_bytes());
    if let Some(grow_id) = &grow_id {
        own[8..].copy_from_slice(&grow_id.secret_bytes());
    }
    let proposals = allgather(communicator, parent, state, *rank, ControlCall::Grow, &own)
        .inspect_err(|error| parent.record_error(error))?;
    let number = |proposal: &[u8]| proposal.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    if let Some(other) = proposals.iter().position(|other| number(other) != number(&proposals[0])) {
        return Err(Error::argument(format!(
            "the ranks passed different nRanks to ncclCommGrow: rank {other} passed {}, rank 0 passed {}",
            number(&proposals[other]),
            number(&proposals[0])
        )));
    }
    let with_id: Vec<usize> =
        (0..proposals.len()).filter(|rank| proposals[*rank][8..].iter().any(|byte| *byte != 0)).collect();
    let [holder] = with_id[..] else {
        return Err(Error::usage(format!(
            "one rank has to pass the id of ncclCommGetUniqueId to ncclCommGrow, and these did: {with_id:?}"
        )));
    };
    let id = id.with_secret(&proposals[holder][8..]);
    let members: Vec<usize> = (0..state.ranks()).collect();
    let old = Parent { communicator: parent, members: &members, must_be_healthy: true };
    let joined = join(communicator, Some(old), id, ranks, *rank)?;
    if grow_id.is_some() {
        *parent.children().grow_id() = None;
    }
    Ok(Some(joined))
}
