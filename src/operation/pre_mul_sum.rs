#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use super::arguments::{Arguments, Operator};
use super::check::check_buffers;
use super::custom_operator::CustomOperator;
use super::grouping::{Grouped, Grouping, Ungrouped};
use super::methods::buffers;
use super::operations::Operations;
use crate::backend::call;
use crate::buffer::check_layout;
use crate::communicator::{Owner, Purpose};
use crate::{
    AnyElement, BufferElement, CollectiveConfig, Communicator, DataType, DeviceSlice, Element, Error, Group,
    InvalidArgumentKind, Operation, RecvBuffer, Result, SendBuffer, StreamRef, sys,
};

/// A reduction that multiplies each rank's elements by a scalar of that rank and sums the products.
///
/// It belongs to a communicator and an element type. The reductions are methods of this type, so that it cannot be
/// used with another communicator or element type. With [`AnyElement`], the type of the buffers is compared at run time.
///
/// ```
/// # use libnccl::StreamRef;
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let halves = comms[0].pre_mul_sum(0.5_f32)?;
/// let mut sum = [0.0; 2];
/// halves.all_reduce(&[2.0, 6.0], &mut sum, StreamRef::DEFAULT)?;
/// assert_eq!(sum, [1.0, 3.0]);
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// ```compile_fail,E0271
/// # use libnccl::StreamRef;
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let halves = comms[0].pre_mul_sum(0.5_f32)?;
/// let mut sum = [0.0_f64; 2];
/// halves.all_reduce(&[2.0_f64, 6.0], &mut sum, StreamRef::DEFAULT)?;
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// ```compile_fail,E0308
/// # use libnccl::StreamRef;
/// let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
/// let halves = comms[0].pre_mul_sum(0.5_f32)?;
/// let mut sum = [0.0_f32; 2];
/// comms[1].all_reduce(&[2.0_f32, 6.0], &mut sum, halves, StreamRef::DEFAULT)?;
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// It cannot outlive its communicator; [`into_owned`](Self::into_owned) ends the borrow, for a struct that holds both:
///
/// ```compile_fail,E0505
/// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
/// let halves = comm.pre_mul_sum(0.5_f32)?;
/// comm.destroy()?;
/// drop(halves);
/// # Ok::<(), libnccl::Error>(())
/// ```
#[doc(alias = "ncclRedOpCreatePreMulSum")]
#[doc(alias = "ncclRedOpDestroy")]
pub struct PreMulSum<'c, T> {
    pub(super) operator: CustomOperator<&'c Communicator>,
    /// Set if the scalar is in memory that is borrowed.
    pub(super) borrows_scalar: bool,
    element: PhantomData<T>,
}

/// The reductions of a [`PreMulSum`], with the way in which they are started, like [`Operations`]; for an example, see
/// [`PreMulSum::on`].
#[derive(Debug, Clone, Copy)]
pub struct PreMulSumOperations<'c, T, G = Ungrouped<'c>> {
    operations: Operations<'c, G>,
    op: sys::ncclRedOp_t,
    data_type: DataType,
    element: PhantomData<T>,
}

impl Communicator {
    /// Creates a reduction that multiplies this rank's elements by `scalar` and sums the products; for an example, see
    /// [`PreMulSum`].
    ///
    /// # Errors
    /// [`Error::Nccl`].
    #[doc(alias = "ncclRedOpCreatePreMulSum")]
    #[doc(alias = "ncclScalarHostImmediate")]
    pub fn pre_mul_sum<T: Element>(&self, mut scalar: T) -> Result<PreMulSum<'_, T>> {
        let residence = sys::ncclScalarResidence_t::ncclScalarHostImmediate;
        // SAFETY: the scalar is read during the call.
        unsafe { PreMulSum::create("pre_mul_sum", self, T::DATA_TYPE, (&raw mut scalar).cast(), residence) }
    }

    /// Creates a reduction as [`pre_mul_sum`](Self::pre_mul_sum) does, of an element type that is known at run time only:
    /// `scalar` has the bytes of one element. It reduces buffers such as an [`AnySlice`](crate::AnySlice), whose type must
    /// be the same.
    ///
    /// ```
    /// use libnccl::{AnySliceMut, DataType, StreamRef};
    ///
    /// let comms = libnccl_cpu::nccl().init_all(&[0])?;
    /// let tenfold = comms[0].pre_mul_sum_any(DataType::Uint8, &[10])?;
    /// let mut bytes = [1, 2, 3];
    /// let buffer = AnySliceMut::from_bytes(DataType::Uint8, &mut bytes)?;
    /// tenfold.all_reduce_in_place(buffer, StreamRef::DEFAULT)?;
    /// assert_eq!(bytes, [10, 20, 30]);
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `scalar` has another size than an element; [`Error::Nccl`].
    #[doc(alias = "ncclRedOpCreatePreMulSum")]
    #[doc(alias = "ncclScalarHostImmediate")]
    pub fn pre_mul_sum_any(&self, data_type: DataType, scalar: &[u8]) -> Result<PreMulSum<'_, AnyElement>> {
        const CALL: &str = "pre_mul_sum_any";
        if scalar.len() != data_type.size() {
            let (found, size) = (scalar.len(), data_type.size());
            let problem = format!("the scalar has {found} bytes; expected {size}, the size of {data_type}");
            return Err(Error::argument(CALL, InvalidArgumentKind::Length, problem));
        }
        // Aligned for any type.
        let mut aligned = [0_u64; 1];
        let residence = sys::ncclScalarResidence_t::ncclScalarHostImmediate;
        // SAFETY: no type is larger than 8 bytes; the scalar is read during the call.
        unsafe {
            scalar.as_ptr().copy_to_nonoverlapping(aligned.as_mut_ptr().cast(), scalar.len());
            PreMulSum::create(CALL, self, data_type, aligned.as_mut_ptr().cast(), residence)
        }
    }

    /// Creates a reduction as [`pre_mul_sum`](Self::pre_mul_sum) does, with the scalar in the communicator's memory:
    /// the first element of `scalar`, which is read whenever a reduction runs.
    ///
    /// ```
    /// use libnccl::StreamRef;
    ///
    /// let comms = libnccl_cpu::nccl().init_all(&[0])?;
    /// let weight = [0.25_f64];
    /// let mut buffer = [4.0, 8.0];
    /// comms[0].pre_mul_sum_device(&weight)?.all_reduce_in_place(&mut buffer, StreamRef::DEFAULT)?;
    /// assert_eq!(buffer, [1.0, 2.0]);
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `scalar` is empty, or in the wrong memory; [`Error::Nccl`].
    #[doc(alias = "ncclRedOpCreatePreMulSum")]
    #[doc(alias = "ncclScalarDevice")]
    pub fn pre_mul_sum_device<'c, T: BufferElement>(
        &'c self,
        scalar: impl Into<DeviceSlice<'c, T>>,
    ) -> Result<PreMulSum<'c, T>> {
        const CALL: &str = "pre_mul_sum_device";
        let scalar = scalar.into();
        if scalar.is_empty() {
            let problem = "the scalar's buffer is empty; expected one element";
            return Err(Error::argument(CALL, InvalidArgumentKind::Length, problem));
        }
        if !T::HAS_TYPE {
            check_layout(CALL, &scalar.raw())?;
        }
        let data_type = scalar.data_type();
        check_buffers(self, CALL, data_type, [scalar.memory_space()], ["the scalar's buffer"])?;
        let residence = sys::ncclScalarResidence_t::ncclScalarDevice;
        // SAFETY: the creator of the view guarantees that the memory outlives the work that reads it.
        unsafe { PreMulSum::create(CALL, self, data_type, scalar.raw().as_raw().cast_mut(), residence) }
    }
}

impl<'c, T: BufferElement> PreMulSum<'c, T> {
    /// Creates the operator.
    ///
    /// # Safety
    /// `scalar` points to an element of the type in the memory that `residence` names. Host memory is valid during the
    /// call, device memory until the work that reads it has run.
    unsafe fn create(
        call: &'static str,
        communicator: &'c Communicator,
        data_type: DataType,
        scalar: *mut std::ffi::c_void,
        residence: sys::ncclScalarResidence_t,
    ) -> Result<Self> {
        let mut op = sys::ncclRedOp_t(0);
        communicator.run_ungrouped(call, Purpose::Work, || {
            let (out, raw_type, raw) = (&raw mut op, data_type.as_raw(), communicator.raw());
            // SAFETY: the caller guarantees that the scalar is valid; a live communicator and a valid out-parameter.
            unsafe {
                call!(communicator.library(), ncclRedOpCreatePreMulSum(out, scalar, raw_type, residence, raw))
            }
        })?;
        let borrows_scalar = residence == sys::ncclScalarResidence_t::ncclScalarDevice;
        let operator = CustomOperator { owner: communicator, raw: op, data_type };
        Ok(Self { operator, borrows_scalar, element: PhantomData })
    }

    /// Returns its operations, started at once; see [`PreMulSumOperations`].
    #[must_use]
    pub fn operations(&self) -> PreMulSumOperations<'_, T> {
        PreMulSumOperations::new(self.operator.owner.operations(), &self.operator)
    }

    /// Returns its operations, as part of a group.
    ///
    /// ```
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
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[must_use]
    pub fn on<'scope>(
        &'scope self,
        group: &'scope Group<'scope, '_>,
    ) -> PreMulSumOperations<'scope, T, Grouped<'scope>> {
        PreMulSumOperations::new(group.on(self.operator.owner), &self.operator)
    }
}

impl<'c, T, G> PreMulSumOperations<'c, T, G> {
    pub(super) fn new(operations: Operations<'c, G>, operator: &CustomOperator<impl Owner>) -> Self {
        Self { operations, op: operator.raw, data_type: operator.data_type, element: PhantomData }
    }

    /// Adds options for each collective, as [`Operations::with`] does. Since NCCL 2.31.2.
    #[must_use]
    pub fn with(self, config: &'c CollectiveConfig) -> Self {
        Self { operations: self.operations.with(config), ..self }
    }
}

impl<T> PreMulSumOperations<'_, T> {
    /// Limits the wait of each call, as [`Operations::timeout`] does.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { operations: self.operations.timeout(timeout), ..self }
    }
}

macro_rules! reductions {
    ($(
        $(#[$documentation:meta])*
        $name:ident($($buffer:ident: $direction:ident),* $(; $root:ident)?);
    )*) => {
        impl<T: BufferElement, G> PreMulSumOperations<'_, T, G> {
            $(
                $(#[$documentation])*
                ///
                /// # Errors
                /// The errors of the operation of [`Communicator`] with this name.
                #[track_caller]
                pub fn $name<'b>(
                    self,
                    $($buffer: impl $direction<'b, Element = T>,)*
                    $($root: usize,)?
                    stream: impl Into<StreamRef<'b>>,
                ) -> Result<()>
                where
                    G: Grouping<'b>,
                {
                    let operator = Operator::Custom(self.op, self.data_type);
                    let arguments = Arguments::NONE.operator(operator)$(.root($root))?;
                    let (send, recv) = buffers!($($buffer: $direction),*);
                    let operation = const { Operation::of(stringify!($name)) };
                    self.operations.start(operation, send, recv, arguments, stream)
                }
            )*
        }

        impl<T: BufferElement> PreMulSum<'_, T> {
            $(
                $(#[$documentation])*
                ///
                /// # Errors
                /// The errors of the operation of [`Communicator`] with this name.
                #[track_caller]
                pub fn $name<'b>(
                    &self,
                    $($buffer: impl $direction<'b, Element = T>,)*
                    $($root: usize,)?
                    stream: impl Into<StreamRef<'b>>,
                ) -> Result<()> {
                    self.operations().$name($($buffer,)* $($root,)? stream)
                }
            )*
        }
    };
}

reductions! {
    /// Performs [`Communicator::all_reduce`] with this reduction.
    #[doc(alias = "ncclAllReduce")]
    all_reduce(send: SendBuffer, recv: RecvBuffer);
    /// Performs [`Communicator::all_reduce_in_place`] with this reduction.
    #[doc(alias = "ncclAllReduce")]
    all_reduce_in_place(buffer: RecvBuffer);
    /// Performs [`Communicator::reduce`] with this reduction.
    #[doc(alias = "ncclReduce")]
    reduce(send: SendBuffer, recv: RecvBuffer; root);
    /// Performs [`Communicator::reduce_in_place`] with this reduction.
    #[doc(alias = "ncclReduce")]
    reduce_in_place(buffer: RecvBuffer; root);
    /// Performs [`Communicator::reduce_scatter`] with this reduction.
    #[doc(alias = "ncclReduceScatter")]
    reduce_scatter(send: SendBuffer, recv: RecvBuffer);
    /// Performs [`Communicator::reduce_scatter_in_place`] with this reduction.
    #[doc(alias = "ncclReduceScatter")]
    reduce_scatter_in_place(buffer: RecvBuffer);
}

impl<T> fmt::Debug for PreMulSum<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreMulSum").field("op", &self.operator.raw).finish_non_exhaustive()
    }
}
