//! A slow and simple reference, which the CPU backend has to match to the bit.
//!
//! It computes integers in 128 bits, and floats of fewer than 32 bits in f64, rounded by counting units in the
//! last place. Only the bits of a NaN are unspecified.

use std::ffi::c_void;
use std::fmt::Debug;
use std::sync::OnceLock;

use libnccl::sys::{ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t};
use libnccl_test_support::random_inputs::Random;

use super::{Comm, OK, STREAM};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Op {
    Sum,
    Prod,
    Max,
    Min,
    Avg,
    PreMulSum,
}

pub(crate) const OPS: [Op; 6] = [Op::Sum, Op::Prod, Op::Max, Op::Min, Op::Avg, Op::PreMulSum];

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Function {
    AllReduce,
    Reduce,
    ReduceScatter,
}

pub(crate) const FUNCTIONS: [Function; 3] = [Function::AllReduce, Function::Reduce, Function::ReduceScatter];

/// An element type, with NCCL's arithmetic.
pub(crate) trait Number: Copy + Debug + Send + Sync {
    const RAW: ncclDataType_t;
    const SIZE: usize;

    /// Converts from the low bytes of a word.
    fn from_bits(bits: u64) -> Self;
    fn bits(self) -> u64;
    fn nearest(value: f64) -> Self;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    /// Returns the factor of an average, or `None` if the average divides.
    fn reciprocal(ranks: usize) -> Option<Self>;
    fn divide(self, ranks: usize) -> Self;
    fn is_nan(self) -> bool;
    /// Returns the bit patterns of special values.
    fn special() -> Vec<u64>;
    /// Returns a number so small that the product of two may be subnormal.
    fn small(random: u64) -> Self;
}

macro_rules! integers {
    ($($type:ty: $raw:ident),*) => {$(
        impl Number for $type {
            const RAW: ncclDataType_t = ncclDataType_t::$raw;
            const SIZE: usize = size_of::<Self>();

            fn from_bits(bits: u64) -> Self {
                bits as Self
            }

            fn bits(self) -> u64 {
                // Without the sign extension.
                self as u64 & (u64::MAX >> (64 - Self::BITS))
            }

            fn nearest(value: f64) -> Self {
                value as i64 as Self
            }

            fn add(self, other: Self) -> Self {
                (self as i128 + other as i128) as Self
            }

            fn multiply(self, other: Self) -> Self {
                (self as i128 as u128).wrapping_mul(other as i128 as u128) as Self
            }

            fn max(self, other: Self) -> Self {
                if self as i128 > other as i128 { self } else { other }
            }

            fn min(self, other: Self) -> Self {
                if (self as i128) < other as i128 { self } else { other }
            }

            fn reciprocal(_: usize) -> Option<Self> {
                None
            }

            fn divide(self, ranks: usize) -> Self {
                (self as i128 / ranks as i128) as Self
            }

            fn is_nan(self) -> bool {
                false
            }

            fn special() -> Vec<u64> {
                [0, 1, Self::MAX, Self::MIN, Self::MAX / 2, Self::MAX / 3].map(Self::bits).to_vec()
            }

            fn small(random: u64) -> Self {
                (random % 100) as Self
            }
        }
    )*};
}

integers!(i8: ncclInt8, u8: ncclUint8, i32: ncclInt32, u32: ncclUint32, i64: ncclInt64, u64: ncclUint64);

macro_rules! floats {
    ($($type:ty as $bits:ty: $raw:ident),*) => {$(
        impl Number for $type {
            const RAW: ncclDataType_t = ncclDataType_t::$raw;
            const SIZE: usize = size_of::<Self>();

            fn from_bits(bits: u64) -> Self {
                Self::from_bits(bits as $bits)
            }

            fn bits(self) -> u64 {
                self.to_bits().into()
            }

            fn nearest(value: f64) -> Self {
                value as Self
            }

            fn add(self, other: Self) -> Self {
                self + other
            }

            fn multiply(self, other: Self) -> Self {
                self * other
            }

            fn max(self, other: Self) -> Self {
                if second_is_larger(self.into(), other.into()) { other } else { self }
            }

            fn min(self, other: Self) -> Self {
                if second_is_smaller(self.into(), other.into()) { other } else { self }
            }

            fn reciprocal(ranks: usize) -> Option<Self> {
                Some(1.0 / ranks as Self)
            }

            fn divide(self, _: usize) -> Self {
                self
            }

            fn is_nan(self) -> bool {
                self.is_nan()
            }

            fn special() -> Vec<u64> {
                let (one, infinity) = (Self::bits(1.0), Self::bits(Self::INFINITY));
                let (normal, largest) = (Self::bits(Self::MIN_POSITIVE), Self::bits(Self::MAX));
                signed(&[0, 1, normal - 1, normal, one, largest, infinity, infinity + 1], Self::SIZE)
            }

            fn small(random: u64) -> Self {
                Self::MIN_POSITIVE.sqrt() * (random % 4096) as Self / 2048.0
            }
        }
    )*};
}

floats!(f32 as u32: ncclFloat32, f64 as u64: ncclFloat64);

/// Returns the magnitudes with either sign.
fn signed(magnitudes: &[u64], size: usize) -> Vec<u64> {
    magnitudes.iter().flat_map(|magnitude| [*magnitude, magnitude | 1 << (8 * size - 1)]).collect()
}

fn second_is_larger(first: f64, second: f64) -> bool {
    match (first.is_nan(), second.is_nan()) {
        (true, _) => true,
        (false, true) => false,
        (false, false) if first == second => first.is_sign_negative(),
        (false, false) => first < second,
    }
}

fn second_is_smaller(first: f64, second: f64) -> bool {
    match (first.is_nan(), second.is_nan()) {
        (true, _) => true,
        (false, true) => false,
        (false, false) if first == second => second.is_sign_negative(),
        (false, false) => first > second,
    }
}

/// A floating-point format that Rust does not have.
pub(crate) struct Format {
    pub(crate) raw: ncclDataType_t,
    pub(crate) exponent: i32,
    pub(crate) mantissa: i32,
    /// The bits of the largest finite magnitude; infinity (unless `no_infinity`) and NaN follow.
    pub(crate) largest: u64,
    pub(crate) no_infinity: bool,
    /// Overflow gives the largest number instead of infinity.
    pub(crate) saturates: bool,
}

pub(crate) const HALF: usize = 0;
pub(crate) const BFLOAT16: usize = 1;
pub(crate) const E4M3: usize = 2;
pub(crate) const E5M2: usize = 3;

pub(crate) static FORMATS: [Format; 4] = [
    format(ncclDataType_t::ncclFloat16, 5, 10, 0x7bff, false, false),
    format(ncclDataType_t::ncclBfloat16, 8, 7, 0x7f7f, false, false),
    format(ncclDataType_t::ncclFloat8e4m3, 4, 3, 0x7e, true, true),
    format(ncclDataType_t::ncclFloat8e5m2, 5, 2, 0x7b, false, true),
];

const fn format(
    raw: ncclDataType_t,
    exponent: i32,
    mantissa: i32,
    largest: u64,
    no_infinity: bool,
    saturates: bool,
) -> Format {
    Format { raw, exponent, mantissa, largest, no_infinity, saturates }
}

impl Format {
    fn sign(&self) -> u64 {
        1 << (self.exponent + self.mantissa)
    }

    /// Returns the exponent of the smallest normal number.
    fn smallest_exponent(&self) -> i32 {
        2 - (1 << (self.exponent - 1))
    }

    /// Returns the value of `bits` by the definition of the format.
    pub(crate) fn value(&self, bits: u64) -> f64 {
        let magnitude = bits & (self.sign() - 1);
        let (exponent, mantissa) = ((magnitude >> self.mantissa) as i32, magnitude % (1 << self.mantissa));
        let fraction = mantissa as f64 / f64::from(1 << self.mantissa);
        let smallest = self.smallest_exponent();
        let value = match exponent {
            _ if magnitude == self.largest + 1 && !self.no_infinity => f64::INFINITY,
            _ if magnitude > self.largest => f64::NAN,
            0 => fraction * 2f64.powi(smallest),
            _ => (1.0 + fraction) * 2f64.powi(exponent - 1 + smallest),
        };
        if bits & self.sign() == 0 { value } else { -value }
    }

    /// Returns the bits of the nearest number, or of the even one of two.
    pub(crate) fn nearest(&self, value: f64) -> u64 {
        if value.is_nan() {
            return self.sign() - 1;
        }
        let sign = if value.is_sign_negative() { self.sign() } else { 0 };
        let overflow = sign | if self.saturates { self.largest } else { self.largest + 1 };
        if value.is_infinite() {
            return overflow;
        }
        // f64's exponent: what is subnormal there is far below any of these formats.
        let exponent = Ord::max((value.abs().to_bits() >> 52) as i32 - 1023, self.smallest_exponent());
        let unit = f64::from_bits(((exponent - self.mantissa + 1023) as u64) << 52);
        let units = (value.abs() / unit).round_ties_even();
        let one = 1u64 << self.mantissa;
        // A subnormal number's units are its bits. Above it each exponent has `one` units; those that are rounded
        // up to the next exponent carry into it.
        let bits = units as u64 + (exponent - self.smallest_exponent()) as u64 * one;
        if bits > self.largest { overflow } else { sign | bits }
    }
}

/// An element of a format.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Small<const F: usize>(pub u64);

/// Returns the value of each bit pattern of a format.
fn values(format: usize) -> &'static [f64] {
    static VALUES: [OnceLock<Vec<f64>>; 4] = [const { OnceLock::new() }; 4];
    VALUES[format].get_or_init(|| {
        let format = &FORMATS[format];
        (0..2 * format.sign()).map(|bits| format.value(bits)).collect()
    })
}

impl<const F: usize> Small<F> {
    fn value(self) -> f64 {
        values(F)[self.0 as usize]
    }

    /// Rounds a result of arithmetic: that of an 8-bit float to half precision first.
    fn result(value: f64) -> Self {
        let halves = &FORMATS[HALF];
        Self::nearest(if Self::SIZE == 1 { halves.value(halves.nearest(value)) } else { value })
    }
}

impl<const F: usize> Number for Small<F> {
    const RAW: ncclDataType_t = FORMATS[F].raw;
    const SIZE: usize = (1 + FORMATS[F].exponent + FORMATS[F].mantissa) as usize / 8;

    fn from_bits(bits: u64) -> Self {
        Self(bits & (2 * FORMATS[F].sign() - 1))
    }

    fn bits(self) -> u64 {
        self.0
    }

    fn nearest(value: f64) -> Self {
        Self(FORMATS[F].nearest(value))
    }

    // An f64 holds every product of two of these. Where it does not hold a sum, the lost bits are too small to
    // affect the result.
    fn add(self, other: Self) -> Self {
        Self::result(self.value() + other.value())
    }

    fn multiply(self, other: Self) -> Self {
        Self::result(self.value() * other.value())
    }

    // Rounded, because 8-bit infinities are too large.
    fn max(self, other: Self) -> Self {
        let (value, other) = (self.value(), other.value());
        Self::nearest(if second_is_larger(value, other) { other } else { value })
    }

    fn min(self, other: Self) -> Self {
        let (value, other) = (self.value(), other.value());
        Self::nearest(if second_is_smaller(value, other) { other } else { value })
    }

    fn reciprocal(ranks: usize) -> Option<Self> {
        Some(Self::nearest(1.0 / ranks as f64))
    }

    fn divide(self, _: usize) -> Self {
        self
    }

    fn is_nan(self) -> bool {
        self.value().is_nan()
    }

    fn special() -> Vec<u64> {
        let format = &FORMATS[F];
        let (normal, largest, one) = (1 << format.mantissa, format.largest, format.nearest(1.0));
        signed(&[0, 1, normal - 1, normal, one, largest, largest + 1, format.sign() - 1], Self::SIZE)
    }

    fn small(random: u64) -> Self {
        let root = 2f64.powi(FORMATS[F].smallest_exponent() / 2);
        Self::nearest(root * (random % 4096) as f64 / 2048.0)
    }
}

/// Returns the bytes of `length` elements: random bits, numbers near 1, special values, small numbers. The kind depends
/// on the index, so that elements of one kind are reduced with each other.
pub(crate) fn elements<T: Number>(seed: u64, length: usize) -> Vec<u8> {
    let (mut random, special) = (Random(seed << 32), T::special());
    let mut bytes = Vec::with_capacity(length * T::SIZE);
    for index in 0..length {
        let number = random.next();
        let element = match index % 8 {
            0..3 => T::from_bits(number),
            3 | 4 => T::nearest((number % 2001) as f64 / 77.0 - 13.0),
            5 => T::small(number),
            6 => T::from_bits(special[number as usize % special.len()]),
            _ if number.is_multiple_of(2) => T::from_bits(special[number as usize / 2 % special.len()]),
            _ => T::nearest((number % 20_001) as f64 / 7.0 - 1300.0),
        };
        let word = element.bits().to_le_bytes();
        bytes.extend_from_slice(&word[..T::SIZE]);
    }
    bytes
}

pub(crate) fn load<T: Number>(bytes: &[u8], index: usize) -> T {
    let mut word = [0; 8];
    word[..T::SIZE].copy_from_slice(&bytes[index * T::SIZE..][..T::SIZE]);
    T::from_bits(u64::from_le_bytes(word))
}

/// Returns a rank's factor in [`Op::PreMulSum`].
fn scalar<T: Number>(rank: usize) -> T {
    T::nearest([0.3, 2.0, -1.7, 3.1, 0.001, 7.0, 1.0, -5.0][rank])
}

/// Reduces one element in the order of the ranks, from the one after `last` around to `last`.
pub(crate) fn reduced<T: Number>(op: Op, sends: &[Vec<u8>], index: usize, last: usize) -> T {
    let ranks = sends.len();
    let mut result = None;
    for step in 1..=ranks {
        let rank = (last + step) % ranks;
        let element = load::<T>(&sends[rank], index);
        let factor = match op {
            Op::Avg => T::reciprocal(ranks),
            Op::PreMulSum => Some(scalar::<T>(rank)),
            _ => None,
        };
        let input = factor.map_or(element, |factor| element.multiply(factor));
        result = Some(match (result, op) {
            (None, _) => input,
            (Some(result), Op::Sum | Op::Avg | Op::PreMulSum) => T::add(result, input),
            (Some(result), Op::Prod) => T::multiply(result, input),
            (Some(result), Op::Max) => T::max(result, input),
            (Some(result), Op::Min) => T::min(result, input),
        });
    }
    let result = result.expect("there is a rank");
    if op == Op::Avg { result.divide(ranks) } else { result }
}

/// Returns the rank that is last in the order of reduction.
pub(crate) fn last<T: Number>(
    function: Function,
    ranks: usize,
    count: usize,
    root: usize,
    index: usize,
) -> usize {
    match function {
        Function::AllReduce => {
            let bytes = (count.div_ceil(ranks) * T::SIZE).next_multiple_of(512);
            index * T::SIZE / bytes
        }
        Function::Reduce => root,
        Function::ReduceScatter => index / count,
    }
}

/// Calls a reduction, with an operator of its own if there is no other.
#[allow(clippy::too_many_arguments)]
pub(crate) fn reduce<T: Number>(
    function: Function,
    op: Op,
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    root: i32,
    rank: usize,
    comm: Comm,
) -> ncclResult_t {
    let created = create::<T>(op, rank, comm);
    let code = match function {
        Function::AllReduce => nccl!(ncclAllReduce(from, to, count, T::RAW, created, comm.0, STREAM)),
        Function::Reduce => nccl!(ncclReduce(from, to, count, T::RAW, created, root, comm.0, STREAM)),
        Function::ReduceScatter => nccl!(ncclReduceScatter(from, to, count, T::RAW, created, comm.0, STREAM)),
    };
    if op == Op::PreMulSum {
        assert_eq!(nccl!(ncclRedOpDestroy(created, comm.0)), OK);
    }
    code
}

/// Creates the reduction operator to pass.
fn create<T: Number>(op: Op, rank: usize, comm: Comm) -> ncclRedOp_t {
    match op {
        Op::Sum => ncclRedOp_t::ncclSum,
        Op::Prod => ncclRedOp_t::ncclProd,
        Op::Max => ncclRedOp_t::ncclMax,
        Op::Min => ncclRedOp_t::ncclMin,
        Op::Avg => ncclRedOp_t::ncclAvg,
        Op::PreMulSum => {
            let mut scalar = scalar::<T>(rank).bits().to_le_bytes();
            let (mut created, scalar) = (ncclRedOp_t::ncclSum, scalar.as_mut_ptr().cast());
            let residence = ncclScalarResidence_t::ncclScalarHostImmediate;
            assert_eq!(nccl!(ncclRedOpCreatePreMulSum(&mut created, scalar, T::RAW, residence, comm.0)), OK);
            created
        }
    }
}
