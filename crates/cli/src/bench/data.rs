//! The data that ranks send, the exact results that they must receive, and the bytes and arithmetic of NCCL's data types.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use anyhow::{Result, bail};
use bytemuck::pod_read_unaligned as read;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use itertools::Itertools;
use libnccl::{DataType, ReduceOp};
use serde::{Deserialize, Serialize};

/// The data of one operation on all ranks.
///
/// Values and intermediate results are exact in every type, for any order of the ranks. Only averages of floats are rounded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Data {
    pub(crate) arithmetic: Arithmetic,
    pub(crate) op: Reduction,
    pub(crate) ranks: usize,
    /// A number that differs between operations.
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
            let result = match self.op {
                Reduction::Op(ReduceOp::Avg) => return arithmetic.quotient(values.sum(), self.ranks),
                Reduction::Op(ReduceOp::Prod) => values.fold(1, i64::wrapping_mul),
                Reduction::Op(ReduceOp::Max) => values.max().unwrap_or_default(),
                Reduction::Op(ReduceOp::Min) => values.min().unwrap_or_default(),
                Reduction::Op(_) => values.fold(0, i64::wrapping_add),
                Reduction::MulSum => values.enumerate().map(|(rank, value)| factor(rank) * value).sum(),
            };
            arithmetic.integer(result)
        })
    }

    /// Returns the pattern of a buffer that has not received anything. It differs from all sent data and results.
    pub(crate) fn untouched(&self) -> Pattern {
        Pattern::new(self.arithmetic, |_| self.arithmetic.integer(-1))
    }

    fn value(&self, rank: usize, index: usize) -> i64 {
        let Self { arithmetic: Arithmetic { whole, doublings, .. }, op, ranks, seed } = *self;
        let number = ((seed * ranks + rank) * PERIOD + index) as u64;
        // Fibonacci hashing: the upper bits of the product look random.
        let random = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as i64;
        // The ranks contribute in turn, so a missing contribution is noticed.
        let has_turn = (index + seed) % ranks == rank;
        // One term of a sum with this limit.
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

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Op(op) => op.fmt(f),
            Self::MulSum => f.pad("mulsum"),
        }
    }
}

impl FromStr for Reduction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = |reduction: &Self| reduction.to_string().eq_ignore_ascii_case(text);
        let problem = || format!("{text:?} is not a reduction; expected {}", Self::ALL.iter().join(", "));
        Self::ALL.iter().copied().find(named).ok_or_else(problem)
    }
}

/// A periodic sequence of elements.
///
/// The period is prime, so a block at the wrong position is detected: blocks start at multiples of powers of two.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    arithmetic: Arithmetic,
    bytes: Vec<u8>,
}

pub(crate) const PERIOD: usize = 1021;

/// The maximum number of elements to copy at a time, so that no copy has a large buffer's size. A multiple of the period.
pub(crate) const BLOCK: usize = 1024 * PERIOD;

impl Pattern {
    /// Creates a pattern. `element` returns the element at an index, in the first bytes of the array.
    pub(crate) fn new(arithmetic: Arithmetic, element: impl Fn(usize) -> [u8; 8]) -> Self {
        let bytes = (0..PERIOD).flat_map(|index| element(index).into_iter().take(arithmetic.size()));
        Self { arithmetic, bytes: bytes.collect() }
    }

    pub(crate) fn from(mut self, start: usize) -> Self {
        self.bytes.rotate_left(start % PERIOD * self.arithmetic.size());
        self
    }

    /// Returns the bytes of the first `count` elements, but of at most [`BLOCK`]: the following blocks are the same.
    pub(crate) fn block(&self, count: usize) -> Vec<u8> {
        let count = count.min(BLOCK);
        let mut block = self.bytes.repeat(count.div_ceil(PERIOD));
        block.truncate(count * self.arithmetic.size());
        block
    }

    pub(crate) fn compare(&self, buffer: &[u8]) -> Comparison {
        let mut comparison = Comparison::default();
        for (chunk, start) in buffer.chunks(self.bytes.len()).zip((0..).step_by(PERIOD)) {
            if *chunk != self.bytes[..chunk.len()] {
                comparison.add(self.differences(chunk), start);
            }
        }
        comparison
    }

    /// Compares element by element, because numbers may be equal although their bytes differ.
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FirstWrong {
    /// The index among the elements that the rank received.
    pub(crate) offset: usize,
    pub(crate) got: String,
    pub(crate) expected: String,
}

impl Comparison {
    /// Adds the comparison of a range that begins `offset` elements after the start of this comparison's range.
    pub(crate) fn add(&mut self, other: Self, offset: usize) {
        self.wrong += other.wrong;
        if self.first.is_none() {
            self.first = other.first.map(|first| FirstWrong { offset: first.offset + offset, ..first });
        }
    }
}

/// The arithmetic of a data type, to predict results.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Arithmetic {
    pub(crate) data_type: DataType,
    /// The number up to which a float type represents all whole numbers; `i64::MAX` for integers, which wrap.
    pub(crate) whole: i64,
    /// The number of times that 1 can be doubled without overflow.
    pub(crate) doublings: usize,
    is_integer: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    Integer(i128),
    Float64(f64),
    /// A float of at most 32 bits, which is shown with fewer digits than a `Float64`.
    Float(f64),
}

impl Arithmetic {
    pub(crate) fn new(data_type: DataType) -> Result<Self> {
        let float = |mantissa: u32, doublings| (1 << mantissa, doublings, false);
        let (whole, doublings, is_integer) = match data_type {
            DataType::Int8 | DataType::Uint8 | DataType::Int32 => (i64::MAX, usize::MAX, true),
            DataType::Uint32 | DataType::Int64 | DataType::Uint64 => (i64::MAX, usize::MAX, true),
            DataType::Float64 => float(f64::MANTISSA_DIGITS, 1023),
            DataType::Float32 => float(f32::MANTISSA_DIGITS, 127),
            DataType::Float16 => float(f16::MANTISSA_DIGITS, 15),
            DataType::Bfloat16 => float(bf16::MANTISSA_DIGITS, 127),
            DataType::Float8e4m3 => float(4, 8),
            DataType::Float8e5m2 => float(3, 15),
            _ => bail!("no arithmetic for {data_type}"),
        };
        Ok(Self { data_type, whole, doublings, is_integer })
    }

    pub(crate) fn size(self) -> usize {
        self.data_type.size()
    }

    /// Returns the bytes of a whole number in this data type, padded with zeros. Integers wrap.
    pub(crate) fn integer(self, value: i64) -> [u8; 8] {
        match self.data_type {
            DataType::Int8 | DataType::Uint8 => padded(&(value as u8).to_ne_bytes()),
            DataType::Int32 | DataType::Uint32 => padded(&(value as u32).to_ne_bytes()),
            DataType::Int64 | DataType::Uint64 => value.to_ne_bytes(),
            _ => self.float(value as f64),
        }
    }

    /// Returns the bytes of the nearest float of this data type, padded with zeros.
    fn float(self, value: f64) -> [u8; 8] {
        let narrow = value as f32;
        match self.data_type {
            DataType::Float16 => padded(&f16::from_f32(narrow).to_ne_bytes()),
            DataType::Bfloat16 => padded(&bf16::from_f32(narrow).to_ne_bytes()),
            DataType::Float8e4m3 => padded(&[F8E4M3::from_f32(narrow).to_bits()]),
            DataType::Float8e5m2 => padded(&[F8E5M2::from_f32(narrow).to_bits()]),
            DataType::Float32 => padded(&narrow.to_ne_bytes()),
            _ => value.to_ne_bytes(),
        }
    }

    /// Returns `value / divisor` as NCCL computes averages: truncated for integers, multiplied by the rounded inverse for floats.
    /// `value` must be a power of two.
    pub(crate) fn quotient(self, value: i64, divisor: usize) -> [u8; 8] {
        if self.is_integer {
            return self.integer(value / divisor as i64);
        }
        self.float(value as f64 * self.number(&self.float(1.0 / divisor as f64)).to_f64())
    }

    /// Returns the number that the first bytes represent.
    pub(crate) fn number(self, bytes: &[u8]) -> Number {
        let float = |value: f32| Number::Float(value.into());
        let bytes = &bytes[..self.size()];
        match self.data_type {
            DataType::Int8 => Number::Integer(read::<i8>(bytes).into()),
            DataType::Uint8 => Number::Integer(read::<u8>(bytes).into()),
            DataType::Int32 => Number::Integer(read::<i32>(bytes).into()),
            DataType::Uint32 => Number::Integer(read::<u32>(bytes).into()),
            DataType::Int64 => Number::Integer(read::<i64>(bytes).into()),
            DataType::Uint64 => Number::Integer(read::<u64>(bytes).into()),
            DataType::Float16 => float(f16::from_bits(read(bytes)).to_f32()),
            DataType::Bfloat16 => float(bf16::from_bits(read(bytes)).to_f32()),
            DataType::Float8e4m3 => float(F8E4M3::from_bits(bytes[0]).to_f32()),
            DataType::Float8e5m2 => float(F8E5M2::from_bits(bytes[0]).to_f32()),
            DataType::Float32 => float(read(bytes)),
            _ => Number::Float64(read(bytes)),
        }
    }
}

impl Number {
    fn to_f64(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Float64(value) | Self::Float(value) => value,
        }
    }
}

impl Display for Number {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => value.fmt(f),
            Self::Float64(value) => value.fmt(f),
            Self::Float(value) => (*value as f32).fmt(f),
        }
    }
}

fn padded(bytes: &[u8]) -> [u8; 8] {
    let mut padded = [0; 8];
    padded[..bytes.len()].copy_from_slice(bytes);
    padded
}

#[cfg(test)]
#[path = "../../tests/unit/bench_data.rs"]
pub(crate) mod tests;
