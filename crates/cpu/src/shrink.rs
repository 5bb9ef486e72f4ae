//! Shrinking a communicator: the ranks that stay meet by an id that they derive from the old one, for those that
//! go may be dead and say nothing.

use std::ffi::c_int;
use std::sync::Arc;

use crate::bootstrap;
use crate::communicator::{Communicator, Membership};
use crate::failure::{Failure, Result};
use crate::unique_id::UniqueId;
use crate::watch::Watch;

/// Checks the sorted list of ranks that go, and answers who stays.
pub(crate) fn survivors(excluded: &[c_int], ranks: usize, rank: usize) -> Result<Vec<usize>> {
    let invalid = |text: String| Err(Failure::argument(format!("invalid list of excluded ranks: {text}")));
    if excluded.is_empty() {
        return invalid("it is empty".into());
    }
    if let Some(other) =
        excluded.iter().find(|other| usize::try_from(**other).is_ok_and(|o| o < ranks).eq(&false))
    {
        return invalid(format!("rank {other} is not in 0..{ranks}"));
    }
    if let Some(pair) = excluded.windows(2).find(|pair| pair[0] == pair[1]) {
        return invalid(format!("rank {} is in it twice", pair[0]));
    }
    let stays = |rank: &usize| !excluded.iter().any(|other| *other as usize == *rank);
    if !stays(&rank) {
        return invalid(format!("rank {rank} calls this and is in it"));
    }
    Ok((0..ranks).filter(stays).collect())
}

/// This rank's place among the `survivors`.
pub(crate) fn shrink(
    communicator: &Communicator,
    parent: &Communicator,
    survivors: &[usize],
) -> Result<Option<Membership>> {
    let membership = parent.place()?;
    let id: UniqueId = membership.id.derive("ncclCommShrink", parent.next_descendant(survivors), survivors);
    let rank = survivors
        .iter()
        .position(|survivor| *survivor == membership.rank)
        .ok_or_else(|| Failure::internal("a rank that goes shrinks the communicator"))?;
    let watch = Watch::with_kin(communicator, parent, membership, survivors, false);
    let world = bootstrap::meet(&id, survivors.len(), rank, &watch)?;
    Ok(Some(Membership { world: Arc::new(world), rank, id }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_checked() {
        assert_eq!(survivors(&[1, 3], 5, 2).unwrap(), [0, 2, 4]);
        for (excluded, text) in [
            (&[][..], "it is empty"),
            (&[-1, 0], "rank -1 is not in 0..3"),
            (&[0, 3], "rank 3 is not in 0..3"),
            (&[0, 0], "rank 0 is in it twice"),
            (&[0, 2], "rank 2 calls this and is in it"),
            (&[0, 1, 2], "rank 2 calls this and is in it"),
        ] {
            let failure = survivors(excluded, 3, 2).unwrap_err();
            assert!(failure.text.ends_with(text), "{}", failure.text);
        }
    }
}
