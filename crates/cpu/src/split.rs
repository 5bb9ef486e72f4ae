//! Splitting a communicator: every rank says its color and its key, and those of a color make a new one.
//!
//! Each also proposes an id; the one that is first in the new order has its way.

use std::ffi::c_int;
use std::sync::Arc;

use libnccl::sys::NCCL_SPLIT_NOCOLOR;

use crate::bootstrap;
use crate::communicator::{Communicator, Membership};
use crate::exchange::{Purpose, exchange};
use crate::executor;
use crate::failure::{Failure, Result};
use crate::unique_id::UniqueId;
use crate::watch::Watch;
use crate::world::{Alarm, World};

/// What a rank says: its color, its key, and an id.
const SAID: usize = 8 + UniqueId::PARTS;

/// This rank's place in the new communicator, if it has a color.
pub(crate) fn split(
    communicator: &Communicator,
    parent: &Communicator,
    color: c_int,
    key: c_int,
) -> Result<Option<Membership>> {
    let membership = parent.place()?;
    let Membership { world, rank, id } = membership;
    let mut own = [0; SAID];
    own[..4].copy_from_slice(&color.to_ne_bytes());
    own[4..8].copy_from_slice(&key.to_ne_bytes());
    own[8..].copy_from_slice(&UniqueId::generate()?.parts());
    let healthy = parent.stopped().is_none();
    let said = if healthy {
        tell(communicator, parent, world, *rank, Purpose::Split, &own)?
    } else {
        // Its ranks have lost their step: they meet anew, only to tell each other this.
        let all: Vec<usize> = (0..world.ranks()).collect();
        let id = id.derive("ncclCommSplit", parent.next_descendant(&all), &all);
        let watch = Watch::with_kin(communicator, parent, membership, &all, false);
        let world = bootstrap::meet(&id, world.ranks(), *rank, &watch)?;
        tell(communicator, parent, &world, *rank, Purpose::Split, &own)?
    };
    if color == NCCL_SPLIT_NOCOLOR {
        return Ok(None);
    }
    let number = |said: &[u8], at: usize| said[at..].first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes));
    let mut members: Vec<(Option<c_int>, usize)> = said
        .iter()
        .enumerate()
        .filter(|(_, said)| number(said, 0) == Some(color))
        .map(|(rank, said)| (number(said, 4), rank))
        .collect();
    members.sort_unstable();
    let members: Vec<usize> = members.into_iter().map(|(_, rank)| rank).collect();
    let new_rank = members
        .iter()
        .position(|member| member == rank)
        .ok_or_else(|| Failure::internal("a rank has not heard itself"))?;
    let id = id.with_parts(&said[members[0]][8..]);
    let watch = Watch::with_kin(communicator, parent, membership, &members, healthy);
    let world = bootstrap::meet(&id, members.len(), new_rank, &watch)?;
    Ok(Some(Membership { world: Arc::new(world), rank: new_rank, id }))
}

/// What all ranks of `world` say, on the way from `parent` to `communicator`.
pub(crate) fn tell(
    communicator: &Communicator,
    parent: &Communicator,
    world: &World,
    rank: usize,
    purpose: Purpose,
    text: &[u8],
) -> Result<Vec<Vec<u8>>> {
    let mut said = vec![];
    let telling = async {
        said = exchange(world, rank, purpose, text).await?;
        Ok(())
    };
    executor::run_one(telling, world.ranks(), || {
        world.patrol();
        if communicator.is_cancelled() || parent.is_cancelled() {
            world.alarm(rank, Alarm::Aborted);
        }
    })?;
    Ok(said)
}
