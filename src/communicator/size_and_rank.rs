//! A size and a rank, as the creation of communicators gets them.

use crate::{Error, InvalidArgumentKind, Result};

/// A size and a rank below it, in C's types.
pub(super) struct SizeAndRank {
    pub(super) size: i32,
    pub(super) rank: i32,
}

impl SizeAndRank {
    pub(crate) fn new(call: &'static str, size: usize, rank: usize) -> Result<Self> {
        let (Ok(c_size), Ok(c_rank)) = (i32::try_from(size), i32::try_from(rank)) else {
            let problem = format!("size {size} or rank {rank} is beyond {}", i32::MAX);
            return Err(Error::argument(call, InvalidArgumentKind::Rank, problem));
        };
        if rank >= size {
            let problem = format!("rank {rank} is not below the size {size}");
            return Err(Error::argument(call, InvalidArgumentKind::Rank, problem));
        }
        Ok(Self { size: c_size, rank: c_rank })
    }
}
