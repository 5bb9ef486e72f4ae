//! Arithmetic on elements, as NCCL defines it for each data type, and the small floats: binary16, bfloat16 and the 8-bit floats.
//!
//! Small floats are computed in f32 and rounded. Double rounding makes no difference, because an f32 has at least twice their
//! precision plus two bits. Subnormal products of bfloat16, which has the same exponents as f32, need another argument: from half
//! the smallest bfloat16 upwards, an f32 holds all 16 bits of a product, and smaller products become 0 either way.
//!
//! Many small floats are computed together, so that every conversion is a separate, vectorized loop. Halves are converted by the
//! processor's own instructions. docs/cpu-performance.md lists the gain, also compared with the crate half.
#![allow(unsafe_code)]

/// An element of a buffer, or several elements that are computed together. Buffers are bytes, so elements need no alignment. Each
/// type has `from_ne_bytes` and `to_ne_bytes`.
///
/// All element functions are inlined into the loops, which are compiled for several CPUs.
pub(crate) trait Element: Copy {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn maximum(self, other: Self) -> Self;
    fn minimum(self, other: Self) -> Self;

    /// Returns the factor by which an average over `ranks` multiplies each input before summing, or `None` if it divides the sum.
    fn reciprocal(_ranks: usize) -> Option<Self> {
        None
    }

    /// Divides a sum if [`reciprocal`](Self::reciprocal) returns `None`.
    #[inline(always)]
    fn divide(self, _ranks: usize) -> Self {
        self
    }

    /// Returns the element in the first bytes, repeated if the type holds several elements.
    fn first(bytes: [u8; 8]) -> Self;

    /// Returns the first element's bytes, padded with zeros.
    fn to_padded(self) -> [u8; 8];
}

/// Returns at most `N` bytes, padded with zeros.
#[inline(always)]
pub(crate) fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut padded = [0; N];
    for (padded, byte) in padded.iter_mut().zip(bytes) {
        *padded = *byte;
    }
    padded
}

/// Defines the maximum and minimum of two floats, given and returned as bits. A NaN is ignored unless both are NaN, and -0.0 is
/// less than 0.0. The bits are compared without a branch, as integers in the order of the floats.
macro_rules! extremes {
    ($maximum:ident, $minimum:ident, $bits:ty, $infinity:expr) => {
        extremes!(@ $maximum, $bits, $infinity, <);
        extremes!(@ $minimum, $bits, $infinity, >);
    };
    (@ $name:ident, $bits:ty, $infinity:expr, $loses:tt) => {
        #[inline(always)]
        fn $name(left: $bits, right: $bits) -> $bits {
            const MAGNITUDE: $bits = <$bits>::MAX >> 1;
            let key = |bits: $bits| {
                bits.cast_signed() ^ ((bits.cast_signed() >> (<$bits>::BITS - 1)) & MAGNITUDE.cast_signed())
            };
            let other = (left & MAGNITUDE > $infinity)
                | ((right & MAGNITUDE <= $infinity) & (key(left) $loses key(right)));
            if other { right } else { left }
        }
    };
}
/// Implements [`Element`] with an expression for each function of two elements, and the other functions of the trait.
macro_rules! element {
    ($type:ty: |$one:ident, $other:ident| $add:expr, $multiply:expr, $maximum:expr, $minimum:expr; $($functions:tt)*) => {
        impl Element for $type {
            element!(@ add, $one, $other, $add);
            element!(@ multiply, $one, $other, $multiply);
            element!(@ maximum, $one, $other, $maximum);
            element!(@ minimum, $one, $other, $minimum);
            $($functions)*
        }
    };
    (@ $name:ident, $one:ident, $other:ident, $value:expr) => {
        #[inline(always)]
        fn $name(self, $other: Self) -> Self {
            let $one = self;
            $value
        }
    };
}

/// Defines the conversions of one number from and to the first bytes.
macro_rules! scalar {
    () => {
        fn first(bytes: [u8; 8]) -> Self {
            Self::from_ne_bytes(padded(&bytes))
        }

        fn to_padded(self) -> [u8; 8] {
            padded(&self.to_ne_bytes())
        }
    };
}

macro_rules! integers {
    ($($type:ty: $divide:expr),*) => {$(
        element!($type: |one, other| one.wrapping_add(other), one.wrapping_mul(other), one.max(other), one.min(other);
            #[inline(always)]
            fn divide(self, ranks: usize) -> Self {
                let divide: fn(Self, usize) -> Self = $divide;
                divide(self, ranks)
            }

            scalar!();
        );
    )*};
}

macro_rules! floats {
    ($($type:ty: $maximum:ident, $minimum:ident),*) => {$(
        element!($type: |one, other|
            one + other,
            one * other,
            Self::from_bits($maximum(one.to_bits(), other.to_bits())),
            Self::from_bits($minimum(one.to_bits(), other.to_bits()));

            fn reciprocal(ranks: usize) -> Option<Self> {
                Some(1.0 / ranks as Self)
            }

            scalar!();
        );
    )*};
}

// There are no vector instructions for integer division, but there are for floats. The quotient of integers of fewer than 53 bits
// is never rounded up to an integer: its distance to the next integer exceeds the precision of an f64.
integers!(
    i8: |sum, ranks| (f64::from(sum) / ranks as f64) as i8,
    u8: |sum, ranks| (f64::from(sum) / ranks as f64) as u8,
    i32: |sum, ranks| (f64::from(sum) / ranks as f64) as i32,
    u32: |sum, ranks| (f64::from(sum) / ranks as f64) as u32,
    i64: |sum, ranks| sum / ranks as i64,
    u64: |sum, ranks| sum / ranks as u64
);
extremes!(larger32, smaller32, u32, f32::INFINITY.to_bits());
extremes!(larger64, smaller64, u64, f64::INFINITY.to_bits());
floats!(f32: larger32, smaller32, f64: larger64, smaller64);

const LANES: usize = 32;

#[cfg(target_arch = "x86_64")]
mod f16c {
    use std::arch::x86_64::{__m128i, __m256};
    use std::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph};
    use std::mem::transmute;

    use super::LANES;

    #[inline]
    #[target_feature(enable = "f16c")]
    pub(super) fn widen(halves: [u16; LANES]) -> [f32; LANES] {
        let mut values = [0.0; LANES];
        for (values, halves) in values.as_chunks_mut().0.iter_mut().zip(halves.as_chunks().0) {
            // SAFETY: both are 16 bytes, and any bytes are valid.
            let halves = unsafe { transmute::<[u16; 8], __m128i>(*halves) };
            // SAFETY: both are 32 bytes, and any bytes are valid.
            *values = unsafe { transmute::<__m256, [f32; 8]>(_mm256_cvtph_ps(halves)) };
        }
        values
    }

    #[inline]
    #[target_feature(enable = "f16c")]
    pub(super) fn narrow(values: [f32; LANES]) -> [u16; LANES] {
        let mut halves = [0; LANES];
        for (halves, values) in halves.as_chunks_mut().0.iter_mut().zip(values.as_chunks().0) {
            // SAFETY: both are 32 bytes, and any bytes are valid.
            let values = unsafe { transmute::<[f32; 8], __m256>(*values) };
            let nearest = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values);
            // SAFETY: both are 16 bytes, and any bytes are valid.
            *halves = unsafe { transmute::<__m128i, [u16; 8]>(nearest) };
        }
        halves
    }
}

/// The sign bit of an f32.
const SIGN: u32 = 1 << 31;
/// The magnitude of an f32's infinity. Only NaNs have a larger magnitude.
const INFINITY: u32 = f32::INFINITY.to_bits();

#[inline(always)]
fn widen(half: u16) -> f32 {
    /// The smallest normal half as an f32.
    const NORMAL: u32 = 113 << 23;
    let magnitude = u32::from(half & 0x7fff) << 13;
    // Computed with a leading one, which is then subtracted.
    let subnormal = f32::from_bits(magnitude + NORMAL) - f32::from_bits(NORMAL);
    let bits = match half & 0x7c00 {
        0 => subnormal.to_bits(),
        0x7c00 => magnitude | INFINITY,
        _ => magnitude + (112 << 23),
    };
    f32::from_bits(bits | u32::from(half >> 15) << 31)
}

/// Rounds to the nearest half, ties to even.
#[inline(always)]
fn narrow(value: f32) -> u16 {
    let magnitude = value.to_bits() & !SIGN;
    let bits = if magnitude > INFINITY {
        0x7e00
    } else if magnitude < 113 << 23 {
        // The last bit of 0.5 has the same value as the last bit of a subnormal half, so the sum is rounded there.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits()
    } else {
        let odd = (magnitude >> 13) & 1;
        ((magnitude - (112 << 23) + 0xfff + odd) >> 13).min(0x7c00)
    };
    (bits | value.to_bits() >> 31 << 15) as u16
}

/// Converts each element of an array. Uses a loop because `map` is not always inlined.
macro_rules! each {
    ($elements:expr, $function:ident) => {{
        let (elements, mut result) = ($elements, [Default::default(); LANES]);
        for index in 0..LANES {
            result[index] = $function(elements[index]);
        }
        result
    }};
}

/// Converts halves to f32.
#[inline(always)]
fn values(halves: [u16; LANES]) -> [f32; LANES] {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("f16c") {
        // SAFETY: the CPU has the instructions that the function is compiled for.
        return unsafe { f16c::widen(halves) };
    }
    each!(halves, widen)
}

/// Rounds f32 to the nearest halves, ties to even.
#[inline(always)]
fn nearest(values: [f32; LANES]) -> [u16; LANES] {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("f16c") {
        // SAFETY: the CPU has the instructions that the function is compiled for.
        return unsafe { f16c::narrow(values) };
    }
    each!(values, narrow)
}

/// Applies `$function` to the elements of two arrays.
macro_rules! pairwise {
    ($left:expr, $right:expr, |$one:ident, $other:ident| $function:expr) => {{
        let (left, right, mut result) = ($left, $right, [Default::default(); LANES]);
        for index in 0..LANES {
            let ($one, $other) = (left[index], right[index]);
            result[index] = $function;
        }
        result
    }};
}

/// Defines the conversions of `LANES` elements from and to bytes.
macro_rules! bytes {
    ($type:ident, $bits:ty) => {
        impl $type {
            #[inline(always)]
            pub(super) fn from_ne_bytes(bytes: [u8; LANES * size_of::<$bits>()]) -> Self {
                let mut result = [0; LANES];
                for (result, bytes) in result.iter_mut().zip(bytes.as_chunks().0) {
                    *result = <$bits>::from_ne_bytes(*bytes);
                }
                Self(result)
            }

            #[inline(always)]
            pub(super) fn to_ne_bytes(self) -> [u8; LANES * size_of::<$bits>()] {
                let mut bytes = [0; LANES * size_of::<$bits>()];
                for (bytes, bits) in bytes.as_chunks_mut().0.iter_mut().zip(self.0) {
                    *bytes = bits.to_ne_bytes();
                }
                bytes
            }
        }
    };
}

/// Defines the functions of [`Element`] that are equal for all types of `LANES` elements.
macro_rules! lanes {
    ($bits:ty) => {
        fn reciprocal(ranks: usize) -> Option<Self> {
            Some(Self([Self::one(1.0 / ranks as f32); LANES]))
        }

        fn first(bytes: [u8; 8]) -> Self {
            Self([<$bits>::from_ne_bytes(padded(&bytes)); LANES])
        }

        fn to_padded(self) -> [u8; 8] {
            padded(&self.0[0].to_ne_bytes())
        }
    };
}

extremes!(larger_half, smaller_half, u16, 0x7c00);
extremes!(larger_bfloat16, smaller_bfloat16, u16, 0x7f80);

/// `LANES` elements of IEEE 754 binary16.
#[derive(Clone, Copy)]
pub(crate) struct Float16([u16; LANES]);

bytes!(Float16, u16);

impl Float16 {
    fn one(value: f32) -> u16 {
        narrow(value)
    }
}

element!(Float16: |left, right|
    Self(nearest(pairwise!(values(left.0), values(right.0), |one, other| one + other))),
    Self(nearest(pairwise!(values(left.0), values(right.0), |one, other| one * other))),
    Self(pairwise!(left.0, right.0, |one, other| larger_half(one, other))),
    Self(pairwise!(left.0, right.0, |one, other| smaller_half(one, other)));
    lanes!(u16);
);

/// `LANES` elements of bfloat16: the upper halves of f32.
#[derive(Clone, Copy)]
pub(crate) struct Bfloat16([u16; LANES]);

bytes!(Bfloat16, u16);

impl Bfloat16 {
    #[inline(always)]
    fn one(value: f32) -> u16 {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        let nan = bits & !SIGN > INFINITY;
        (if nan { 0x7fc0_0000 } else { rounded } >> 16) as u16
    }

    #[inline(always)]
    fn value(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }
}

element!(Bfloat16: |left, right|
    Self(pairwise!(left.0, right.0, |one, other| Self::one(Self::value(one) + Self::value(other)))),
    Self(pairwise!(left.0, right.0, |one, other| Self::one(Self::value(one) * Self::value(other)))),
    Self(pairwise!(left.0, right.0, |one, other| larger_bfloat16(one, other))),
    Self(pairwise!(left.0, right.0, |one, other| smaller_bfloat16(one, other)));
    lanes!(u16);
);

/// Defines a type of `LANES` 8-bit floats. The bits are a half's bits from `$shift` on; the half is `$scale` times smaller. A result that is too large becomes the largest number, `$largest`. Magnitudes from `$nan` on are
/// NaN.
///
/// NCCL rounds results to a half and then to 8 bits. Here the half holds the scaled value, which makes no difference.
macro_rules! float8 {
    ($($(#[$comment:meta])* $type:ident: $shift:expr, $scale:expr, $largest:expr, $nan:expr;)*) => {$(
        $(#[$comment])*
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct $type([u8; LANES]);

        bytes!($type, u8);

        impl $type {
            /// The magnitude of the largest number.
            const LARGEST: u16 = $largest;

            fn one(value: f32) -> u8 {
                let value = value / $scale;
                // At least the exponent of the smallest normal half.
                let exponent = ((value.to_bits() & INFINITY) >> 23).max(113);
                let unit = f32::from_bits((exponent - (10 - $shift)) << 23);
                // A half holds all remaining bits.
                Self::new([narrow((value / unit).round_ties_even() * unit); LANES]).0[0]
            }

            #[inline(always)]
            fn new(halves: [u16; LANES]) -> Self {
                let mut result = [0; LANES];
                for (result, half) in result.iter_mut().zip(halves) {
                    let magnitude = half & 0x7fff;
                    let odd = (magnitude >> $shift) & 1;
                    let rounded = (magnitude + ((1 << ($shift - 1)) - 1) + odd) >> $shift;
                    let number = if rounded < Self::LARGEST { rounded } else { Self::LARGEST };
                    let number = if magnitude > 0x7c00 { $nan } else { number };
                    *result = (number | (half >> 15 << 7)) as u8;
                }
                Self(result)
            }

            #[inline(always)]
            fn halves(self) -> [u16; LANES] {
                let mut halves = [0; LANES];
                for (half, bits) in halves.iter_mut().zip(self.0) {
                    let magnitude = u16::from(bits & 0x7f);
                    let number = if magnitude < $nan { magnitude << $shift } else { 0x7e00 };
                    *half = number | (u16::from(bits >> 7) << 15);
                }
                halves
            }
        }

        element!($type: |left, right|
            Self::new(nearest(pairwise!(values(left.halves()), values(right.halves()), |one, other| one + other))),
            Self::new(nearest(pairwise!(values(left.halves()), values(right.halves()), |one, other| one * other * $scale))),
            Self::new(pairwise!(left.halves(), right.halves(), |one, other| larger_half(one, other))),
            Self::new(pairwise!(left.halves(), right.halves(), |one, other| smaller_half(one, other)));
            lanes!(u8);
        );
    )*};
}

float8!(
    /// 4 exponent bits, 3 mantissa bits, and no infinity.
    Float8e4m3: 7, 256.0, 0x7e, 0x7f;
    /// 5 exponent bits and 2 mantissa bits.
    Float8e5m2: 8, 1.0, 0x7b, 0x7d;
);

#[cfg(test)]
mod tests {
    use super::*;

    fn same(one: f32, other: f32) -> bool {
        one.to_bits() == other.to_bits() || one.is_nan() && other.is_nan()
    }

    #[test]
    fn half_of_any_bits_has_its_value() {
        for bits in 0..=u16::MAX {
            let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 0x3ff) / 1024.0);
            let magnitude = match exponent {
                0 => fraction * 2f32.powi(-14),
                31 if fraction == 0.0 => f32::INFINITY,
                31 => f32::NAN,
                _ => (1.0 + fraction) * 2f32.powi(exponent - 15),
            };
            let value = if bits >> 15 == 0 { magnitude } else { -magnitude };
            assert!(same(widen(bits), value), "{bits:#x}");
            assert!(same(values([bits; LANES])[LANES - 1], value), "{bits:#x}, by the CPU");
        }
    }

    #[test]
    fn value_is_rounded_to_the_nearest_half() {
        let check = |value: f32, half: u16| {
            let expected = [half, half | 0x8000];
            assert_eq!([narrow(value), narrow(-value)], expected, "{value:e}");
            assert_eq!([nearest([value; LANES])[0], nearest([-value; LANES])[0]], expected, "{value:e}");
        };
        for half in 0..0x7c00 {
            // Infinity counts as the value after the largest half.
            let (value, next) = (widen(half), if half == 0x7bff { 65536.0 } else { widen(half + 1) });
            let middle = f32::midpoint(value, next);
            check(value, half);
            check(middle.next_down(), half);
            check(middle, half + half % 2);
            check(middle.next_up(), half + 1);
        }
        check(f32::from_bits(1), 0);
        check(f32::MAX, 0x7c00);
        check(f32::INFINITY, 0x7c00);
        assert!(widen(narrow(f32::NAN)).is_nan() && widen(nearest([-f32::NAN; LANES])[0]).is_nan());
    }
}
