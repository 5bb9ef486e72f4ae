//! An all-gather of control data: a few bytes from each rank to all.

use crate::coll::call_check;
use crate::coll::call_header::{CallHeader, ControlCall};
use crate::diag::error::{Error, Result};
use crate::shm::layout::EAGER_MAX;
use crate::shm::shared_state::SharedState;

/// Gathers the data of every rank, by rank. All ranks must contribute the same number of bytes.
pub(crate) async fn control_allgather(
    state: &SharedState,
    rank: usize,
    call: ControlCall,
    data: &[u8],
) -> Result<Vec<Vec<u8>>> {
    let length = data.len();
    if length > EAGER_MAX {
        return Err(Error::internal(format!("{length} bytes of control data, at most {EAGER_MAX} fit")));
    }
    let step = state.next_step(rank).await?;
    let header = CallHeader::Control { call, length: length as u64 };
    let call_args = call_check::call_args(state, rank, header);
    state.publish(rank, step, call_args, data, None);
    state.wait_all(rank, step).await?;
    if !state.all_made(call_args, rank, step, 0..state.ranks()) {
        return Err(call_check::difference(state, rank, step, 0..state.ranks()));
    }
    let data = |rank| state.eager(rank, step, length).bytes(0, length, &mut vec![]).to_vec();
    Ok((0..state.ranks()).map(data).collect())
}
