//! Arithmetic on one element, as NCCL defines it for each data type, and loops over bytes that hold elements.

/// An element of a buffer. Buffers are bytes, so elements need no alignment.
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

    /// The first element in `bytes`.
    fn first(bytes: &[u8]) -> Option<Self>;

    /// Replaces each element.
    fn map(bytes: &mut [u8], function: impl Fn(Self) -> Self);

    /// Replaces each element by what `function` makes of it and of its counterpart.
    fn zip(bytes: &mut [u8], others: &[u8], function: impl Fn(Self, Self) -> Self);
}

macro_rules! loops {
    ($type:ty) => {
        fn first(bytes: &[u8]) -> Option<Self> {
            Some(<$type>::from_ne_bytes(*bytes.first_chunk()?))
        }

        fn map(bytes: &mut [u8], function: impl Fn(Self) -> Self) {
            for element in bytes.as_chunks_mut().0 {
                *element = function(<$type>::from_ne_bytes(*element)).to_ne_bytes();
            }
        }

        fn zip(bytes: &mut [u8], others: &[u8], function: impl Fn(Self, Self) -> Self) {
            for (element, other) in bytes.as_chunks_mut().0.iter_mut().zip(others.as_chunks().0) {
                let value = function(<$type>::from_ne_bytes(*element), <$type>::from_ne_bytes(*other));
                *element = value.to_ne_bytes();
            }
        }
    };
}

macro_rules! integers {
    ($($type:ty as $wide:ty),*) => {$(
        impl Element for $type {
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            fn larger(self, other: Self) -> Self {
                self.max(other)
            }

            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }

            fn reciprocal(_: usize) -> Option<Self> {
                None
            }

            fn divide(self, ranks: usize) -> Self {
                // Wide, because more than 127 ranks are no i8. The quotient fits again.
                (<$wide>::from(self) / ranks as $wide) as Self
            }

            loops!($type);
        }
    )*};
}

macro_rules! floats {
    ($($type:ty),*) => {$(
        impl Element for $type {
            fn add(self, other: Self) -> Self {
                self + other
            }

            fn multiply(self, other: Self) -> Self {
                self * other
            }

            // Rust's max and min ignore a NaN unless both are NaN, as fmax and fmin do.
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }

            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }

            fn reciprocal(ranks: usize) -> Option<Self> {
                Some(1.0 / ranks as Self)
            }

            fn divide(self, _: usize) -> Self {
                self
            }

            loops!($type);
        }
    )*};
}

integers!(i8 as i64, u8 as u64, i32 as i64, u32 as u64, i64 as i64, u64 as u64);
floats!(f32, f64);
