//! What ranks tell each other outside collectives: a short text from each to all.

use crate::agreement;
use crate::failure::{Failure, Result};
use crate::world::{PAYLOAD, World};

/// Why they do, which all ranks have to do alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Split,
    Grow,
    Suspend,
    Resume,
    RegisterWindow,
}

const NAMES: [&str; 5] =
    ["ncclCommSplit", "ncclCommGrow", "ncclCommSuspend", "ncclCommResume", "ncclCommWindowRegister"];

/// Above the numbers of collectives.
const FIRST: u64 = 0x80;

/// What every rank says, by rank. All texts have the same length.
pub(crate) async fn exchange(
    world: &World,
    rank: usize,
    purpose: Purpose,
    text: &[u8],
) -> Result<Vec<Vec<u8>>> {
    if text.len() > PAYLOAD {
        return Err(Failure::internal(format!("{} bytes are too long for an exchange", text.len())));
    }
    let step = world.next_step(rank).await?;
    let common = [FIRST + purpose as u64, text.len() as u64];
    world.say(rank, step, common, text, None);
    world.all(rank, step).await?;
    agreement::check(world, rank, step, 0..world.ranks())?;
    let said = |rank| world.payload(rank, step, text.len()).bytes(0, text.len()).to_vec();
    Ok((0..world.ranks()).map(said).collect())
}

/// The words of a record, if they are of an exchange.
pub(crate) fn tell([function, _]: [u64; 2]) -> Option<String> {
    let index = usize::try_from(function.checked_sub(FIRST)?).ok()?;
    NAMES.get(index).map(ToString::to_string)
}
