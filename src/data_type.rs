#![allow(unsafe_code)] // `Element` is an unsafe trait.

use crate::sys::ncclDataType_t;
use crate::values::values;

values! {
    /// An element type of NCCL. `Display` writes its name in nccl-tests, such as `float`. `FromStr` accepts this name and the
    /// name of the Rust type, such as `f32`. The Rust types are in the standard library, or in the crates `half` and `float8`.
    #[doc(alias = "ncclDataType_t")]
    pub enum DataType: ncclDataType_t {
        /// Rust's `i8`
        #[doc(alias = "ncclInt8")]
        #[doc(alias = "ncclChar")]
        Int8 = ncclInt8 as "int8" or "i8",
        /// Rust's `u8`
        #[doc(alias = "ncclUint8")]
        Uint8 = ncclUint8 as "uint8" or "u8",
        /// Rust's `i32`
        #[doc(alias = "ncclInt32")]
        #[doc(alias = "ncclInt")]
        Int32 = ncclInt32 as "int32" or "i32",
        /// Rust's `u32`
        #[doc(alias = "ncclUint32")]
        Uint32 = ncclUint32 as "uint32" or "u32",
        /// Rust's `i64`
        #[doc(alias = "ncclInt64")]
        Int64 = ncclInt64 as "int64" or "i64",
        /// Rust's `u64`
        #[doc(alias = "ncclUint64")]
        Uint64 = ncclUint64 as "uint64" or "u64",
        /// IEEE 754 binary16 (`half::f16`)
        #[doc(alias = "ncclFloat16")]
        #[doc(alias = "ncclHalf")]
        Float16 = ncclFloat16 as "half" or "f16",
        /// Rust's `f32`
        #[doc(alias = "ncclFloat32")]
        #[doc(alias = "ncclFloat")]
        Float32 = ncclFloat32 as "float" or "f32",
        /// Rust's `f64`
        #[doc(alias = "ncclFloat64")]
        #[doc(alias = "ncclDouble")]
        Float64 = ncclFloat64 as "double" or "f64",
        /// bfloat16, the upper half of an `f32` (`half::bf16`)
        #[doc(alias = "ncclBfloat16")]
        Bfloat16 = ncclBfloat16 as "bfloat16" or "bf16",
        /// An 8-bit float with 4 bits of exponent and 3 of mantissa; since NCCL 2.24.3
        #[doc(alias = "ncclFloat8e4m3")]
        Float8e4m3 = ncclFloat8e4m3 as "f8e4m3",
        /// An 8-bit float with 5 bits of exponent and 2 of mantissa; since NCCL 2.24.3
        #[doc(alias = "ncclFloat8e5m2")]
        Float8e5m2 = ncclFloat8e5m2 as "f8e5m2",
    }

    expected: "a data type";
}

impl DataType {
    /// Returns the size of an element in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 | Self::Float8e4m3 | Self::Float8e5m2 => 1,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }
}

/// A Rust type that buffers can have as elements: a primitive number of 8, 32 or 64 bits. The feature `half` adds `half::f16` and
/// `half::bf16`; the feature `float8` adds `float8::F8E4M3` and `float8::F8E5M2`, which need NCCL 2.24.3.
///
/// ```
/// use libnccl::{DataType, Element};
///
/// fn bytes<T: Element>(elements: &[T]) -> usize {
///     elements.len() * T::DATA_TYPE.size()
/// }
/// assert_eq!((bytes(&[1.0_f32; 3]), u64::DATA_TYPE), (12, DataType::Uint64));
/// ```
///
/// # Safety
/// - The type must have the size and representation of [`DATA_TYPE`](Self::DATA_TYPE).
/// - Every bit pattern must be a valid value: NCCL may write any bit pattern.
/// - All bytes of every value must be initialized: no padding and no `MaybeUninit`, as NCCL reads all bytes.
///
/// The last two conditions are also conditions of bytemuck's `Pod`.
#[diagnostic::on_unimplemented(
    message = "NCCL has no data type for `{Self}`",
    label = "not an element type",
    note = "elements are i8, u8, i32, u32, i64, u64, f32 and f64; 16-bit floats need the feature `half`, 8-bit floats `float8`"
)]
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// NCCL's data type for this Rust type.
    const DATA_TYPE: DataType;
}

/// Implements [`Element`] for primitives, and for the types of optional crates under their features.
macro_rules! elements {
    ($($(#[$feature:meta])* $type:ty => $data_type:ident),* $(,)?) => {$(
        $(#[$feature])*
        // SAFETY: a number of exactly this representation, of which every bit pattern is valid and all bytes are
        // initialized: a primitive, or a transparent wrapper of the unsigned integer of its size.
        unsafe impl Element for $type {
            const DATA_TYPE: DataType = DataType::$data_type;
        }

        $(#[$feature])*
        const _: () = {
            let size = DataType::$data_type.size();
            assert!(size_of::<$type>() == size, "the size differs from the size of NCCL's type");
            assert!(align_of::<$type>() <= size, "NCCL aligns elements only to their size");
        };
    )*};
}

elements! {
    i8 => Int8,
    u8 => Uint8,
    i32 => Int32,
    u32 => Uint32,
    i64 => Int64,
    u64 => Uint64,
    f32 => Float32,
    f64 => Float64,
    #[cfg(feature = "half")] half::f16 => Float16,
    #[cfg(feature = "half")] half::bf16 => Bfloat16,
    #[cfg(feature = "float8")] float8::F8E4M3 => Float8e4m3,
    #[cfg(feature = "float8")] float8::F8E5M2 => Float8e5m2,
}
