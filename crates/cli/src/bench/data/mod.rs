//! The data that ranks send, and the exact results that they must receive.

pub(crate) mod number;

use std::fmt;
use std::str::FromStr;

use libnccl::buffer::AnyElement;
use libnccl::{Communicator, PreMulSum, ReduceOp};
use serde::{Deserialize, Serialize};

use number::Arithmetic;

/// The data of one operation on all ranks.
///
/// All values, results and intermediate results are exact in every type, for any order of the ranks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Data {
    pub(crate) arithmetic: Arithmetic,
    pub(crate) op: Reduction,
    pub(crate) ranks: usize,
    /// A number that changes with each operation.
    pub(crate) seed: usize,
}

impl Data {
    pub(crate) fn sent(&self, rank: usize) -> Pattern {
        Pattern::new(self.arithmetic, |index| self.arithmetic.integer(self.value(rank, index)))
    }

    pub(crate) fn reduced(&self) -> Pattern {
        let arithmetic = self.arithmetic;
        Pattern::new(arithmetic, |index| {
            let values = (0..self.ranks).map(|rank| self.value(rank, index));
            match self.op {
                Reduction::Op(ReduceOp::Avg) => arithmetic.quotient(values.sum(), self.ranks),
                Reduction::Op(op) => arithmetic.integer(reduced(op, values)),
                Reduction::MulSum => {
                    arithmetic.integer(values.enumerate().map(|(rank, value)| factor(rank) * value).sum())
                }
            }
        })
    }

    /// Returns the pattern of a buffer that has not received anything, which is neither sent nor a result.
    pub(crate) fn untouched(&self) -> Pattern {
        let element = self.arithmetic.integer(-1);
        Pattern::new(self.arithmetic, |_| element)
    }

    fn value(&self, rank: usize, index: usize) -> i64 {
        let Self { arithmetic: Arithmetic { whole, doublings, .. }, op, ranks, seed } = *self;
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

/// A reduction that nccl-tests names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reduction {
    Op(ReduceOp),
    /// The sum of each rank's elements times its [`factor`] (`ncclRedOpCreatePreMulSum`).
    MulSum,
}

impl Reduction {
    /// All reductions, in the order of nccl-tests.
    pub(crate) const ALL: &'static [Self] = &[
        Self::Op(ReduceOp::Sum),
        Self::Op(ReduceOp::Prod),
        Self::Op(ReduceOp::Max),
        Self::Op(ReduceOp::Min),
        Self::Op(ReduceOp::Avg),
        Self::MulSum,
    ];
}

/// Returns the number that a rank's elements are multiplied by: 1 or 2, as in nccl-tests.
pub(crate) fn factor(rank: usize) -> i64 {
    1 + rank as i64 % 2
}

/// Creates the sum of products of a rank, whose scalar is its factor.
pub(crate) fn mul_sum(
    communicator: &Communicator,
    arithmetic: Arithmetic,
) -> libnccl::Result<PreMulSum<'static, AnyElement>> {
    let scalar = arithmetic.integer(factor(communicator.rank()));
    communicator.pre_mul_sum_any(arithmetic.data_type, &scalar[..arithmetic.size()])
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Op(op) => op.fmt(f),
            Self::MulSum => f.pad("mulsum"),
        }
    }
}

/// Parses the name that nccl-tests uses, in upper or lower case.
impl FromStr for Reduction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = |reduction: &Self| reduction.to_string().eq_ignore_ascii_case(text);
        Self::ALL.iter().copied().find(named).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(ToString::to_string).collect();
            format!("{text:?} is not a reduction; expected {}", names.join(", "))
        })
    }
}

/// A periodic sequence of elements.
///
/// The period is a prime, so a block that arrives in the place of another one is noticed: blocks start at multiples of
/// powers of two.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    arithmetic: Arithmetic,
    bytes: Vec<u8>,
}

/// The number of elements after which a pattern repeats.
pub(crate) const PERIOD: usize = 1021;

/// The number of elements to copy at a time, a multiple of the period: a large buffer needs no copy of its size.
pub(crate) const BLOCK: usize = 1024 * PERIOD;

impl Pattern {
    /// Creates a pattern from its elements by index, each in the first bytes.
    pub(crate) fn new(arithmetic: Arithmetic, element: impl Fn(usize) -> [u8; 8]) -> Self {
        let size = arithmetic.size();
        let mut bytes = Vec::with_capacity(PERIOD * size);
        for index in 0..PERIOD {
            bytes.extend_from_slice(&element(index)[..size]);
        }
        Self { arithmetic, bytes }
    }

    /// Returns the pattern from element `start` on.
    pub(crate) fn from(mut self, start: usize) -> Self {
        self.bytes.rotate_left(start % PERIOD * self.arithmetic.size());
        self
    }

    /// Returns the bytes of the first `count` elements, at most [`BLOCK`], after which the elements repeat.
    pub(crate) fn block(&self, count: usize) -> Vec<u8> {
        let count = count.min(BLOCK);
        let mut block = self.bytes.repeat(count.div_ceil(PERIOD));
        block.truncate(count * self.arithmetic.size());
        block
    }

    /// Compares the bytes of elements with the pattern.
    pub(crate) fn compare(&self, buffer: &[u8]) -> Comparison {
        let mut comparison = Comparison::default();
        for (chunk, start) in buffer.chunks(self.bytes.len()).zip((0..).step_by(PERIOD)) {
            if *chunk != self.bytes[..chunk.len()] {
                comparison.add(self.differences(chunk), start);
            }
        }
        comparison
    }

    /// Compares element by element; numbers may be equal without the same bytes.
    fn differences(&self, chunk: &[u8]) -> Comparison {
        let (mut comparison, size) = (Comparison::default(), self.arithmetic.size());
        let pairs = chunk.chunks_exact(size).zip(self.bytes.chunks_exact(size));
        for (offset, (is, should)) in pairs.enumerate() {
            let (got, expected) = (self.arithmetic.number(is), self.arithmetic.number(should));
            if got != expected {
                comparison.wrong += 1;
                comparison.first.get_or_insert_with(|| FirstWrong {
                    offset,
                    got: shortened(got.to_string()),
                    expected: shortened(expected.to_string()),
                });
            }
        }
        comparison
    }
}

/// Returns the text of a number, with an exponent if it would be long.
fn shortened(text: String) -> String {
    const LONG: usize = 20;
    let float = text.parse::<f64>().ok().filter(|_| text.len() > LONG);
    float.map_or(text, |float| format!("{float:e}"))
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Comparison {
    pub(crate) wrong: usize,
    pub(crate) first: Option<FirstWrong>,
}

/// The first element that differs from a pattern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FirstWrong {
    pub(crate) offset: usize,
    pub(crate) got: String,
    pub(crate) expected: String,
}

impl Comparison {
    /// Adds the comparison of elements that begin `offset` elements after those of this one.
    pub(crate) fn add(&mut self, other: Self, offset: usize) {
        self.wrong += other.wrong;
        if self.first.is_none() {
            self.first = other.first.map(|first| FirstWrong { offset: first.offset + offset, ..first });
        }
    }
}

#[cfg(test)]
mod tests {
    use libnccl::{DataType, ReduceOp};

    use super::number::Arithmetic;
    use super::{BLOCK, Comparison, Data, FirstWrong, PERIOD, Pattern, Reduction, factor};

    const COUNT: usize = 3 * PERIOD + 7;

    fn data(data_type: DataType, op: ReduceOp, ranks: usize, seed: usize) -> Data {
        let op = Reduction::Op(op);
        Data { arithmetic: Arithmetic::new(data_type).unwrap(), op, ranks, seed }
    }

    #[test]
    fn wrong_elements_of_a_pattern_are_counted() {
        let data = data(DataType::Float32, ReduceOp::Sum, 3, 1);
        let pattern = data.reduced();
        let right = pattern.block(COUNT);
        let wrong = |buffer: &[u8]| pattern.compare(buffer).wrong;
        assert_eq!(wrong(&right), 0);
        let mut buffer = right.clone();
        for (index, element) in [(0, 0.5_f32), (PERIOD, f32::NAN), (COUNT - 1, 1.5)] {
            buffer[4 * index..4 * index + 4].copy_from_slice(&element.to_ne_bytes());
        }
        assert_eq!(wrong(&buffer), 3);
        assert_eq!(wrong(&data.untouched().block(COUNT)), COUNT);
        assert_eq!(pattern.clone().from(COUNT).compare(&right[4 * (COUNT % PERIOD)..]).wrong, 0);
        assert!(wrong(&right[4 * 64..]) > COUNT / 2);
        assert_eq!(pattern.block(2 * BLOCK).len(), 4 * BLOCK);
        assert!(pattern.block(0).is_empty());
    }

    #[test]
    fn zeros_of_both_signs_are_equal() {
        let zeros = Pattern::new(Arithmetic::new(DataType::Float32).unwrap(), |_| [0; 8]);
        assert_eq!(zeros.compare(&(-0.0_f32).to_ne_bytes().repeat(3)).wrong, 0);
    }

    #[test]
    fn first_wrong_element_is_named_with_its_place() {
        let data = data(DataType::Float16, ReduceOp::Sum, 3, 1);
        let pattern = data.reduced();
        let mut buffer = pattern.block(COUNT);
        let expected = data.arithmetic.number(&buffer[2 * (PERIOD + 2)..]).to_string();
        for (index, element) in [(PERIOD + 2, 0.5), (PERIOD + 9, f32::NAN)] {
            buffer[2 * index..2 * index + 2].copy_from_slice(&half::f16::from_f32(element).to_ne_bytes());
        }
        let first = FirstWrong { offset: PERIOD + 2, got: "0.5".into(), expected };
        assert_eq!(pattern.compare(&buffer), Comparison { wrong: 2, first: Some(first) });
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

    /// Compares the expected reductions with NCCL's arithmetic, which rounds after each step, in both orders of the ranks.
    #[test]
    fn expected_results_are_those_of_nccls_arithmetic() {
        type Combine = (ReduceOp, fn(i64, i64) -> i64, fn(f64, f64) -> f64);
        let combine: [Combine; 4] = [
            (ReduceOp::Prod, i64::wrapping_mul, |a, b| a * b),
            (ReduceOp::Max, i64::max, f64::max),
            (ReduceOp::Min, i64::min, f64::min),
            (ReduceOp::Sum, i64::wrapping_add, |a, b| a + b),
        ];
        let types =
            DataType::ALL.iter().flat_map(|data_type| [1, 2, 3, 5, 7, 64].map(|ranks| (*data_type, ranks)));
        for ((data_type, ranks), &op) in
            types.flat_map(|case| Reduction::ALL.iter().map(move |op| (case, op)))
        {
            let is_integer = data_type.to_string().contains("int");
            // Integers are truncated: see below.
            let is_average = op == Reduction::Op(ReduceOp::Avg);
            if is_average && is_integer {
                continue;
            }
            let data = Data { op, ..data(data_type, ReduceOp::Sum, ranks, 5) };
            let arithmetic = data.arithmetic;
            let [.., sum] = combine;
            let (_, integers, floats) =
                combine.into_iter().find(|(own, ..)| op == Reduction::Op(*own)).unwrap_or(sum);
            let add = |one, other| arithmetic.combined(one, other, integers, floats);
            let element = |rank: usize, index: usize| {
                let element = arithmetic.integer(data.value(rank, index));
                match op {
                    Reduction::MulSum if factor(rank) == 2 => add(element, element),
                    _ if is_average => arithmetic.scaled(element, ranks),
                    _ => element,
                }
            };
            let expected = data.reduced();
            for backwards in [false, true] {
                let rank = |rank| if backwards { ranks - 1 - rank } else { rank };
                let result = |index| (0..ranks).map(|step| element(rank(step), index)).reduce(add).unwrap();
                let result: Vec<u8> =
                    (0..PERIOD).flat_map(|index| result(index).into_iter().take(arithmetic.size())).collect();
                assert_eq!(expected.compare(&result).wrong, 0, "{data:?}");
            }
        }
    }

    #[test]
    fn averages_of_integers_are_truncated() {
        let data = data(DataType::Int8, ReduceOp::Avg, 3, 2);
        let sums = (0..PERIOD).map(|index| (0..3).map(|rank| data.value(rank, index)).sum::<i64>());
        let averages: Vec<u8> = sums.map(|sum| (sum as i8 / 3) as u8).collect();
        assert_eq!(data.reduced().compare(&averages).wrong, 0);
        assert!(averages.iter().any(|average| *average > 0));
    }
}
