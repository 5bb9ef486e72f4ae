//! The operators of reductions: NCCL's own, and multiplication by a scalar before the sum.
#![allow(unsafe_code)] // Calls C.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;

use crate::backend::call;
use crate::buffer::{AnyElement, Slice};
use crate::communicator::{Communicator, Handle, Object, OwnedObject, Purpose, Shared};
use crate::data_type::{DataType, Element};
use crate::error::{Error, InvalidArgumentKind, Result};
use crate::sys::{self, ncclRedOp_t};
use crate::values::values;

values! {
    /// The operator with which a collective combines the elements of the ranks. `Display` and `FromStr` use its name in
    /// nccl-tests, such as `max`.
    #[doc(alias = "ncclRedOp_t")]
    pub enum ReduceOp: ncclRedOp_t {
        /// The sum; integers wrap around.
        #[doc(alias = "ncclSum")]
        Sum = ncclSum as "sum",
        /// The product; integers wrap around.
        #[doc(alias = "ncclProd")]
        Prod = ncclProd as "prod",
        /// The maximum; NaN only if all elements are NaN.
        #[doc(alias = "ncclMax")]
        Max = ncclMax as "max",
        /// The minimum; NaN only if all elements are NaN.
        #[doc(alias = "ncclMin")]
        Min = ncclMin as "min",
        /// The mean over the ranks. Integers are summed with wraparound, then divided with truncation toward zero.
        #[doc(alias = "ncclAvg")]
        Avg = ncclAvg as "avg",
    }

    expected: "an operation";
}

/// The operator of a reduction: a [`ReduceOp`], or a reference to a [`PreMulSum`] of the same element type.
#[derive(Clone, Copy)]
pub struct Operator<'a, T> {
    pub(crate) raw: RawOperator<'a>,
    element: PhantomData<T>,
}

#[derive(Clone, Copy)]
pub(crate) enum RawOperator<'a> {
    BuiltIn(ReduceOp),
    /// An operator that was created for a communicator and an element type.
    Custom(sys::ncclRedOp_t, DataType, &'a Shared),
}

impl<T> From<ReduceOp> for Operator<'_, T> {
    #[inline]
    fn from(op: ReduceOp) -> Self {
        Self { raw: RawOperator::BuiltIn(op), element: PhantomData }
    }
}

impl<'a, T> From<&'a PreMulSum<'_, T>> for Operator<'a, T> {
    fn from(PreMulSum { object, raw, data_type, .. }: &'a PreMulSum<'_, T>) -> Self {
        Self { raw: RawOperator::Custom(*raw, *data_type, object.shared()), element: PhantomData }
    }
}

impl<T> fmt::Debug for Operator<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tuple = f.debug_tuple("Operator");
        match &self.raw {
            RawOperator::BuiltIn(op) => tuple.field(op),
            RawOperator::Custom(raw, data_type, _) => tuple.field(&raw.0).field(data_type),
        };
        tuple.finish()
    }
}

/// An operator that multiplies each rank's elements by a scalar of that rank and sums the products.
///
/// Pass a reference to it as the operator of a collective, on the communicator that created it. The element type of the buffers
/// is checked at compile time, or at run time with [`AnyElement`].
///
/// ```
/// # use libnccl::StreamRef;
/// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
/// let halves = comm.pre_mul_sum(0.5_f32)?;
/// let mut sum = [0.0; 2];
/// comm.all_reduce(&[2.0, 6.0], &mut sum, &halves, StreamRef::DEFAULT)?;
/// assert_eq!(sum, [1.0, 3.0]);
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// The operator does not borrow its communicator, so that a struct can hold both. `'s` is the lifetime of the scalar's buffer if
/// [`pre_mul_sum_device`](Communicator::pre_mul_sum_device) created the operator, and `'static` otherwise.
///
/// Any thread can drop the operator. If the communicator is in a call or an open group, the operator is destroyed when that call
/// or group ends, otherwise immediately.
#[doc(alias = "ncclRedOpCreatePreMulSum")]
#[doc(alias = "ncclRedOpDestroy")]
pub struct PreMulSum<'s, T> {
    object: OwnedObject,
    raw: sys::ncclRedOp_t,
    data_type: DataType,
    scalar: PhantomData<&'s T>,
}

impl Communicator {
    /// Creates an operator that multiplies this rank's elements by `scalar` and sums the products of all ranks; for an example,
    /// see [`PreMulSum`].
    #[doc(alias = "ncclRedOpCreatePreMulSum")]
    #[doc(alias = "ncclScalarHostImmediate")]
    pub fn pre_mul_sum<T: Element>(&self, mut scalar: T) -> Result<PreMulSum<'static, T>> {
        let residence = sys::ncclScalarResidence_t::ncclScalarHostImmediate;
        // SAFETY: the scalar is read during the call.
        unsafe { PreMulSum::create("pre_mul_sum", self, T::DATA_TYPE, (&raw mut scalar).cast(), residence) }
    }

    /// Creates an operator as [`pre_mul_sum`](Self::pre_mul_sum) does, for an element type that is known only at run time.
    /// `scalar` must consist of the bytes of one element. Use the operator with buffers of [`AnyElement`], such as a
    /// [`Slice<AnyElement>`](crate::buffer::Slice), that have the same data type.
    ///
    /// ```
    /// use libnccl::{DataType, StreamRef, buffer::SliceMut};
    ///
    /// let comms = libnccl_cpu::nccl().init_all(&[0])?;
    /// let tenfold = comms[0].pre_mul_sum_any(DataType::Uint8, &[10])?;
    /// let mut bytes = [1, 2, 3];
    /// let buffer = SliceMut::from_bytes(DataType::Uint8, &mut bytes)?;
    /// comms[0].all_reduce_in_place(buffer, &tenfold, StreamRef::DEFAULT)?;
    /// assert_eq!(bytes, [10, 20, 30]);
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the length of `scalar` is not the size of an element; [`Error::Nccl`] if NCCL fails.
    #[doc(alias = "ncclRedOpCreatePreMulSum")]
    #[doc(alias = "ncclScalarHostImmediate")]
    pub fn pre_mul_sum_any(
        &self,
        data_type: DataType,
        scalar: &[u8],
    ) -> Result<PreMulSum<'static, AnyElement>> {
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

    /// Creates an operator as [`pre_mul_sum`](Self::pre_mul_sum) does, but its scalar is read whenever an operation with this
    /// operator runs. The scalar is the first element of `scalar`, which must be in the memory space of the communicator's
    /// buffers.
    ///
    /// ```
    /// use libnccl::StreamRef;
    ///
    /// let comms = libnccl_cpu::nccl().init_all(&[0])?;
    /// let weight = [0.25_f64];
    /// let mut buffer = [4.0, 8.0];
    /// let quarter = comms[0].pre_mul_sum_device(&weight)?;
    /// comms[0].all_reduce_in_place(&mut buffer, &quarter, StreamRef::DEFAULT)?;
    /// assert_eq!(buffer, [1.0, 2.0]);
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `scalar` is empty or in the wrong memory; [`Error::Nccl`] if NCCL fails.
    #[doc(alias = "ncclRedOpCreatePreMulSum")]
    #[doc(alias = "ncclScalarDevice")]
    pub fn pre_mul_sum_device<'s, T>(&self, scalar: impl Into<Slice<'s, T>>) -> Result<PreMulSum<'s, T>> {
        const CALL: &str = "pre_mul_sum_device";
        let scalar = scalar.into();
        if scalar.is_empty() {
            let problem = "the scalar's buffer is empty; expected one element";
            return Err(Error::argument(CALL, InvalidArgumentKind::Length, problem));
        }
        let data_type = scalar.data_type();
        self.check_buffer(CALL, data_type, scalar.raw().memory_space(), "the scalar's buffer")?;
        let residence = sys::ncclScalarResidence_t::ncclScalarDevice;
        // SAFETY: the creator of the slice guarantees that the memory outlives the work that reads it.
        unsafe { PreMulSum::create(CALL, self, data_type, scalar.raw().as_raw().cast_mut(), residence) }
    }
}

impl<T> PreMulSum<'_, T> {
    /// Creates the operator.
    ///
    /// # Safety
    /// `scalar` must point to an element of `data_type` in the memory that `residence` names. Host memory must be valid during
    /// the call. Device memory must be valid until the work that reads it has run.
    unsafe fn create(
        call: &'static str,
        communicator: &Communicator,
        data_type: DataType,
        scalar: *mut c_void,
        residence: sys::ncclScalarResidence_t,
    ) -> Result<Self> {
        let mut raw = sys::ncclRedOp_t(0);
        communicator.run_ungrouped(call, Purpose::Work, || {
            let (out, raw_type, comm) = (&raw mut raw, data_type.as_raw(), communicator.raw());
            // SAFETY: the caller guarantees that the scalar is valid; a live communicator and a valid out-parameter.
            unsafe {
                call!(
                    communicator.library(),
                    ncclRedOpCreatePreMulSum(out, scalar, raw_type, residence, comm)
                )
            }
        })?;
        // NCCL copies an operator into each call, so that calls may still run when it is destroyed.
        let object = OwnedObject::new(communicator.shared(), Object::new(Handle::Operator(raw), None));
        Ok(Self { object, raw, data_type, scalar: PhantomData })
    }
}

impl<T> fmt::Debug for PreMulSum<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreMulSum").field("op", &self.raw).finish_non_exhaustive()
    }
}
