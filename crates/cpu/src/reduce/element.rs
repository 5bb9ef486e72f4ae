//! Arithmetic on one element, as NCCL defines it for each data type.

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
    fn reciprocal(ranks: usize) -> Option<Self>;

    /// Divides a sum if [`reciprocal`](Self::reciprocal) returns `None`.
    fn divide(self, ranks: usize) -> Self;

    /// Returns the element in the first bytes, repeated if the type holds several elements.
    fn first(bytes: [u8; 8]) -> Self;

    /// Returns the (first) element's bytes, padded with zeros.
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
        #[inline(always)]
        pub(crate) fn $maximum(left: $bits, right: $bits) -> $bits {
            const MAGNITUDE: $bits = <$bits>::MAX >> 1;
            let key = |bits: $bits| {
                bits.cast_signed() ^ ((bits.cast_signed() >> (<$bits>::BITS - 1)) & MAGNITUDE.cast_signed())
            };
            let other = (left & MAGNITUDE > $infinity)
                | ((right & MAGNITUDE <= $infinity) & (key(left) < key(right)));
            if other { right } else { left }
        }

        #[inline(always)]
        pub(crate) fn $minimum(left: $bits, right: $bits) -> $bits {
            const MAGNITUDE: $bits = <$bits>::MAX >> 1;
            let key = |bits: $bits| {
                bits.cast_signed() ^ ((bits.cast_signed() >> (<$bits>::BITS - 1)) & MAGNITUDE.cast_signed())
            };
            let other = (left & MAGNITUDE > $infinity)
                | ((right & MAGNITUDE <= $infinity) & (key(right) < key(left)));
            if other { right } else { left }
        }
    };
}
pub(crate) use extremes;

macro_rules! integers {
    ($($type:ty: $divide:expr),*) => {$(
        impl Element for $type {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                self.min(other)
            }

            fn reciprocal(_: usize) -> Option<Self> {
                None
            }

            #[inline(always)]
            fn divide(self, ranks: usize) -> Self {
                let divide: fn(Self, usize) -> Self = $divide;
                divide(self, ranks)
            }

            fn first(bytes: [u8; 8]) -> Self {
                Self::from_ne_bytes(padded(&bytes))
            }

            fn to_padded(self) -> [u8; 8] {
                padded(&self.to_ne_bytes())
            }
        }
    )*};
}

macro_rules! floats {
    ($($type:ty: $maximum:ident, $minimum:ident),*) => {$(
        impl Element for $type {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self * other
            }

            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                Self::from_bits($maximum(self.to_bits(), other.to_bits()))
            }

            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                Self::from_bits($minimum(self.to_bits(), other.to_bits()))
            }

            fn reciprocal(ranks: usize) -> Option<Self> {
                Some(1.0 / ranks as Self)
            }

            #[inline(always)]
            fn divide(self, _: usize) -> Self {
                self
            }

            fn first(bytes: [u8; 8]) -> Self {
                Self::from_ne_bytes(padded(&bytes))
            }

            fn to_padded(self) -> [u8; 8] {
                padded(&self.to_ne_bytes())
            }
        }
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
