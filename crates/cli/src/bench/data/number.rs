use std::fmt::Display;

use anyhow::{Context, Result};
use libnccl::{DataType, Element};

/// A Rust type of a data type of NCCL, with the arithmetic to predict results.
pub(crate) trait Number: Element + PartialEq + Display {
    /// The limit up to which the type represents all whole numbers. Integers have none, as they wrap.
    const WHOLE: i64;
    /// The number of times that 1 can be doubled without overflow.
    const DOUBLINGS: usize;

    /// Converts a whole number; integers wrap.
    fn from_integer(value: i64) -> Self;

    /// Returns `value / divisor` as NCCL computes averages: truncated for integers, multiplied by the rounded inverse
    /// for others. The value is a power of two.
    fn quotient(value: i64, divisor: usize) -> Self;

    /// Returns the number in the first bytes.
    fn from_bytes(bytes: [u8; 8]) -> Self;

    /// Returns the number's bytes, followed by zeros.
    fn to_bytes(self) -> [u8; 8];
}

/// The functions of [`Number`] for a data type that is known at run time, from and to bytes. What measures and checks is
/// thus compiled once, not for each type.
#[derive(Debug)]
pub(crate) struct Arithmetic {
    pub(crate) data_type: DataType,
    pub(crate) whole: i64,
    pub(crate) doublings: usize,
    pub(crate) from_integer: fn(i64) -> [u8; 8],
    pub(crate) quotient: fn(i64, usize) -> [u8; 8],
    pub(crate) is_equal: fn([u8; 8], [u8; 8]) -> bool,
    pub(crate) to_text: fn([u8; 8]) -> String,
}

impl Arithmetic {
    const fn of<T: Number>() -> Self {
        Self {
            data_type: T::DATA_TYPE,
            whole: T::WHOLE,
            doublings: T::DOUBLINGS,
            from_integer: |value| T::from_integer(value).to_bytes(),
            quotient: |value, divisor| T::quotient(value, divisor).to_bytes(),
            is_equal: |one, other| T::from_bytes(one) == T::from_bytes(other),
            to_text: |bytes| T::from_bytes(bytes).to_string(),
        }
    }

    /// Returns the functions for a data type.
    pub(crate) fn new(data_type: DataType) -> Result<&'static Self> {
        let found = ALL.iter().find(|arithmetic| arithmetic.data_type == data_type);
        found.with_context(|| format!("no Rust type for {data_type}"))
    }

    /// Returns the bytes of an element.
    pub(crate) fn size(&self) -> usize {
        self.data_type.size()
    }
}

/// Implements the conversions of a type that has them for arrays of its size.
macro_rules! conversions {
    () => {
        fn from_bytes(bytes: [u8; 8]) -> Self {
            let mut own = [0; size_of::<Self>()];
            own.copy_from_slice(&bytes[..size_of::<Self>()]);
            Self::from_ne_bytes(own)
        }

        fn to_bytes(self) -> [u8; 8] {
            let mut bytes = [0; 8];
            bytes[..size_of::<Self>()].copy_from_slice(&self.to_ne_bytes());
            bytes
        }
    };
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Number for $type {
            const WHOLE: i64 = i64::MAX;
            const DOUBLINGS: usize = usize::MAX;

            fn from_integer(value: i64) -> Self {
                value as Self
            }

            fn quotient(value: i64, divisor: usize) -> Self {
                (value / divisor as i64) as Self
            }

            conversions!();
        }
    )*};
}

macro_rules! floats {
    ($($type:ty)*) => {$(
        impl Number for $type {
            const WHOLE: i64 = 1 << <$type>::MANTISSA_DIGITS;
            const DOUBLINGS: usize = <$type>::MAX_EXP as usize - 1;

            fn from_integer(value: i64) -> Self {
                value as Self
            }

            fn quotient(value: i64, divisor: usize) -> Self {
                value as Self * (1.0 / divisor as Self)
            }

            conversions!();
        }
    )*};
}

/// Implements the arithmetic with the bits of the significand, including the implicit one, and the largest exponent.
macro_rules! narrow {
    ($mantissa:literal, $exponent:literal) => {
        const WHOLE: i64 = 1 << $mantissa;
        const DOUBLINGS: usize = $exponent;

        fn from_integer(value: i64) -> Self {
            Self::from_f32(value as f32)
        }

        fn quotient(value: i64, divisor: usize) -> Self {
            let inverse = Self::from_f32(1.0 / divisor as f32);
            Self::from_f32(value as f32 * inverse.to_f32())
        }
    };
}

macro_rules! halves {
    ($($type:ty: $mantissa:literal, $exponent:literal;)*) => {$(
        impl Number for $type {
            narrow!($mantissa, $exponent);
            conversions!();
        }
    )*};
}

macro_rules! bytes {
    ($($type:ty: $mantissa:literal, $exponent:literal;)*) => {$(
        impl Number for $type {
            narrow!($mantissa, $exponent);

            fn from_bytes(bytes: [u8; 8]) -> Self {
                Self::from_bits(bytes[0])
            }

            fn to_bytes(self) -> [u8; 8] {
                [self.to_bits(), 0, 0, 0, 0, 0, 0, 0]
            }
        }
    )*};
}

integers!(i8 u8 i32 u32 i64 u64);
floats!(f32 f64);
halves! {
    half::f16: 11, 15;
    half::bf16: 8, 127;
}
bytes! {
    float8::F8E4M3: 4, 8;
    float8::F8E5M2: 3, 15;
}

macro_rules! arithmetic {
    ($($type:ty)*) => {
        [$(Arithmetic::of::<$type>()),*]
    };
}

/// The functions of all data types.
static ALL: [Arithmetic; DataType::ALL.len()] =
    arithmetic![i8 u8 i32 u32 i64 u64 half::f16 f32 f64 half::bf16 float8::F8E4M3 float8::F8E5M2];

#[cfg(test)]
mod tests {
    use libnccl::DataType;

    use super::Arithmetic;

    #[test]
    fn every_type_converts_small_numbers_exactly() {
        for &data_type in DataType::ALL {
            let arithmetic = Arithmetic::new(data_type).unwrap();
            for number in 0..8 {
                let bytes = (arithmetic.from_integer)(number);
                assert_eq!((arithmetic.to_text)(bytes), number.to_string(), "{data_type}");
                assert!((arithmetic.is_equal)(bytes, bytes));
                assert!(!(arithmetic.is_equal)(bytes, (arithmetic.from_integer)(number + 1)), "{data_type}");
                assert!(bytes[arithmetic.size()..].iter().all(|byte| *byte == 0), "{data_type}");
            }
            assert_eq!((arithmetic.quotient)(8, 2), (arithmetic.from_integer)(4), "{data_type}");
        }
    }
}
