use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::custom_operator::CustomOperator;
use super::grouping::Grouping;
use super::operations::Operations;
use super::pre_mul_sum::{PreMulSum, PreMulSumOperations};
use crate::communicator::Shared;
use crate::{BufferElement, Error, InvalidArgumentKind, Result};

/// A [`PreMulSum`](crate::PreMulSum) that does not borrow its communicator, so that a struct can hold both.
///
/// ```
/// use libnccl::{Communicator, OwnedPreMulSum, Result, StreamRef};
///
/// /// Declares the reduction first, as fields are dropped in this order.
/// struct Averages {
///     mean: OwnedPreMulSum<f32>,
///     comm: Communicator,
/// }
///
/// impl Averages {
///     fn average(&self, gradients: &mut [f32]) -> Result<()> {
///         self.mean.on(self.comm.operations())?.all_reduce_in_place(gradients, StreamRef::DEFAULT)
///     }
/// }
///
/// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
/// let mean = comm.pre_mul_sum(1.0 / comm.size() as f32)?.into_owned()?;
/// Averages { mean, comm }.average(&mut [1.0, 2.0])?;
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// # Ending
/// A drop destroys the reduction immediately, on any thread, unless the communicator is in a call or an open group. Then the
/// thread that leaves that call or group destroys it.
pub struct OwnedPreMulSum<T> {
    operator: CustomOperator<Arc<Shared>>,
    element: PhantomData<T>,
}

impl<T: BufferElement> PreMulSum<'_, T> {
    /// Ends the borrow of the communicator, so that a struct can hold both; see [`OwnedPreMulSum`].
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] if it was created by
    /// [`Communicator::pre_mul_sum_device`](crate::Communicator::pre_mul_sum_device), as it borrows the scalar too, or if the
    /// communicator is a [`BorrowedCommunicator`](crate::BorrowedCommunicator).
    pub fn into_owned(self) -> Result<OwnedPreMulSum<T>> {
        const CALL: &str = "into_owned";
        if self.borrows_scalar {
            let problem = "the scalar is borrowed; use pre_mul_sum instead of pre_mul_sum_device";
            return Err(Error::usage(CALL, problem));
        }
        let shared = self.operator.owner.shared().owned(CALL)?;
        Ok(OwnedPreMulSum { operator: self.operator.into_owner(shared), element: PhantomData })
    }
}

impl<T: BufferElement> OwnedPreMulSum<T> {
    /// Returns its reductions, started as `operations` are: at once those of a communicator, in a group those of
    /// [`Group::on`](crate::Group::on).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they are operations of another communicator.
    pub fn on<'c, 'b, G: Grouping<'b>>(
        &'c self,
        operations: Operations<'c, G>,
    ) -> Result<PreMulSumOperations<'c, T, G>> {
        if !Arc::ptr_eq(operations.grouping.communicator().shared(), &self.operator.owner) {
            let problem = "the reduction belongs to another communicator";
            return Err(Error::argument("on", InvalidArgumentKind::Communicator, problem));
        }
        Ok(PreMulSumOperations::new(operations, &self.operator))
    }
}

impl<T> fmt::Debug for OwnedPreMulSum<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedPreMulSum").field("op", &self.operator.raw).finish_non_exhaustive()
    }
}
