//! The reductions that a communicator's caller made: sums of inputs that are multiplied by a scalar of each rank first.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libnccl::sys::ncclRedOp_t;

use crate::diag::error::{Error, Result};
use crate::reduce::data_type::DataType;
use crate::reduce::reduction::Reduction;
use crate::shm::buffer::ReadBuf;

/// The scalars of a communicator's reductions, by NCCL's number.
#[derive(Debug, Default)]
pub(crate) struct CustomReductions(Mutex<BTreeMap<u32, (DataType, Scalar)>>);

/// The scalar of a custom reduction, an element in the first bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scalar {
    Immediate([u8; 8]),
    /// To be read when an operation runs.
    Deferred(ReadBuf),
}

impl CustomReductions {
    /// Creates a reduction that multiplies this rank's inputs by a scalar first.
    pub(crate) fn create(&self, data_type: DataType, scalar: Scalar) -> Result<ncclRedOp_t> {
        static NEXT: AtomicU32 = AtomicU32::new(ncclRedOp_t::ncclNumOps.0);
        let number = next_number(&NEXT)?;
        self.scalars().insert(number, (data_type, scalar));
        Ok(ncclRedOp_t(number))
    }

    pub(crate) fn destroy(&self, op: ncclRedOp_t) -> Result {
        match self.scalars().remove(&op.0) {
            Some(_) => Ok(()),
            None => Err(Error::argument(format!("reduction {} was not created by this communicator", op.0))),
        }
    }

    /// Returns the number of reductions.
    pub(crate) fn len(&self) -> usize {
        self.scalars().len()
    }

    /// Returns the reduction, and the place of its scalar if that is to be read when the operation runs.
    pub(super) fn get(&self, op: ncclRedOp_t, data_type: DataType) -> Result<(Reduction, Option<ReadBuf>)> {
        match self.scalars().get(&op.0) {
            Some((own, scalar)) if *own == data_type => Ok(match scalar {
                Scalar::Immediate(scalar) => (Reduction::PreMulSum(*scalar), None),
                Scalar::Deferred(place) => (Reduction::PreMulSum([0; 8]), Some(*place)),
            }),
            Some((own, _)) => Err(Error::argument(format!(
                "reduction {} was created for {own:?}, not for {data_type:?}",
                op.0
            ))),
            None => Err(Error::argument(format!("reduction {} is unknown to this communicator", op.0))),
        }
    }

    fn scalars(&self) -> MutexGuard<'_, BTreeMap<u32, (DataType, Scalar)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the next number of a custom reduction. A number is never reused, so that a destroyed reduction, or one of another
/// communicator, is detected; it never becomes the number of one of NCCL's own reductions.
fn next_number(next: &AtomicU32) -> Result<u32> {
    const MAX: u32 = ncclRedOp_t::ncclMaxRedOp.0;
    let increment = |number| (number <= MAX).then_some(number + 1);
    next.fetch_update(Relaxed, Relaxed, increment).map_err(|_| {
        let created = MAX - ncclRedOp_t::ncclNumOps.0 + 1;
        Error::usage(format!(
            "the process has created {created} custom reductions, and there are no more numbers"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_reductions_end_with_an_error_and_are_not_reused() {
        let next = AtomicU32::new(ncclRedOp_t::ncclMaxRedOp.0);
        assert_eq!(next_number(&next).unwrap(), ncclRedOp_t::ncclMaxRedOp.0);
        for _ in 0..2 {
            assert!(next_number(&next).unwrap_err().text.contains("2147483643 custom reductions"));
        }
    }
}
