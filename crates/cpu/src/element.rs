//! Arithmetic on one element, as NCCL defines it for each data type, and loops over bytes that hold elements.

/// An element of a buffer, or several that are computed at once. Buffers are bytes, so elements need no alignment.
///
/// All functions are inlined into the loops, which are compiled for several processors.
pub(crate) trait Element: Copy {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;

    /// What an average over `ranks` multiplies each input by before it sums them; `None` if it divides the
    /// sum.
    fn reciprocal(ranks: usize) -> Option<Self>;

    /// The sum's share where [`reciprocal`](Self::reciprocal) is `None`.
    fn divide(self, ranks: usize) -> Self;

    /// The element in the first of the bytes. If this is several, all are that.
    fn first(bytes: [u8; 8]) -> Self;

    /// The (first) element's bytes, and zeros.
    fn widened(self) -> [u8; 8];

    /// Replaces each element.
    fn change(result: &mut [u8], function: impl Unary<Self>);

    /// Makes each element of its counterpart.
    fn map(result: &mut [u8], input: &[u8], function: impl Unary<Self>);

    /// Replaces each element by what `function` makes of it and of its counterpart.
    fn update(result: &mut [u8], input: &[u8], function: impl Binary<Self>);

    /// Makes each element of its two counterparts.
    fn zip(result: &mut [u8], left: &[u8], right: &[u8], function: impl Binary<Self>);
}

/// What makes an element of one. Not a closure, because those are not always inlined.
pub(crate) trait Unary<E>: Copy {
    fn of(self, input: E) -> E;
}

/// What makes an element of two.
pub(crate) trait Binary<E>: Copy {
    fn of(self, left: E, right: E) -> E;
}

/// The functions that go over bytes, for a type with `from_ne_bytes` and `to_ne_bytes`. If that is several
/// elements, fewer may be left at the end.
macro_rules! loops {
    () => {
        #[inline(always)]
        fn change(result: &mut [u8], function: impl Unary<Self>) {
            let (elements, rest) = result.as_chunks_mut();
            for element in elements {
                *element = function.of(Self::from_ne_bytes(*element)).to_ne_bytes();
            }
            if !rest.is_empty() {
                let value = function.of(Self::from_ne_bytes(padded(rest)));
                rest.copy_from_slice(&value.to_ne_bytes()[..rest.len()]);
            }
        }

        #[inline(always)]
        fn map(result: &mut [u8], input: &[u8], function: impl Unary<Self>) {
            let (elements, rest) = result.as_chunks_mut();
            let (inputs, input) = input.as_chunks();
            for (element, input) in elements.iter_mut().zip(inputs) {
                *element = function.of(Self::from_ne_bytes(*input)).to_ne_bytes();
            }
            if !rest.is_empty() {
                let value = function.of(Self::from_ne_bytes(padded(input)));
                rest.copy_from_slice(&value.to_ne_bytes()[..rest.len()]);
            }
        }

        #[inline(always)]
        fn update(result: &mut [u8], input: &[u8], function: impl Binary<Self>) {
            let (elements, rest) = result.as_chunks_mut();
            let (inputs, input) = input.as_chunks();
            for (element, input) in elements.iter_mut().zip(inputs) {
                let value = function.of(Self::from_ne_bytes(*element), Self::from_ne_bytes(*input));
                *element = value.to_ne_bytes();
            }
            if !rest.is_empty() {
                let (left, right) = (padded(rest), padded(input));
                let value = function.of(Self::from_ne_bytes(left), Self::from_ne_bytes(right));
                rest.copy_from_slice(&value.to_ne_bytes()[..rest.len()]);
            }
        }

        #[inline(always)]
        fn zip(result: &mut [u8], left: &[u8], right: &[u8], function: impl Binary<Self>) {
            let (elements, rest) = result.as_chunks_mut();
            let ((lefts, left), (rights, right)) = (left.as_chunks(), right.as_chunks());
            for ((element, left), right) in elements.iter_mut().zip(lefts).zip(rights) {
                let value = function.of(Self::from_ne_bytes(*left), Self::from_ne_bytes(*right));
                *element = value.to_ne_bytes();
            }
            if !rest.is_empty() {
                let (left, right) = (padded(left), padded(right));
                let value = function.of(Self::from_ne_bytes(left), Self::from_ne_bytes(right));
                rest.copy_from_slice(&value.to_ne_bytes()[..rest.len()]);
            }
        }
    };
}
pub(crate) use loops;

/// The bytes, which are at most `N`, and zeros.
#[inline(always)]
pub(crate) fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut padded = [0; N];
    for (padded, byte) in padded.iter_mut().zip(bytes) {
        *padded = *byte;
    }
    padded
}

/// The larger and the smaller of two floats, from bits to bits. A NaN is ignored unless both are NaN, and -0.0
/// is smaller than 0.0. The bits are compared as integers, in an order that is the floats', without a branch.
macro_rules! extremes {
    ($larger:ident, $smaller:ident, $bits:ty, $infinity:expr) => {
        #[inline(always)]
        pub(crate) fn $larger(left: $bits, right: $bits) -> $bits {
            const MAGNITUDE: $bits = <$bits>::MAX >> 1;
            let key = |bits: $bits| {
                bits.cast_signed() ^ ((bits.cast_signed() >> (<$bits>::BITS - 1)) & MAGNITUDE.cast_signed())
            };
            let other = (left & MAGNITUDE > $infinity)
                | ((right & MAGNITUDE <= $infinity) & (key(left) < key(right)));
            if other { right } else { left }
        }

        #[inline(always)]
        pub(crate) fn $smaller(left: $bits, right: $bits) -> $bits {
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
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
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

            fn widened(self) -> [u8; 8] {
                padded(&self.to_ne_bytes())
            }

            loops!();
        }
    )*};
}

macro_rules! floats {
    ($($type:ty: $larger:ident, $smaller:ident),*) => {$(
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
            fn larger(self, other: Self) -> Self {
                Self::from_bits($larger(self.to_bits(), other.to_bits()))
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                Self::from_bits($smaller(self.to_bits(), other.to_bits()))
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

            fn widened(self) -> [u8; 8] {
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
