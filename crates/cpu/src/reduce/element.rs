//! Arithmetic on one element, as NCCL defines it for each data type, and loops over bytes that hold elements.

/// An element of a buffer, or several that are computed together. Buffers are bytes, so elements need no alignment.
///
/// All functions are inlined into the loops, which are compiled for several CPUs.
pub(crate) trait Element: Copy {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn maximum(self, other: Self) -> Self;
    fn minimum(self, other: Self) -> Self;

    /// Returns the factor by which an average over `ranks` multiplies each input before the sum, or `None` if it divides
    /// the sum.
    fn reciprocal(ranks: usize) -> Option<Self>;

    /// Divides a sum, where [`reciprocal`](Self::reciprocal) is `None`.
    fn divide(self, ranks: usize) -> Self;

    /// Returns the element in the first bytes, several times if this is several.
    fn first(bytes: [u8; 8]) -> Self;

    /// Returns the (first) element's bytes, padded with zeros.
    fn to_padded(self) -> [u8; 8];

    /// Applies `function` to each element in place.
    fn change(result: &mut [u8], function: impl Unary<Self>);

    /// Computes each element from its counterpart in `input`.
    fn map(result: &mut [u8], input: &[u8], function: impl Unary<Self>);

    /// Applies `function` to each element and its counterpart in `input`, in place.
    fn update(result: &mut [u8], input: &[u8], function: impl Binary<Self>);

    /// Computes each element from its counterparts in `left` and `right`.
    fn zip(result: &mut [u8], left: &[u8], right: &[u8], function: impl Binary<Self>);
}

/// A function of one element. Not a closure, because closures are not always inlined.
pub(crate) trait Unary<E>: Copy {
    fn apply(self, input: E) -> E;
}

/// A function of two elements.
pub(crate) trait Binary<E>: Copy {
    fn apply(self, left: E, right: E) -> E;
}

/// Defines the functions over bytes, for a type with `from_ne_bytes` and `to_ne_bytes`. If the type is several elements,
/// fewer may be left at the end.
macro_rules! loops {
    () => {
        #[inline(always)]
        fn change(result: &mut [u8], function: impl Unary<Self>) {
            let (elements, rest) = result.as_chunks_mut();
            for element in elements {
                *element = function.apply(Self::from_ne_bytes(*element)).to_ne_bytes();
            }
            if !rest.is_empty() {
                let value = function.apply(Self::from_ne_bytes(padded(rest)));
                rest.copy_from_slice(&value.to_ne_bytes()[..rest.len()]);
            }
        }

        #[inline(always)]
        fn map(result: &mut [u8], input: &[u8], function: impl Unary<Self>) {
            let (elements, rest) = result.as_chunks_mut();
            let (inputs, input) = input.as_chunks();
            for (element, input) in elements.iter_mut().zip(inputs) {
                *element = function.apply(Self::from_ne_bytes(*input)).to_ne_bytes();
            }
            if !rest.is_empty() {
                let value = function.apply(Self::from_ne_bytes(padded(input)));
                rest.copy_from_slice(&value.to_ne_bytes()[..rest.len()]);
            }
        }

        #[inline(always)]
        fn update(result: &mut [u8], input: &[u8], function: impl Binary<Self>) {
            let (elements, rest) = result.as_chunks_mut();
            let (inputs, input) = input.as_chunks();
            for (element, input) in elements.iter_mut().zip(inputs) {
                let value = function.apply(Self::from_ne_bytes(*element), Self::from_ne_bytes(*input));
                *element = value.to_ne_bytes();
            }
            if !rest.is_empty() {
                let (left, right) = (padded(rest), padded(input));
                let value = function.apply(Self::from_ne_bytes(left), Self::from_ne_bytes(right));
                rest.copy_from_slice(&value.to_ne_bytes()[..rest.len()]);
            }
        }

        #[inline(always)]
        fn zip(result: &mut [u8], left: &[u8], right: &[u8], function: impl Binary<Self>) {
            let (elements, rest) = result.as_chunks_mut();
            let ((lefts, left), (rights, right)) = (left.as_chunks(), right.as_chunks());
            for ((element, left), right) in elements.iter_mut().zip(lefts).zip(rights) {
                let value = function.apply(Self::from_ne_bytes(*left), Self::from_ne_bytes(*right));
                *element = value.to_ne_bytes();
            }
            if !rest.is_empty() {
                let (left, right) = (padded(left), padded(right));
                let value = function.apply(Self::from_ne_bytes(left), Self::from_ne_bytes(right));
                rest.copy_from_slice(&value.to_ne_bytes()[..rest.len()]);
            }
        }
    };
}
pub(crate) use loops;

/// Returns the bytes, at most `N`, padded with zeros.
#[inline(always)]
pub(crate) fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut padded = [0; N];
    for (padded, byte) in padded.iter_mut().zip(bytes) {
        *padded = *byte;
    }
    padded
}

/// Defines the maximum and the minimum of two floats, from bits to bits. A NaN is ignored unless both are NaN, and -0.0
/// is smaller than 0.0. The bits are compared as integers, in an order that is the floats', without a branch.
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

            loops!();
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

            loops!();
        }
    )*};
}

// Division of integers has no vector instructions, that of floats has. The quotient of integers of fewer than
// 53 bits is never rounded up to an integer: it is further below one than the precision of an f64.
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
