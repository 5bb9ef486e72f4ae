//! The data that ranks send, and the exact results that they must receive.

pub(crate) mod number;
pub(crate) mod pattern;
pub(crate) mod reduction;

use libnccl::ReduceOp;

use number::Arithmetic;
use pattern::{PERIOD, Pattern};
use reduction::{Reduction, factor};

/// The data of one operation on all ranks.
///
/// All values, results and intermediate results are exact in every type, for any order of the ranks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Data {
    pub(crate) arithmetic: &'static Arithmetic,
    pub(crate) op: Reduction,
    pub(crate) ranks: usize,
    /// A number that changes with each operation.
    pub(crate) seed: usize,
}

impl Data {
    /// Returns the elements that a rank sends.
    pub(crate) fn sent(&self, rank: usize) -> Pattern {
        Pattern::new(self.arithmetic, |index| (self.arithmetic.from_integer)(self.value(rank, index)))
    }

    /// Returns the reduction of all ranks' elements.
    pub(crate) fn reduced(&self) -> Pattern {
        let Arithmetic { from_integer, quotient, .. } = self.arithmetic;
        Pattern::new(self.arithmetic, |index| {
            let values = (0..self.ranks).map(|rank| self.value(rank, index));
            match self.op {
                Reduction::Op(ReduceOp::Avg) => quotient(values.sum(), self.ranks),
                Reduction::Op(op) => from_integer(reduced(op, values)),
                Reduction::MulSum => {
                    from_integer(values.enumerate().map(|(rank, value)| factor(rank) * value).sum())
                }
            }
        })
    }

    /// Returns the pattern of a buffer that has not received anything.
    pub(crate) fn untouched(&self) -> Pattern {
        Pattern::untouched(self.arithmetic)
    }

    fn value(&self, rank: usize, index: usize) -> i64 {
        let Self { arithmetic: &Arithmetic { whole, doublings, .. }, op, ranks, seed } = *self;
        let number = ((seed * ranks + rank) * PERIOD + index) as u64;
        // Fibonacci hashing: the upper bits of the product look random.
        let random = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as i64;
        // Each rank has its turn, so a missing contribution is noticed.
        let has_turn = (index + seed) % ranks == rank;
        // A part of a sum that is at most so large.
        let summand = |limit: i64| match limit / ranks as i64 {
            0 if has_turn => random.min(limit),
            0 => 0,
            share => random % share.saturating_add(1),
        };
        match op {
            // The product is exact in the type and in an i64.
            Reduction::Op(ReduceOp::Prod) => 1 + i64::from(rank < doublings.min(32) && random % 2 == 1),
            // NCCL multiplies floats by 1/ranks first, which is inexact. The product with a power of two and the sum
            // with zeros add no further rounding.
            Reduction::Op(ReduceOp::Avg) if has_turn => 1 << (random % 7),
            Reduction::Op(ReduceOp::Avg) => 0,
            Reduction::Op(ReduceOp::Sum) => summand(whole),
            // The factors are at most 2.
            Reduction::MulSum => summand(whole / 2),
            Reduction::Op(_) => random % whole.saturating_add(1),
        }
    }
}

fn reduced(op: ReduceOp, values: impl Iterator<Item = i64>) -> i64 {
    match op {
        ReduceOp::Prod => values.fold(1, i64::wrapping_mul),
        ReduceOp::Max => values.max().unwrap_or_default(),
        ReduceOp::Min => values.min().unwrap_or_default(),
        _ => values.fold(0, i64::wrapping_add),
    }
}

#[cfg(test)]
mod tests {
    use float8::{F8E4M3, F8E5M2};
    use half::{bf16, f16};
    use libnccl::{DataType, ReduceOp};

    use super::Data;
    use crate::bench::data::number::{Arithmetic, Number};
    use crate::bench::data::pattern::{BLOCK, Comparison, FirstWrong, PERIOD, Pattern};
    use crate::bench::data::reduction::{Reduction, factor};

    const COUNT: usize = 3 * PERIOD + 7;

    fn data(data_type: DataType, op: ReduceOp, ranks: usize, seed: usize) -> Data {
        let op = Reduction::Op(op);
        Data { arithmetic: Arithmetic::new(data_type).unwrap(), op, ranks, seed }
    }

    /// Returns the first elements of a pattern.
    fn elements<T: Number>(pattern: &Pattern, count: usize) -> Vec<T> {
        let bytes = pattern.block(count);
        let element = |bytes: &[u8]| {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            T::from_bytes(padded)
        };
        bytes.chunks_exact(size_of::<T>()).map(element).collect()
    }

    fn bytes<T: Number>(elements: &[T]) -> Vec<u8> {
        elements.iter().flat_map(|element| element.to_bytes().into_iter().take(size_of::<T>())).collect()
    }

    #[test]
    fn wrong_elements_of_a_pattern_are_counted() {
        let data = data(DataType::Float32, ReduceOp::Sum, 3, 1);
        let pattern = data.reduced();
        let mut buffer = elements::<f32>(&pattern, COUNT);
        let wrong = |buffer: &[f32]| pattern.compare(&bytes(buffer)).wrong;
        assert_eq!(wrong(&buffer), 0);
        buffer[0] += 1.0;
        buffer[PERIOD] = f32::NAN;
        buffer[COUNT - 1] += 0.5;
        assert_eq!(wrong(&buffer), 3);
        assert_eq!(wrong(&elements(&data.untouched(), COUNT)), COUNT);
        let rest = elements::<f32>(&pattern, COUNT).split_off(COUNT % PERIOD);
        assert_eq!(pattern.clone().from(COUNT).compare(&bytes(&rest)).wrong, 0);
        assert!(wrong(&elements::<f32>(&pattern, COUNT)[64..]) > COUNT / 2);
        assert_eq!(pattern.block(2 * BLOCK).len(), 4 * BLOCK);
        assert!(pattern.block(0).is_empty());
    }

    #[test]
    fn zeros_of_both_signs_are_equal() {
        let arithmetic = Arithmetic::new(DataType::Float32).unwrap();
        let zeros = Pattern::new(arithmetic, |_| [0; 8]);
        assert_eq!(zeros.compare(&bytes(&[-0.0_f32; 3])).wrong, 0);
    }

    #[test]
    fn first_wrong_element_is_named_with_its_place() {
        let pattern = data(DataType::Float16, ReduceOp::Sum, 3, 1).reduced();
        let mut buffer = elements::<f16>(&pattern, COUNT);
        let expected = buffer[PERIOD + 2].to_string();
        buffer[PERIOD + 2] = f16::from_f32(0.5);
        buffer[PERIOD + 9] = f16::NAN;
        let comparison = pattern.compare(&bytes(&buffer));
        let first = FirstWrong { offset: PERIOD + 2, got: "0.5".into(), expected };
        assert_eq!(comparison, Comparison { wrong: 2, first: Some(first) });
    }

    #[test]
    fn data_differs_between_ranks_and_operations() {
        for &op in Reduction::ALL {
            let arithmetic = Arithmetic::new(DataType::Int32).unwrap();
            let data = |seed| Data { arithmetic, op, ranks: 4, seed };
            let first = data(0).sent(0).block(COUNT);
            for other in [data(0).sent(1), data(1).sent(0)] {
                assert!(other.compare(&first).wrong > COUNT / 4, "{op}");
            }
        }
    }

    /// Compares the expected reduction with NCCL's arithmetic in both orders of the ranks.
    fn check_reduced<T: Number>(data: Data, combine: impl Fn(T, T) -> T, scale: impl Fn(T) -> T) {
        let data = Data { arithmetic: Arithmetic::new(T::DATA_TYPE).unwrap(), ..data };
        let expected = data.reduced();
        let sent: Vec<Vec<T>> = (0..data.ranks).map(|rank| elements(&data.sent(rank), COUNT)).collect();
        for backwards in [false, true] {
            let result: Vec<T> = (0..COUNT)
                .map(|index| {
                    let element = |rank: usize| {
                        let element = scale(sent[rank][index]);
                        let is_doubled = data.op == Reduction::MulSum && factor(rank) == 2;
                        if is_doubled { combine(element, element) } else { element }
                    };
                    let ranks = 0..data.ranks;
                    let result = if backwards {
                        ranks.rev().map(element).reduce(&combine)
                    } else {
                        ranks.map(element).reduce(&combine)
                    };
                    result.unwrap()
                })
                .collect();
            assert_eq!(expected.compare(&bytes(&result)).wrong, 0, "{data:?}");
        }
    }

    #[test]
    fn expected_results_are_those_of_nccls_arithmetic() {
        for ranks in [1, 2, 3, 5, 7, 64] {
            let data = |op| data(DataType::Int8, op, ranks, 5);
            let products = Data { op: Reduction::MulSum, ..data(ReduceOp::Sum) };
            check_reduced::<i8>(products, i8::wrapping_add, |x| x);
            check_reduced::<f32>(products, |a, b| a + b, |x| x);
            check_reduced::<i8>(data(ReduceOp::Sum), i8::wrapping_add, |x| x);
            check_reduced::<u8>(data(ReduceOp::Prod), u8::wrapping_mul, |x| x);
            check_reduced::<i32>(data(ReduceOp::Prod), i32::wrapping_mul, |x| x);
            check_reduced::<u64>(data(ReduceOp::Max), u64::max, |x| x);
            check_reduced::<i8>(data(ReduceOp::Min), i8::min, |x| x);
            check_reduced::<f32>(data(ReduceOp::Sum), |a, b| a + b, |x| x);
            check_reduced::<f32>(data(ReduceOp::Prod), |a, b| a * b, |x| x);
            check_reduced::<f32>(data(ReduceOp::Avg), |a, b| a + b, |x| x * (1.0 / ranks as f32));
            check_reduced::<f64>(data(ReduceOp::Avg), |a, b| a + b, |x| x * (1.0 / ranks as f64));
            check_narrow::<f16>(data, f16::to_f32, f16::from_f32);
            check_narrow::<bf16>(data, bf16::to_f32, bf16::from_f32);
            // The average over 64 ranks may underflow to 0 in these types.
            check_narrow::<F8E4M3>(data, |x| x.to_f32(), F8E4M3::from_f32);
            check_narrow::<F8E5M2>(data, |x| x.to_f32(), F8E5M2::from_f32);
        }
    }

    /// Checks all reductions of a type that is rounded after each step.
    fn check_narrow<T: Number>(data: impl Fn(ReduceOp) -> Data, widen: fn(T) -> f32, round: fn(f32) -> T) {
        let inverse = widen(round(1.0 / data(ReduceOp::Avg).ranks as f32));
        let products = Data { op: Reduction::MulSum, ..data(ReduceOp::Sum) };
        for sums in [data(ReduceOp::Sum), products] {
            check_reduced::<T>(sums, |a, b| round(widen(a) + widen(b)), |x| x);
        }
        check_reduced::<T>(data(ReduceOp::Prod), |a, b| round(widen(a) * widen(b)), |x| x);
        check_reduced::<T>(data(ReduceOp::Max), |a, b| round(widen(a).max(widen(b))), |x| x);
        check_reduced::<T>(data(ReduceOp::Min), |a, b| round(widen(a).min(widen(b))), |x| x);
        check_reduced::<T>(
            data(ReduceOp::Avg),
            |a, b| round(widen(a) + widen(b)),
            |x| round(widen(x) * inverse),
        );
    }

    #[test]
    fn averages_of_integers_are_truncated() {
        let data = data(DataType::Int8, ReduceOp::Avg, 3, 2);
        let sums = (0..PERIOD).map(|index| (0..3).map(|rank| data.value(rank, index)).sum::<i64>());
        let averages: Vec<i8> = sums.map(|sum| (sum as i8) / 3).collect();
        assert_eq!(data.reduced().compare(&bytes(&averages)).wrong, 0);
        assert!(averages.iter().any(|average| *average > 0));
    }
}
