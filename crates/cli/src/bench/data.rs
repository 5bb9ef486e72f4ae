//! What the ranks send, and so what they must receive, to the bit.

use libnccl::{Element, ReduceOp};

/// A type that can be measured.
pub(crate) trait Number: Element + PartialEq {
    /// All whole numbers up to this one are values of the type. Integers hold all, as they wrap.
    const WHOLE: i64;
    /// As many times can 1 be doubled.
    const DOUBLINGS: usize;

    /// Integers wrap.
    fn from_integer(value: i64) -> Self;

    /// `value / divisor` as NCCL averages: truncated for integers; for others multiplied by the inverse, each
    /// rounded to the type. The value is a power of two.
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

/// With the bits of the mantissa, of which one is not written down, and the greatest exponent.
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

/// Elements that repeat.
///
/// The period is a prime: a block that ends up at another block's place does not look right, as blocks begin at
/// multiples of powers of two.
#[derive(Debug, Clone)]
pub(crate) struct Pattern<T>(Vec<T>);

const PERIOD: usize = 1021;

/// Elements to write or to read at a time, so that large buffers need no copy as large. A multiple of the period.
pub(crate) const BLOCK: usize = 1024 * PERIOD;

impl<T: Number> Pattern<T> {
    fn new(element: impl Fn(usize) -> T) -> Self {
        Self((0..PERIOD).map(element).collect())
    }

    /// What a buffer holds where nothing has been received: a value that is not sent, nor is its combination.
    pub(crate) fn untouched() -> Self {
        Self::new(|_| T::from_integer(-1))
    }

    /// The same elements from number `start` on.
    pub(crate) fn from(mut self, start: usize) -> Self {
        self.0.rotate_left(start % PERIOD);
        self
    }

    /// The first elements: as many as are asked for or, of more, [`BLOCK`], after which all begins anew.
    pub(crate) fn block(&self, count: usize) -> Vec<T> {
        let count = count.min(BLOCK);
        let mut block = self.0.repeat(count.div_ceil(PERIOD));
        block.truncate(count);
        block
    }

    /// How many elements are not what they should be.
    pub(crate) fn wrong(&self, buffer: &[T]) -> usize {
        let wrong = |chunk: &[T]| chunk.iter().zip(&self.0).filter(|(is, should)| is != should).count();
        buffer.chunks(PERIOD).map(wrong).sum()
    }
}

/// One operation's data on all ranks.
///
/// Every value, result and intermediate result is exact in every type, in whatever order the ranks are combined.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Data {
    pub(crate) op: ReduceOp,
    pub(crate) ranks: usize,
    /// Differs from one operation to the next.
    pub(crate) seed: usize,
}

impl Data {
    pub(crate) fn sent<T: Number>(&self, rank: usize) -> Pattern<T> {
        Pattern::new(|index| T::from_integer(self.value::<T>(rank, index)))
    }

    pub(crate) fn reduced<T: Number>(&self) -> Pattern<T> {
        Pattern::new(|index| {
            let values = (0..self.ranks).map(|rank| self.value::<T>(rank, index));
            match self.op {
                ReduceOp::Prod => T::from_integer(values.product()),
                ReduceOp::Max => T::from_integer(values.max().unwrap_or_default()),
                ReduceOp::Min => T::from_integer(values.min().unwrap_or_default()),
                ReduceOp::Avg => T::quotient(values.sum(), self.ranks),
                _ => T::from_integer(values.sum()),
            }
        })
    }

    fn value<T: Number>(&self, rank: usize, index: usize) -> i64 {
        let Self { op, ranks, seed } = *self;
        let number = ((seed * ranks + rank) * PERIOD + index) as u64;
        // Fibonacci hashing: the upper bits of the product look random.
        let random = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as i64;
        // As each rank has its turn, a missing one is noticed.
        let has_turn = (index + seed) % ranks == rank;
        match op {
            // A float's exponent holds this product, and so does an i64.
            ReduceOp::Prod => 1 + i64::from(rank < T::DOUBLINGS.min(32) && random % 2 == 1),
            // NCCL multiplies floats by 1/ranks first, which is inexact. Times a power of two it stays as it is,
            // and so it does in a sum with zeros.
            ReduceOp::Avg if has_turn => 1 << (random % 7),
            ReduceOp::Avg => 0,
            ReduceOp::Sum => match T::WHOLE / ranks as i64 {
                0 if has_turn => random.min(T::WHOLE),
                0 => 0,
                share => random % share.saturating_add(1),
            },
            _ => random % T::WHOLE.saturating_add(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use float8::{F8E4M3, F8E5M2};
    use half::{bf16, f16};
    use libnccl::ReduceOp;

    use super::{BLOCK, Data, Number, PERIOD, Pattern};

    const COUNT: usize = 3 * PERIOD + 7;

    #[test]
    fn wrong_elements_are_counted() {
        let pattern = Data { op: ReduceOp::Sum, ranks: 3, seed: 1 }.reduced::<f32>();
        let mut buffer = pattern.block(COUNT);
        assert_eq!(pattern.wrong(&buffer), 0);
        buffer[0] += 1.0;
        buffer[PERIOD] = f32::NAN;
        buffer[COUNT - 1] += 0.5;
        assert_eq!(pattern.wrong(&buffer), 3);
        assert_eq!(pattern.wrong(&Pattern::untouched().block(COUNT)), COUNT);
        assert_eq!(pattern.clone().from(COUNT).wrong(&pattern.block(COUNT)[COUNT % PERIOD..]), 0);
        assert!(pattern.wrong(&pattern.block(COUNT)[64..]) > COUNT / 2);
        assert_eq!(pattern.block(2 * BLOCK).len(), BLOCK);
        assert!(pattern.block(0).is_empty());
    }

    #[test]
    fn ranks_and_operations_send_different_data() {
        for op in ReduceOp::ALL {
            let data = |seed| Data { op, ranks: 4, seed };
            let first = data(0).sent::<i32>(0).block(COUNT);
            for other in [data(0).sent(1), data(1).sent(0)] {
                assert!(other.wrong(&first) > COUNT / 4, "{op}");
            }
        }
    }

    /// NCCL's arithmetic, in one order of the ranks and in the other.
    fn reduced<T: Number>(data: Data, combine: impl Fn(T, T) -> T, scale: impl Fn(T) -> T) {
        let expected = data.reduced::<T>();
        let sent: Vec<Vec<T>> = (0..data.ranks).map(|rank| data.sent(rank).block(COUNT)).collect();
        for backwards in [false, true] {
            let result: Vec<T> = (0..COUNT)
                .map(|index| {
                    let element = |rank: usize| scale(sent[rank][index]);
                    let ranks = 0..data.ranks;
                    let result = if backwards {
                        ranks.rev().map(element).reduce(&combine)
                    } else {
                        ranks.map(element).reduce(&combine)
                    };
                    result.unwrap()
                })
                .collect();
            assert_eq!(expected.wrong(&result), 0, "{data:?}");
        }
    }

    #[test]
    fn expectations_are_nccls_results() {
        for ranks in [1, 2, 3, 5, 7, 64] {
            let data = |op| Data { op, ranks, seed: 5 };
            reduced::<i8>(data(ReduceOp::Sum), i8::wrapping_add, |x| x);
            reduced::<u8>(data(ReduceOp::Prod), u8::wrapping_mul, |x| x);
            reduced::<i32>(data(ReduceOp::Prod), i32::wrapping_mul, |x| x);
            reduced::<u64>(data(ReduceOp::Max), u64::max, |x| x);
            reduced::<i8>(data(ReduceOp::Min), i8::min, |x| x);
            reduced::<f32>(data(ReduceOp::Sum), |a, b| a + b, |x| x);
            reduced::<f32>(data(ReduceOp::Prod), |a, b| a * b, |x| x);
            reduced::<f32>(data(ReduceOp::Avg), |a, b| a + b, |x| x * (1.0 / ranks as f32));
            reduced::<f64>(data(ReduceOp::Avg), |a, b| a + b, |x| x * (1.0 / ranks as f64));
            narrow::<f16>(data, f16::to_f32, f16::from_f32);
            narrow::<bf16>(data, bf16::to_f32, bf16::from_f32);
            // So narrow that the average over 64 may be 0.
            narrow::<F8E4M3>(data, |x| x.to_f32(), F8E4M3::from_f32);
            narrow::<F8E5M2>(data, |x| x.to_f32(), F8E5M2::from_f32);
        }
    }

    /// Rounded after each step.
    fn narrow<T: Number>(data: impl Fn(ReduceOp) -> Data, widen: fn(T) -> f32, round: fn(f32) -> T) {
        let inverse = widen(round(1.0 / data(ReduceOp::Avg).ranks as f32));
        reduced::<T>(data(ReduceOp::Sum), |a, b| round(widen(a) + widen(b)), |x| x);
        reduced::<T>(data(ReduceOp::Prod), |a, b| round(widen(a) * widen(b)), |x| x);
        reduced::<T>(data(ReduceOp::Max), |a, b| round(widen(a).max(widen(b))), |x| x);
        reduced::<T>(data(ReduceOp::Min), |a, b| round(widen(a).min(widen(b))), |x| x);
        reduced::<T>(data(ReduceOp::Avg), |a, b| round(widen(a) + widen(b)), |x| round(widen(x) * inverse));
    }

    #[test]
    fn integer_averages_are_truncated() {
        let data = Data { op: ReduceOp::Avg, ranks: 3, seed: 2 };
        let sums = (0..PERIOD).map(|index| (0..3).map(|rank| data.value::<i8>(rank, index)).sum::<i64>());
        let averages: Vec<i8> = sums.map(|sum| (sum as i8) / 3).collect();
        assert_eq!(data.reduced::<i8>().wrong(&averages), 0);
        assert!(averages.iter().any(|average| *average > 0));
    }
}
