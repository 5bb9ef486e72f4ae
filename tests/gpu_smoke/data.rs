//! The ranks' data: random, the same in every run, with the special values of each type.

use libnccl::{Element, ReduceOp};
use libnccl_test_support::random_inputs::Random;

/// An element type whose results can be compared with the CPU backend's.
pub(crate) trait Number: Element + Default + std::fmt::Display {
    /// Returns any value, often a special one.
    fn random(bits: u64) -> Self;

    /// Returns the value, or another one if the average of two ranks could be rounded twice (NCCL halves first).
    fn averaged(self) -> Self;

    /// Compares bit by bit, but treats all NaNs as equal, and lets the extreme of two zeros be either of them.
    fn same(self, other: Self, op: Option<ReduceOp>) -> bool;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Number for $type {
            fn random(bits: u64) -> Self {
                bits as Self
            }

            fn averaged(self) -> Self {
                self
            }

            fn same(self, other: Self, _: Option<ReduceOp>) -> bool {
                self == other
            }
        }
    )*};
}

macro_rules! floats {
    ($($type:ident of $bits:ty),*) => {$(
        impl Number for $type {
            fn random(bits: u64) -> Self {
                const SPECIAL: [$type; 9] = [
                    0.0,
                    -0.0,
                    1.0,
                    $type::INFINITY,
                    $type::NEG_INFINITY,
                    $type::NAN,
                    $type::MAX,
                    $type::MIN_POSITIVE,
                    $type::MIN_POSITIVE / 3.0,
                ];
                let value = match bits % 8 {
                    0 => SPECIAL[(bits >> 8) as usize % SPECIAL.len()],
                    1 | 2 => $type::from_bits((bits >> (u64::BITS - <$bits>::BITS)) as $bits),
                    _ => (bits as i64 >> 3) as $type / (1_u64 << 58) as $type,
                };
                // Signalling NaNs are not tested.
                if value.is_nan() { $type::NAN } else { value }
            }

            fn averaged(self) -> Self {
                if self.abs() < 2.0 * $type::MIN_POSITIVE { 0.0 } else { self }
            }

            fn same(self, other: Self, op: Option<ReduceOp>) -> bool {
                self.to_bits() == other.to_bits()
                    || self.is_nan() && other.is_nan()
                    || matches!(op, Some(ReduceOp::Min | ReduceOp::Max)) && self == other
            }
        }
    )*};
}

integers!(i8, u8, i32, u32, i64, u64);
floats!(f32 of u32, f64 of u64);

/// Returns elements that depend only on the arguments.
pub(crate) fn random<T: Number>(count: usize, op: Option<ReduceOp>, seed: u64) -> Vec<T> {
    let element = |index: u64| {
        let value = T::random(Random(seed << 32 | index).next());
        if op == Some(ReduceOp::Avg) { value.averaged() } else { value }
    };
    (0..count as u64).map(element).collect()
}

/// Compares a result with the expected one, and describes the first difference.
pub(crate) fn compare<T: Number>(found: &[T], expected: &[T], op: Option<ReduceOp>) -> Result<(), String> {
    let pairs = found.iter().zip(expected).enumerate();
    let mut wrong = pairs.filter(|(_, (found, expected))| !found.same(**expected, op));
    let Some((index, (is, should))) = wrong.next() else { return Ok(()) };
    let (others, all) = (wrong.count(), expected.len());
    Err(format!("{} of {all} elements are wrong; number {index} is {is} instead of {should}", others + 1))
}
