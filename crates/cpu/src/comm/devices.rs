//! The CUDA devices of a communicator's ranks: each rank has one of its own.

use libnccl::environment::variable;

use crate::coll::call_header::ControlCall;
use crate::coll::control_allgather::control_allgather;
use crate::comm::communicator::{Communicator, RankInfo};
use crate::diag::error::{Error, Result};
use crate::shm::liveness::AbortReason;
use crate::sync::executor;

/// Returns `true` if several ranks may have one device, `NCCL_MULTI_RANK_GPU_ENABLE=1`.
pub(crate) fn may_repeat() -> bool {
    variable("NCCL_MULTI_RANK_GPU_ENABLE").is_some_and(|value| value == "1")
}

/// Checks, with the other ranks of a new communicator, that no two have the same device. The ranks have just joined.
pub(crate) fn check(communicator: &Communicator, RankInfo { state, rank, .. }: &RankInfo) -> Result {
    if communicator.known_driver().is_none() {
        return Ok(());
    }
    let own = communicator.device().to_ne_bytes();
    let mut all = vec![];
    let exchange = async {
        all = control_allgather(state, *rank, ControlCall::Devices, &own).await?;
        Ok(())
    };
    executor::run_one(exchange, state.ranks(), |_| {
        state.check_liveness();
        if communicator.is_cancelled() {
            state.set_abort(*rank, AbortReason::Aborted);
        }
    })?;
    let all: Vec<i32> = all
        .iter()
        .map(|device| device.first_chunk().map_or(-1, |bytes| i32::from_ne_bytes(*bytes)))
        .collect();
    if may_repeat() {
        return Ok(());
    }
    match repeated(&all) {
        None => Ok(()),
        Some((one, other)) => Err(Error::usage(format!(
            "rank {one} and rank {other} are both on device {}, which NCCL_MULTI_RANK_GPU_ENABLE=1 allows",
            all[one]
        ))),
    }
}

/// Returns the first two ranks that have the same device.
fn repeated(devices: &[i32]) -> Option<(usize, usize)> {
    (0..devices.len()).find_map(|other| {
        let one = devices[..other].iter().position(|device| *device == devices[other])?;
        Some((one, other))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_of_two_ranks_is_found_with_the_ranks() {
        assert_eq!(repeated(&[0, 1, 2]), None);
        assert_eq!(repeated(&[3, 0, 1, 0, 3]), Some((1, 3)));
    }
}
