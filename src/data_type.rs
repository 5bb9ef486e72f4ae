#![allow(unsafe_code)] // `Element` is an unsafe trait.

use std::fmt;

use crate::sys::ncclDataType_t;

/// The element types that NCCL computes with.
#[doc(alias = "ncclDataType_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DataType {
    /// `i8`
    Int8,
    /// `u8`
    Uint8,
    /// `i32`
    Int32,
    /// `u32`
    Uint32,
    /// `i64`
    Int64,
    /// `u64`
    Uint64,
    /// IEEE 754 binary16
    Float16,
    /// `f32`
    Float32,
    /// `f64`
    Float64,
    /// The upper half of an `f32`
    Bfloat16,
    /// 8 bits, 4 of exponent and 3 of mantissa; since NCCL 2.24.3
    Float8e4m3,
    /// 8 bits, 5 of exponent and 2 of mantissa; since NCCL 2.24.3
    Float8e5m2,
}

impl DataType {
    /// Every data type, in NCCL's order.
    pub const ALL: [Self; 12] = [
        Self::Int8,
        Self::Uint8,
        Self::Int32,
        Self::Uint32,
        Self::Int64,
        Self::Uint64,
        Self::Float16,
        Self::Float32,
        Self::Float64,
        Self::Bfloat16,
        Self::Float8e4m3,
        Self::Float8e5m2,
    ];

    /// Bytes an element takes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 | Self::Float8e4m3 | Self::Float8e5m2 => 1,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }

    /// NCCL's constant.
    #[must_use]
    pub const fn as_raw(self) -> ncclDataType_t {
        match self {
            Self::Int8 => ncclDataType_t::ncclInt8,
            Self::Uint8 => ncclDataType_t::ncclUint8,
            Self::Int32 => ncclDataType_t::ncclInt32,
            Self::Uint32 => ncclDataType_t::ncclUint32,
            Self::Int64 => ncclDataType_t::ncclInt64,
            Self::Uint64 => ncclDataType_t::ncclUint64,
            Self::Float16 => ncclDataType_t::ncclFloat16,
            Self::Float32 => ncclDataType_t::ncclFloat32,
            Self::Float64 => ncclDataType_t::ncclFloat64,
            Self::Bfloat16 => ncclDataType_t::ncclBfloat16,
            Self::Float8e4m3 => ncclDataType_t::ncclFloat8e4m3,
            Self::Float8e5m2 => ncclDataType_t::ncclFloat8e5m2,
        }
    }
}

/// The name that nccl-tests uses: `int8`, `float`, `double`, `bfloat16`, ...
impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
            Self::Int32 => "int32",
            Self::Uint32 => "uint32",
            Self::Int64 => "int64",
            Self::Uint64 => "uint64",
            Self::Float16 => "half",
            Self::Float32 => "float",
            Self::Float64 => "double",
            Self::Bfloat16 => "bfloat16",
            Self::Float8e4m3 => "f8e4m3",
            Self::Float8e5m2 => "f8e5m2",
        })
    }
}

/// A Rust type that NCCL can compute with.
///
/// # Safety
/// The type must have the size and representation of [`DATA_TYPE`](Self::DATA_TYPE), every bit pattern must
/// be a value of it, and it must be plain data: NCCL overwrites elements with whatever it computes.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// How NCCL calls it.
    const DATA_TYPE: DataType;
}

macro_rules! elements {
    ($($type:ty => $data_type:ident),* $(,)?) => {$(
        // SAFETY: a primitive number of exactly this size and representation.
        unsafe impl Element for $type {
            const DATA_TYPE: DataType = DataType::$data_type;
        }
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
}

#[cfg(test)]
mod tests {
    use super::{DataType, Element};

    #[test]
    fn elements_have_their_data_types_size() {
        fn check<T: Element>() {
            assert_eq!(T::DATA_TYPE.size(), size_of::<T>());
        }
        check::<i8>();
        check::<u8>();
        check::<i32>();
        check::<u32>();
        check::<i64>();
        check::<u64>();
        check::<f32>();
        check::<f64>();
    }

    #[test]
    fn all_are_nccls_in_nccls_order() {
        for (value, data_type) in DataType::ALL.into_iter().enumerate() {
            assert_eq!(data_type.as_raw().0 as usize, value);
        }
        assert_eq!(DataType::ALL.len(), crate::sys::ncclDataType_t::ncclNumTypes.0 as usize);
    }
}
