//! Shrinking a communicator: the ranks that stay join by an id that they derive from the old one's, as excluded ranks
//! may be dead and cannot take part.

use std::ffi::c_int;

use crate::comm::communicator::{Communicator, RankInfo};
use crate::comm::join::{Parent, join};
use crate::diag::error::{Error, Result};

/// Checks the sorted list of excluded ranks, and returns the ranks that stay.
pub(crate) fn survivors(excluded: &[c_int], ranks: usize, rank: usize) -> Result<Vec<usize>> {
    let invalid = |text: String| Err(Error::argument(format!("invalid list of excluded ranks: {text}")));
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

/// Returns this rank's membership in the communicator of the `survivors`.
pub(crate) fn shrink(
    communicator: &Communicator,
    parent: &Communicator,
    survivors: &[usize],
) -> Result<Option<RankInfo>> {
    let RankInfo { rank, id, .. } = parent.rank_info()?;
    let id = id.derive("ncclCommShrink", parent.children().next_number(survivors), survivors);
    let new_rank = survivors
        .iter()
        .position(|survivor| survivor == rank)
        .ok_or_else(|| Error::internal("an excluded rank called ncclCommShrink"))?;
    let old = Parent { communicator: parent, members: survivors, must_be_healthy: false };
    join(communicator, Some(old), id, survivors.len(), new_rank).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_list_of_excluded_ranks_is_refused() {
        assert_eq!(survivors(&[1, 3], 5, 2).unwrap(), [0, 2, 4]);
        for (excluded, text) in [
            (&[][..], "it is empty"),
            (&[-1, 0], "rank -1 is not in 0..3"),
            (&[0, 3], "rank 3 is not in 0..3"),
            (&[0, 0], "rank 0 is in it twice"),
            (&[0, 2], "rank 2 calls this and is in it"),
            (&[0, 1, 2], "rank 2 calls this and is in it"),
        ] {
            let error = survivors(excluded, 3, 2).unwrap_err();
            assert!(error.text.ends_with(text), "{}", error.text);
        }
    }
}
