//! Growing a communicator: its ranks learn from the one that made it the id by which the newcomers come, and
//! meet with them.

use std::sync::Arc;

use crate::bootstrap;
use crate::communicator::{Communicator, Membership};
use crate::exchange::Purpose;
use crate::failure::{Failure, Result};
use crate::split::tell;
use crate::unique_id::UniqueId;
use crate::watch::Watch;

/// What a member says: the new number of ranks, and the id if it has it, which is never all zeros.
const SAID: usize = 8 + UniqueId::PARTS;

/// A member's place in a communicator of `ranks`. One of them passes the `token`.
pub(crate) fn grow(
    communicator: &Communicator,
    parent: &Communicator,
    ranks: usize,
    token: Option<UniqueId>,
) -> Result<Option<Membership>> {
    let membership = parent.place()?;
    let Membership { world, rank, id } = membership;
    let mut own = [0; SAID];
    own[..8].copy_from_slice(&(ranks as u64).to_ne_bytes());
    if let Some(token) = &token {
        own[8..].copy_from_slice(&token.parts());
    }
    let said = tell(communicator, parent, world, *rank, Purpose::Grow, &own)
        .inspect_err(|failure| parent.note(failure))?;
    let number = |text: &[u8]| text.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    if let Some(other) = said.iter().position(|other| number(other) != number(&said[0])) {
        return Err(Failure::argument(format!(
            "the ranks disagree on their number in ncclCommGrow: rank {other} says {}, rank 0 says {}",
            number(&said[other]),
            number(&said[0])
        )));
    }
    let with_token: Vec<usize> =
        (0..said.len()).filter(|rank| said[*rank][8..].iter().any(|byte| *byte != 0)).collect();
    let [holder] = with_token[..] else {
        return Err(Failure::usage(format!(
            "one rank has to pass the id of ncclCommGetUniqueId to ncclCommGrow, and these did: {with_token:?}"
        )));
    };
    let id = id.with_parts(&said[holder][8..]);
    let members: Vec<usize> = (0..world.ranks()).collect();
    let watch = Watch::with_kin(communicator, parent, membership, &members, true);
    let world = bootstrap::meet(&id, ranks, *rank, &watch)?;
    if token.is_some() {
        *parent.token() = None;
    }
    Ok(Some(Membership { world: Arc::new(world), rank: *rank, id }))
}
