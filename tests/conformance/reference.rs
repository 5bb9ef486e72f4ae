//! A slow and simple reference of NCCL's arithmetic, which the CPU backend must match bit by bit.
//!
//! Elements are bits. It computes integers in 128 bits, and floats of fewer than 32 bits in f64, rounded by counting units in the
//! last place. Only the bits of a NaN are unspecified.

use libnccl::sys::ncclDataType_t;
use libnccl_test_support::random_inputs::Random;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Sum,
    Prod,
    Max,
    Min,
    Avg,
    PreMulSum,
}

/// An element type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Type {
    pub(crate) raw: ncclDataType_t,
    pub(crate) size: usize,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Signed,
    Unsigned,
    Float(Format),
}

/// A floating-point format.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Format {
    exponent: i32,
    mantissa: i32,
    /// The bits of the largest finite magnitude; infinity, if there is one, and NaN follow.
    largest: u64,
    has_infinity: bool,
    /// Overflow gives the largest number instead of infinity.
    saturates: bool,
}

const fn format(exponent: i32, mantissa: i32, largest: u64) -> Format {
    Format { exponent, mantissa, largest, has_infinity: true, saturates: false }
}

const HALF: Format = format(5, 10, 0x7bff);
const BFLOAT16: Format = format(8, 7, 0x7f7f);
const FLOAT: Format = format(8, 23, 0x7f7f_ffff);
const DOUBLE: Format = format(11, 52, 0x7fef_ffff_ffff_ffff);
const E4M3: Format = Format { has_infinity: false, saturates: true, ..format(4, 3, 0x7e) };
const E5M2: Format = Format { saturates: true, ..format(5, 2, 0x7b) };

const fn of(raw: ncclDataType_t, size: usize, kind: Kind) -> Type {
    Type { raw, size, kind }
}

pub(crate) const TYPES: [Type; 12] = [
    of(ncclDataType_t::ncclInt8, 1, Kind::Signed),
    of(ncclDataType_t::ncclUint8, 1, Kind::Unsigned),
    of(ncclDataType_t::ncclInt32, 4, Kind::Signed),
    of(ncclDataType_t::ncclUint32, 4, Kind::Unsigned),
    of(ncclDataType_t::ncclInt64, 8, Kind::Signed),
    of(ncclDataType_t::ncclUint64, 8, Kind::Unsigned),
    of(ncclDataType_t::ncclFloat16, 2, Kind::Float(HALF)),
    of(ncclDataType_t::ncclFloat32, 4, Kind::Float(FLOAT)),
    of(ncclDataType_t::ncclFloat64, 8, Kind::Float(DOUBLE)),
    of(ncclDataType_t::ncclBfloat16, 2, Kind::Float(BFLOAT16)),
    of(ncclDataType_t::ncclFloat8e4m3, 1, Kind::Float(E4M3)),
    of(ncclDataType_t::ncclFloat8e5m2, 1, Kind::Float(E5M2)),
];

impl Format {
    fn sign(self) -> u64 {
        1 << (self.exponent + self.mantissa)
    }

    /// Returns the exponent of the smallest normal number.
    fn smallest_exponent(self) -> i32 {
        2 - (1 << (self.exponent - 1))
    }

    /// Returns the value of `bits` by the definition of the format.
    fn value(self, bits: u64) -> f64 {
        match self {
            DOUBLE => return f64::from_bits(bits),
            FLOAT => return f32::from_bits(bits as u32).into(),
            _ => {}
        }
        let magnitude = bits & (self.sign() - 1);
        let (exponent, mantissa) = ((magnitude >> self.mantissa) as i32, magnitude % (1 << self.mantissa));
        let fraction = mantissa as f64 / f64::from(1 << self.mantissa);
        let smallest = self.smallest_exponent();
        let value = match exponent {
            _ if magnitude == self.largest + 1 && self.has_infinity => f64::INFINITY,
            _ if magnitude > self.largest => f64::NAN,
            0 => fraction * 2f64.powi(smallest),
            _ => (1.0 + fraction) * 2f64.powi(exponent - 1 + smallest),
        };
        if bits & self.sign() == 0 { value } else { -value }
    }

    /// Returns the bits of the nearest number, or of the even one of two.
    fn nearest(self, value: f64) -> u64 {
        match self {
            DOUBLE => return value.to_bits(),
            FLOAT => return (value as f32).to_bits().into(),
            _ if value.is_nan() => return self.sign() - 1,
            _ => {}
        }
        let sign = if value.is_sign_negative() { self.sign() } else { 0 };
        let overflow = sign | if self.saturates { self.largest } else { self.largest + 1 };
        if value.is_infinite() {
            return overflow;
        }
        // f64's exponent: its subnormal numbers are far below any of these formats.
        let exponent = Ord::max((value.abs().to_bits() >> 52) as i32 - 1023, self.smallest_exponent());
        let unit = f64::from_bits(((exponent - self.mantissa + 1023) as u64) << 52);
        let units = (value.abs() / unit).round_ties_even();
        // A subnormal number's units are its bits. Above it each exponent has as many units as there are mantissas; those that are
        // rounded up to the next exponent carry into it.
        let bits = units as u64 + (((exponent - self.smallest_exponent()) as u64) << self.mantissa);
        if bits > self.largest { overflow } else { sign | bits }
    }

    /// Rounds a result of arithmetic. An 8-bit float is rounded to half precision first.
    fn result(self, value: f64) -> u64 {
        let is_byte = self.exponent + self.mantissa == 7;
        self.nearest(if is_byte { HALF.value(HALF.nearest(value)) } else { value })
    }
}

/// Returns whether the second value is larger, or its NaN or zero counts as larger.
fn second_is_larger(first: f64, second: f64) -> bool {
    match (first.is_nan(), second.is_nan()) {
        (true, _) => true,
        (false, true) => false,
        (false, false) if first == second => first.is_sign_negative(),
        (false, false) => first < second,
    }
}

impl Type {
    fn mask(self) -> u64 {
        u64::MAX >> (64 - 8 * self.size)
    }

    fn integer(self, bits: u64) -> i128 {
        let unused = 64 - 8 * self.size;
        if self.kind == Kind::Signed { i128::from((bits << unused) as i64 >> unused) } else { bits.into() }
    }

    pub(crate) fn load(self, bytes: &[u8], index: usize) -> u64 {
        let mut word = [0; 8];
        word[..self.size].copy_from_slice(&bytes[index * self.size..][..self.size]);
        u64::from_le_bytes(word)
    }

    pub(crate) fn nearest(self, value: f64) -> u64 {
        match self.kind {
            Kind::Float(format) => format.nearest(value),
            _ => value as i64 as u64 & self.mask(),
        }
    }

    /// Returns whether two results are equal: all NaNs are, and on a GPU the extreme of two zeros may be either.
    pub(crate) fn is_same(self, op: Option<Op>, found: u64, expected: u64, is_gpu: bool) -> bool {
        let Kind::Float(format) = self.kind else { return found == expected };
        let (one, other) = (format.value(found), format.value(expected));
        let is_extreme = matches!(op, Some(Op::Max | Op::Min)) && is_gpu;
        found == expected || one.is_nan() && other.is_nan() || is_extreme && one == other
    }

    fn combine(self, op: Op, one: u64, other: u64) -> u64 {
        if let Kind::Float(format) = self.kind {
            let (a, b) = (format.value(one), format.value(other));
            return match op {
                // An f64 holds every product of two smaller floats, and the lost bits of a sum cannot affect the result, except
                // for f32, which is computed in itself.
                Op::Sum | Op::Avg | Op::PreMulSum if format == FLOAT => {
                    (a as f32 + b as f32).to_bits().into()
                }
                Op::Prod if format == FLOAT => (a as f32 * b as f32).to_bits().into(),
                Op::Sum | Op::Avg | Op::PreMulSum => format.result(a + b),
                Op::Prod => format.result(a * b),
                // Rounded, because 8-bit infinities are too large.
                Op::Max => format.nearest(if second_is_larger(a, b) { b } else { a }),
                Op::Min => format.nearest(if second_is_larger(-a, -b) { b } else { a }),
            };
        }
        let (a, b) = (self.integer(one), self.integer(other));
        let result = match op {
            Op::Sum | Op::Avg | Op::PreMulSum => a + b,
            Op::Prod => (a as u128).wrapping_mul(b as u128) as i128,
            Op::Max => a.max(b),
            Op::Min => a.min(b),
        };
        result as u64 & self.mask()
    }

    /// Reduces one element in the order of the ranks, from the one after `last` around to `last`.
    pub(crate) fn reduce(self, op: Op, sends: &[Vec<u8>], index: usize, last: usize, scalars: &[u64]) -> u64 {
        let ranks = sends.len();
        let input = |rank: usize| {
            let element = self.load(&sends[rank], index);
            match (op, self.kind) {
                (Op::Avg, Kind::Float(_)) => {
                    self.combine(Op::Prod, element, self.nearest(1.0 / ranks as f64))
                }
                (Op::PreMulSum, _) => self.combine(Op::Prod, element, scalars[rank]),
                _ => element,
            }
        };
        let inputs = (1..=ranks).map(|step| input((last + step) % ranks));
        let result = inputs.reduce(|one, other| self.combine(op, one, other)).expect("there is a rank");
        match (op, self.kind) {
            (Op::Avg, Kind::Signed | Kind::Unsigned) => {
                (self.integer(result) / ranks as i128) as u64 & self.mask()
            }
            _ => result,
        }
    }

    /// Returns the bits of special values.
    fn special(self) -> Vec<u64> {
        let signed = |magnitude: u64| [magnitude, magnitude | 1 << (8 * self.size - 1)];
        match self.kind {
            Kind::Float(format) => {
                let (normal, largest) = (1 << format.mantissa, format.largest);
                let quiet_nan = largest + 1 + (1 << (format.mantissa - 1));
                let magnitudes = [
                    0,
                    1,
                    normal - 1,
                    normal,
                    format.nearest(1.0),
                    largest,
                    largest + 1,
                    quiet_nan & (format.sign() - 1),
                ];
                magnitudes.into_iter().flat_map(signed).collect()
            }
            Kind::Signed => {
                vec![0, 1, self.mask() >> 1, self.mask() / 2 + 1, self.mask() / 4, self.mask() / 6]
            }
            Kind::Unsigned => vec![0, 1, self.mask(), self.mask() / 2, self.mask() / 3],
        }
    }

    /// Returns the bytes of elements: random bits, numbers near 1, special values, and numbers so small that a product of two is
    /// subnormal. The kind depends on the index, so that elements of one kind are reduced with each other.
    pub(crate) fn elements(self, seed: u64, length: usize) -> Vec<u8> {
        let (mut random, special) = (Random(seed << 32), self.special());
        let mut element = |index: usize| {
            let number = random.next();
            let small =
                |format: Format| 2f64.powi(format.smallest_exponent() / 2) * (number % 4096) as f64 / 2048.0;
            match (index % 8, self.kind) {
                (0..3, _) => number & self.mask(),
                (3 | 4, _) => self.nearest((number % 2001) as f64 / 77.0 - 13.0),
                (5, Kind::Float(format)) => self.nearest(small(format)),
                (5 | 6, _) => special[number as usize % special.len()],
                _ if number.is_multiple_of(2) => special[number as usize / 2 % special.len()],
                _ => self.nearest((number % 20_001) as f64 / 7.0 - 1300.0),
            }
        };
        (0..length).flat_map(|index| element(index).to_le_bytes().into_iter().take(self.size)).collect()
    }

    /// Returns the bytes of elements for a GPU: those whose results NVIDIA does not specify are left out. The results of floats of
    /// fewer than 32 bits are exact.
    pub(crate) fn elements_for_gpu(self, seed: u64, length: usize, op: Option<Op>) -> Vec<u8> {
        let (mut random, special) = (Random(seed << 32), self.special());
        let mut element = || {
            let number = random.next();
            let Kind::Float(format) = self.kind else { return number & self.mask() };
            if self.size < 4 {
                return self.nearest([1.0, 2.0, 4.0][number as usize % 3]);
            }
            let bits = match number % 8 {
                0 => special[(number >> 8) as usize % special.len()],
                1 | 2 => number >> (64 - 8 * self.size),
                _ => self.nearest((number as i64 >> 3) as f64 / (1_u64 << 58) as f64),
            };
            let value = format.value(bits);
            match op {
                // Signaling NaNs.
                _ if value.is_nan() => self.nearest(f64::NAN),
                // NCCL halves first, which rounds twice.
                Some(Op::Avg) if value.abs() < format.value(2 << format.mantissa) => 0,
                _ => bits,
            }
        };
        (0..length).flat_map(|_| element().to_le_bytes().into_iter().take(self.size)).collect()
    }
}

/// Checks the reference itself, against values from the definitions of the formats.
pub(crate) fn check_reference() {
    for (format, bits, value) in [
        (HALF, 0x7bff, 65504.0),
        (HALF, 0x0001, 2f64.powi(-24)),
        (BFLOAT16, 0x0001, 2f64.powi(-133)),
        (E4M3, 0x7e, 448.0),
        (E4M3, 0x01, 2f64.powi(-9)),
        (E5M2, 0x7b, 57344.0),
        (E5M2, 0x01, 2f64.powi(-16)),
    ] {
        assert_eq!((format.value(bits), format.nearest(value)), (value, bits));
    }
    for format in [HALF, BFLOAT16, E4M3, E5M2] {
        // Ties round to even; anything else to the nearer number.
        for bits in 0..format.largest {
            let middle = f64::midpoint(format.value(bits), format.value(bits + 1));
            assert_eq!(format.nearest(format.value(bits)), bits);
            assert_eq!(format.nearest(middle), bits + bits % 2);
            assert_eq!(format.nearest(middle.next_down()), bits);
            assert_eq!(format.nearest(middle.next_up()), bits + 1);
        }
    }
    assert_eq!(HALF.nearest(65520.0), 0x7c00);
    assert_eq!(E4M3.nearest(f64::INFINITY), 0x7e);
    assert_eq!(E5M2.nearest(-1e9), 0xfb);
}
