//! Numbers of NCCL's data types, whose type is known at run time: their bytes, and NCCL's arithmetic.

use std::fmt::{self, Display, Formatter};

use anyhow::{Result, bail};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use libnccl::DataType;

/// The arithmetic of a data type, to predict results.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Arithmetic {
    pub(crate) data_type: DataType,
    /// The limit up to which the type represents all whole numbers. Integers have none, as they wrap.
    pub(crate) whole: i64,
    /// The number of times that 1 can be doubled without overflow.
    pub(crate) doublings: usize,
    is_integer: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    Integer(i128),
    Float64(f64),
    /// A float of at most 32 bits, which is shown with fewer digits.
    Float(f64),
}

impl Arithmetic {
    pub(crate) fn new(data_type: DataType) -> Result<Self> {
        let float = |mantissa: u32, doublings| (1 << mantissa, doublings, false);
        let (whole, doublings, is_integer) = match data_type {
            DataType::Int8 | DataType::Uint8 | DataType::Int32 => (i64::MAX, usize::MAX, true),
            DataType::Uint32 | DataType::Int64 | DataType::Uint64 => (i64::MAX, usize::MAX, true),
            DataType::Float64 => float(f64::MANTISSA_DIGITS, 1023),
            DataType::Float32 => float(f32::MANTISSA_DIGITS, 127),
            DataType::Float16 => float(f16::MANTISSA_DIGITS, 15),
            DataType::Bfloat16 => float(bf16::MANTISSA_DIGITS, 127),
            DataType::Float8e4m3 => float(4, 8),
            DataType::Float8e5m2 => float(3, 15),
            _ => bail!("no arithmetic for {data_type}"),
        };
        Ok(Self { data_type, whole, doublings, is_integer })
    }

    pub(crate) fn size(self) -> usize {
        self.data_type.size()
    }

    /// Returns the bytes of a whole number, followed by zeros. Integers wrap.
    pub(crate) fn integer(self, value: i64) -> [u8; 8] {
        match self.data_type {
            DataType::Int8 | DataType::Uint8 => padded(&(value as u8).to_ne_bytes()),
            DataType::Int32 | DataType::Uint32 => padded(&(value as u32).to_ne_bytes()),
            DataType::Int64 | DataType::Uint64 => value.to_ne_bytes(),
            _ => self.float(value as f64),
        }
    }

    /// Returns the bytes of the nearest float, followed by zeros.
    fn float(self, value: f64) -> [u8; 8] {
        let narrow = value as f32;
        match self.data_type {
            DataType::Float16 => padded(&f16::from_f32(narrow).to_ne_bytes()),
            DataType::Bfloat16 => padded(&bf16::from_f32(narrow).to_ne_bytes()),
            DataType::Float8e4m3 => padded(&[F8E4M3::from_f32(narrow).to_bits()]),
            DataType::Float8e5m2 => padded(&[F8E5M2::from_f32(narrow).to_bits()]),
            DataType::Float32 => padded(&narrow.to_ne_bytes()),
            _ => value.to_ne_bytes(),
        }
    }

    /// Returns `value / divisor` as NCCL computes averages: truncated for integers, multiplied by the rounded inverse for
    /// floats. The value is a power of two.
    pub(crate) fn quotient(self, value: i64, divisor: usize) -> [u8; 8] {
        if self.is_integer {
            return self.integer(value / divisor as i64);
        }
        self.float(value as f64 * self.number(&self.float(1.0 / divisor as f64)).to_f64())
    }

    /// Returns the number with these bytes, of which the first ones count.
    pub(crate) fn number(self, bytes: &[u8]) -> Number {
        let float = |value: f32| Number::Float(value.into());
        match self.data_type {
            DataType::Int8 => Number::Integer(i8::from_ne_bytes(first(bytes)).into()),
            DataType::Uint8 => Number::Integer(u8::from_ne_bytes(first(bytes)).into()),
            DataType::Int32 => Number::Integer(i32::from_ne_bytes(first(bytes)).into()),
            DataType::Uint32 => Number::Integer(u32::from_ne_bytes(first(bytes)).into()),
            DataType::Int64 => Number::Integer(i64::from_ne_bytes(first(bytes)).into()),
            DataType::Uint64 => Number::Integer(u64::from_ne_bytes(first(bytes)).into()),
            DataType::Float16 => float(f16::from_ne_bytes(first(bytes)).to_f32()),
            DataType::Bfloat16 => float(bf16::from_ne_bytes(first(bytes)).to_f32()),
            DataType::Float8e4m3 => float(F8E4M3::from_bits(bytes[0]).to_f32()),
            DataType::Float8e5m2 => float(F8E5M2::from_bits(bytes[0]).to_f32()),
            DataType::Float32 => float(f32::from_ne_bytes(first(bytes))),
            _ => Number::Float64(f64::from_ne_bytes(first(bytes))),
        }
    }
}

impl Number {
    fn to_f64(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Float64(value) | Self::Float(value) => value,
        }
    }
}

impl Display for Number {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => value.fmt(f),
            Self::Float64(value) => value.fmt(f),
            Self::Float(value) => (*value as f32).fmt(f),
        }
    }
}

fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.first_chunk().copied().unwrap_or([0; N])
}

fn padded(bytes: &[u8]) -> [u8; 8] {
    let mut padded = [0; 8];
    padded[..bytes.len()].copy_from_slice(bytes);
    padded
}

#[cfg(test)]
#[path = "../../../tests/unit/number.rs"]
pub(crate) mod tests;
