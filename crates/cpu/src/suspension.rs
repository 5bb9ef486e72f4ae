//! Suspending a communicator: giving back the memory that can be had again.
//!
//! That is what a rank stages and says to all others. What it has sent and nobody has received yet stays.

use crate::exchange::{Purpose, exchange};
use crate::failure::Result;
use crate::world::World;

/// Gives back memory of `rank`, once no rank uses it any more.
pub(crate) async fn suspend(world: &World, rank: usize) -> Result {
    exchange(world, rank, Purpose::Suspend, &[]).await?;
    world.give_back(rank);
    Ok(())
}

/// Waits until all ranks want to go on. The memory comes back when it is used.
pub(crate) async fn resume(world: &World, rank: usize) -> Result {
    exchange(world, rank, Purpose::Resume, &[]).await.map(drop)
}
