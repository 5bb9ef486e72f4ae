use std::fmt::Display;

use libnccl::Element;

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
        }
    )*};
}

/// Implements [`Number`] with the bits of the significand, including the implicit one, and the largest exponent.
macro_rules! narrow_floats {
    ($($type:ty: $mantissa:literal, $exponent:literal;)*) => {$(
        impl Number for $type {
            const WHOLE: i64 = 1 << $mantissa;
            const DOUBLINGS: usize = $exponent;

            fn from_integer(value: i64) -> Self {
                Self::from_f32(value as f32)
            }

            fn quotient(value: i64, divisor: usize) -> Self {
                let inverse = Self::from_f32(1.0 / divisor as f32);
                Self::from_f32(value as f32 * inverse.to_f32())
            }
        }
    )*};
}

integers!(i8 u8 i32 u32 i64 u64);
floats!(f32 f64);
narrow_floats! {
    half::f16: 11, 15;
    half::bf16: 8, 127;
    float8::F8E4M3: 4, 8;
    float8::F8E5M2: 3, 15;
}

/// Calls a macro with every type that implements [`Number`].
macro_rules! for_each_number {
    ($macro:ident) => {
        $macro![
            i8 u8 i32 u32 i64 u64 half::f16 f32 f64 half::bf16 float8::F8E4M3 float8::F8E5M2
        ]
    };
}
pub(crate) use for_each_number;
