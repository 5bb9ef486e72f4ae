#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;

use super::collectives::{self, Operator};
use super::{Communicator, Operations};
use crate::backend::call;
use crate::{CollectiveConfig, DeviceSlice, DeviceSliceMut, Element, Error, Group, Result, StreamRef, sys};

/// A reduction that multiplies each rank's elements by a scalar of that rank's, and sums.
///
/// It belongs to a communicator and an element type, and so has the operations itself: there is no way to use it
/// with others.
///
/// ```
/// # fn main() -> libnccl::Result<()> {
/// # use libnccl::StreamRef;
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let halves = comms[0].pre_mul_sum(0.5_f32)?;
/// let mut sum = [0.0; 2];
/// halves.all_reduce(&[2.0, 6.0], &mut sum, StreamRef::DEFAULT)?;
/// assert_eq!(sum, [1.0, 3.0]);
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail,E0271
/// # fn main() -> libnccl::Result<()> {
/// # use libnccl::StreamRef;
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let halves = comms[0].pre_mul_sum(0.5_f32)?;
/// let mut sum = [0.0_f64; 2];
/// halves.all_reduce(&[2.0_f64, 6.0], &mut sum, StreamRef::DEFAULT)?;
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail,E0308
/// # fn main() -> libnccl::Result<()> {
/// # use libnccl::StreamRef;
/// let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
/// let halves = comms[0].pre_mul_sum(0.5_f32)?;
/// let mut sum = [0.0_f32; 2];
/// comms[1].all_reduce(&[2.0_f32, 6.0], &mut sum, halves, StreamRef::DEFAULT)?;
/// # Ok(())
/// # }
/// ```
///
/// It cannot outlive its communicator:
///
/// ```compile_fail,E0505
/// # fn main() -> libnccl::Result<()> {
/// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
/// let halves = comm.pre_mul_sum(0.5_f32)?;
/// comm.destroy()?;
/// drop(halves);
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ncclRedOpCreatePreMulSum")]
#[doc(alias = "ncclRedOpDestroy")]
pub struct PreMulSum<'c, T> {
    communicator: &'c Communicator,
    op: Operator,
    element: PhantomData<T>,
}

/// The reductions of a [`PreMulSum`], and how they are to be started; as [`Operations`].
///
/// ```
/// # fn main() -> libnccl::Result<()> {
/// use libnccl::StreamRef;
///
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let halves = comms[0].pre_mul_sum(0.5_f32)?;
/// let mut buffer = [2.0, 6.0];
/// halves.operations().all_reduce_in_place(&mut buffer, StreamRef::DEFAULT)?;
/// assert_eq!(buffer, [1.0, 3.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct PreMulSumOperations<'scope, T> {
    operations: Operations<'scope>,
    op: Operator,
    element: PhantomData<T>,
}

impl Communicator {
    /// The reduction that multiplies this rank's elements by `scalar` and sums.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::StreamRef;
    ///
    /// let comms = libnccl_cpu::nccl().init_all(&[0])?;
    /// let mut buffer = [1, 2];
    /// comms[0].pre_mul_sum(10)?.all_reduce_in_place(&mut buffer, StreamRef::DEFAULT)?;
    /// assert_eq!(buffer, [10, 20]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Nccl`].
    #[doc(alias = "ncclRedOpCreatePreMulSum")]
    #[doc(alias = "ncclScalarHostImmediate")]
    pub fn pre_mul_sum<T: Element>(&self, mut scalar: T) -> Result<PreMulSum<'_, T>> {
        let residence = sys::ncclScalarResidence_t::ncclScalarHostImmediate;
        // SAFETY: the scalar is read during the call.
        unsafe { PreMulSum::create(self, (&raw mut scalar).cast(), residence) }
    }

    /// [`pre_mul_sum`](Self::pre_mul_sum) with the scalar in the communicator's memory: the first element of
    /// `scalar`, read whenever a reduction runs.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::StreamRef;
    ///
    /// let comms = libnccl_cpu::nccl().init_all(&[0])?;
    /// let weight = [0.25_f64];
    /// let mut buffer = [4.0, 8.0];
    /// comms[0].pre_mul_sum_device(&weight)?.all_reduce_in_place(&mut buffer, StreamRef::DEFAULT)?;
    /// assert_eq!(buffer, [1.0, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `scalar` is empty, or in the wrong memory; [`Error::Nccl`].
    #[doc(alias = "ncclRedOpCreatePreMulSum")]
    #[doc(alias = "ncclScalarDevice")]
    pub fn pre_mul_sum_device<'c, T: Element>(
        &'c self,
        scalar: impl Into<DeviceSlice<'c, T>>,
    ) -> Result<PreMulSum<'c, T>> {
        const CALL: &str = "pre_mul_sum_device";
        let scalar = scalar.into();
        if scalar.is_empty() {
            return Err(Error::argument(CALL, "the scalar's buffer is empty; expected one element"));
        }
        self.accepts::<T, 1>(CALL, [scalar.memory_space()])?;
        let residence = sys::ncclScalarResidence_t::ncclScalarDevice;
        // SAFETY: the view promises that the memory outlives the work that reads it.
        unsafe { PreMulSum::create(self, scalar.as_raw().cast_mut(), residence) }
    }
}

impl<'c, T: Element> PreMulSum<'c, T> {
    /// # Safety
    /// `scalar` is an element of the type, in the memory that `residence` says, for as long as that needs.
    unsafe fn create(
        communicator: &'c Communicator,
        scalar: *mut std::ffi::c_void,
        residence: sys::ncclScalarResidence_t,
    ) -> Result<Self> {
        let mut op = sys::ncclRedOp_t(0);
        communicator.immediate("pre_mul_sum", || {
            let (slot, data_type, raw) = (&raw mut op, T::DATA_TYPE.as_raw(), communicator.raw());
            // SAFETY: the scalar is as the caller promises; a live communicator, and a place for the operator.
            unsafe {
                call!(
                    communicator.library(),
                    ncclRedOpCreatePreMulSum(slot, scalar, data_type, residence, raw)
                )
            }
        })?;
        Ok(Self { communicator, op: Operator(op), element: PhantomData })
    }

    /// Its operations, to be started at once; see [`PreMulSumOperations::with`].
    #[must_use]
    pub fn operations(&self) -> PreMulSumOperations<'_, T> {
        let operations = self.communicator.operations();
        PreMulSumOperations { operations, op: self.op, element: PhantomData }
    }

    /// Its operations, as part of a group.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::StreamRef;
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let comms = nccl.init_all(&[0, 1])?;
    /// let (tenfold, once) = (comms[0].pre_mul_sum(10)?, comms[1].pre_mul_sum(1)?);
    /// let mut buffers = [[1], [2]];
    /// let [first, second] = &mut buffers;
    /// nccl.group(|g| {
    ///     tenfold.on(g).all_reduce_in_place(first, StreamRef::DEFAULT)?;
    ///     once.on(g).all_reduce_in_place(second, StreamRef::DEFAULT)
    /// })?;
    /// assert_eq!(buffers, [[12], [12]]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn on<'scope>(&'scope self, group: &'scope Group<'scope, '_>) -> PreMulSumOperations<'scope, T> {
        let operations = group.on(self.communicator);
        PreMulSumOperations { operations, op: self.op, element: PhantomData }
    }
}

impl<'scope, T> PreMulSumOperations<'scope, T> {
    /// The same, with options for each collective. Since NCCL 2.31.2.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::{CollectiveConfig, StreamRef};
    ///
    /// let comms = libnccl_cpu::nccl().init_all(&[0])?;
    /// let mut buffer = [2.0, 6.0];
    /// let few = CollectiveConfig::new().max_ctas(2);
    /// let halves = comms[0].pre_mul_sum(0.5_f32)?;
    /// halves.operations().with(&few).all_reduce_in_place(&mut buffer, StreamRef::DEFAULT)?;
    /// assert_eq!(buffer, [1.0, 3.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with(self, config: &'scope CollectiveConfig) -> Self {
        Self { operations: self.operations.with(config), ..self }
    }
}

macro_rules! reductions {
    ($($(#[$documentation:meta])* $name:ident($($argument:ident: $type:ty),*) $(, $root:ident)?;)*) => {
        impl<'scope, T: Element> PreMulSumOperations<'scope, T> {
            $(
                $(#[$documentation])*
                ///
                /// # Errors
                /// As for [`Communicator`]'s operation of this name.
                pub fn $name(
                    self,
                    $($argument: $type,)*
                    $($root: usize,)?
                    stream: impl Into<StreamRef<'scope>>,
                ) -> Result<()> {
                    $(let $argument = $argument.into();)*
                    let stream = stream.into();
                    let Self { operations, op, .. } = self;
                    let joined = operations.begin(stringify!($name))?;
                    let result = collectives::$name(operations, $($argument,)* op, $($root,)? stream);
                    operations.finish(stringify!($name), joined, result)
                }
            )*
        }

        impl<'c, T: Element> PreMulSum<'c, T> {
            $(
                $(#[$documentation])*
                ///
                /// # Errors
                /// As for [`Communicator`]'s operation of this name.
                pub fn $name<'scope>(
                    &'scope self,
                    $($argument: $type,)*
                    $($root: usize,)?
                    stream: impl Into<StreamRef<'scope>>,
                ) -> Result<()> {
                    self.operations().$name($($argument,)* $($root,)? stream)
                }
            )*
        }
    };
}

reductions! {
    /// As [`Communicator::all_reduce`].
    #[doc(alias = "ncclAllReduce")]
    all_reduce(send: impl Into<DeviceSlice<'scope, T>>, recv: impl Into<DeviceSliceMut<'scope, T>>);
    /// As [`Communicator::all_reduce_in_place`].
    #[doc(alias = "ncclAllReduce")]
    all_reduce_in_place(buffer: impl Into<DeviceSliceMut<'scope, T>>);
    /// As [`Communicator::reduce`].
    #[doc(alias = "ncclReduce")]
    reduce(send: impl Into<DeviceSlice<'scope, T>>, recv: impl Into<DeviceSliceMut<'scope, T>>), root;
    /// As [`Communicator::reduce_in_place`].
    #[doc(alias = "ncclReduce")]
    reduce_in_place(buffer: impl Into<DeviceSliceMut<'scope, T>>), root;
    /// As [`Communicator::reduce_scatter`].
    #[doc(alias = "ncclReduceScatter")]
    reduce_scatter(send: impl Into<DeviceSlice<'scope, T>>, recv: impl Into<DeviceSliceMut<'scope, T>>);
    /// As [`Communicator::reduce_scatter_in_place`].
    #[doc(alias = "ncclReduceScatter")]
    reduce_scatter_in_place(buffer: impl Into<DeviceSliceMut<'scope, T>>);
}

impl<T> Drop for PreMulSum<'_, T> {
    /// NCCL copies the operator into each call, so that it may go while they run.
    fn drop(&mut self) {
        let (library, raw, Operator(op)) = (self.communicator.library(), self.communicator.raw(), self.op);
        let _ = self.communicator.ask_or_in_group("ncclRedOpDestroy", || {
            // SAFETY: an operator of this live communicator, not used any more.
            unsafe { call!(library, ncclRedOpDestroy(op, raw)) }
        });
    }
}

impl<T> fmt::Debug for PreMulSum<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreMulSum").field("op", &self.op).finish_non_exhaustive()
    }
}
