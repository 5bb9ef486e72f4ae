//! The CUDA devices of a communicator's ranks: each rank has one of its own.

use libnccl::environment::variable;

use crate::diag::error::{Error, Result};

/// Returns `true` if several ranks may have one device, `NCCL_MULTI_RANK_GPU_ENABLE=1`.
pub(crate) fn may_repeat() -> bool {
    variable("NCCL_MULTI_RANK_GPU_ENABLE").is_some_and(|value| value == "1")
}

/// Checks that no two ranks have the same of these devices.
pub(crate) fn check(all: &[i32]) -> Result {
    if may_repeat() {
        return Ok(());
    }
    match repeated(all) {
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
