//! Reductions over byte slices: scaling an input, combining two, finishing the result.
//!
//! The loops over elements are compiled twice: for this CPU's widest instructions and for any CPU. The results are equal, because
//! nothing is contracted or reordered.
#![allow(unsafe_code)]

use libnccl::sys::ncclRedOp_t;

use crate::reduce::data_type::DataType;
use crate::reduce::element::{Bfloat16, Element, Float8e4m3, Float8e5m2, Float16, extremes, padded};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Reduction {
    Sum,
    Prod,
    Max,
    Min,
    Avg,
    /// The sum of the inputs, each multiplied by its rank's scalar, which is stored in the first bytes.
    PreMulSum([u8; 8]),
}

/// The factor of a rank's inputs, stored as an element in the first bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Factor(pub(crate) [u8; 8]);

/// The built-in reductions and their names, indexed by NCCL's number.
const BUILT_IN: [(Reduction, &str); ncclRedOp_t::ncclNumOps.0 as usize] = [
    (Reduction::Sum, "ncclSum"),
    (Reduction::Prod, "ncclProd"),
    (Reduction::Max, "ncclMax"),
    (Reduction::Min, "ncclMin"),
    (Reduction::Avg, "ncclAvg"),
];

/// The number of every custom reduction: the first number after the built-in reductions.
const CUSTOM: u8 = ncclRedOp_t::ncclNumOps.0 as u8;

/// Evaluates an expression with `$element` bound to the Rust type of a data type's elements.
macro_rules! with_element {
    ($data_type:expr, $element:ident => $body:expr) => {
        match $data_type {
            DataType::Int8 => with_element!(@ i8, $element, $body),
            DataType::Uint8 => with_element!(@ u8, $element, $body),
            DataType::Int32 => with_element!(@ i32, $element, $body),
            DataType::Uint32 => with_element!(@ u32, $element, $body),
            DataType::Int64 => with_element!(@ i64, $element, $body),
            DataType::Uint64 => with_element!(@ u64, $element, $body),
            DataType::Float16 => with_element!(@ Float16, $element, $body),
            DataType::Float32 => with_element!(@ f32, $element, $body),
            DataType::Float64 => with_element!(@ f64, $element, $body),
            DataType::Bfloat16 => with_element!(@ Bfloat16, $element, $body),
            DataType::Float8e4m3 => with_element!(@ Float8e4m3, $element, $body),
            DataType::Float8e5m2 => with_element!(@ Float8e5m2, $element, $body),
        }
    };
    (@ $type:ty, $element:ident, $body:expr) => {{
        type $element = $type;
        $body
    }};
}

/// Computes each element of `$result` from one of: its present value; its present value and its counterpart in `$input`; its
/// counterparts in two inputs. If the type holds several elements, fewer may remain at the end. This is a macro because closures
/// are not always inlined.
macro_rules! each {
    ($element:ident of $result:ident: |$old:ident| $value:expr) => {{
        let (elements, rest) = $result.as_chunks_mut();
        for element in elements {
            let $old = $element::from_ne_bytes(*element);
            *element = $value.to_ne_bytes();
        }
        if !rest.is_empty() {
            let $old = $element::from_ne_bytes(padded(rest));
            rest.copy_from_slice(&$value.to_ne_bytes()[..rest.len()]);
        }
    }};
    ($element:ident of $result:ident: |$old:ident, $new:ident in $input:ident| $value:expr) => {{
        let (elements, rest) = $result.as_chunks_mut();
        let (inputs, input) = $input.as_chunks();
        for (element, input) in elements.iter_mut().zip(inputs) {
            let ($old, $new) = ($element::from_ne_bytes(*element), $element::from_ne_bytes(*input));
            *element = $value.to_ne_bytes();
        }
        if !rest.is_empty() {
            let ($old, $new) =
                ($element::from_ne_bytes(padded(rest)), $element::from_ne_bytes(padded(input)));
            rest.copy_from_slice(&$value.to_ne_bytes()[..rest.len()]);
        }
    }};
    ($element:ident of $result:ident: |$one:ident in $left:ident, $other:ident in $right:ident| $value:expr) => {{
        let (elements, rest) = $result.as_chunks_mut();
        let ((lefts, left), (rights, right)) = ($left.as_chunks(), $right.as_chunks());
        for ((element, left), right) in elements.iter_mut().zip(lefts).zip(rights) {
            let ($one, $other) = ($element::from_ne_bytes(*left), $element::from_ne_bytes(*right));
            *element = $value.to_ne_bytes();
        }
        if !rest.is_empty() {
            let ($one, $other) =
                ($element::from_ne_bytes(padded(left)), $element::from_ne_bytes(padded(right)));
            rest.copy_from_slice(&$value.to_ne_bytes()[..rest.len()]);
        }
    }};
}

/// Defines a function that uses this CPU's widest instructions, and a portable version for any CPU. All functions that it calls
/// for each element must be `#[inline(always)]`, so that they are compiled for both.
macro_rules! vectorized {
    ($(#[$comment:meta])* $name:ident, $portable:ident = |$($argument:ident: $type:ty),*| $body:block) => {
        $(#[$comment])*
        pub(crate) fn $name($($argument: $type),*) {
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
                #[target_feature(enable = "avx2,f16c")]
                fn avx2($($argument: $type),*) {
                    $portable($($argument),*);
                }
                // SAFETY: the CPU supports the instructions that the function is compiled for.
                return unsafe { avx2($($argument),*) };
            }
            $portable($($argument),*);
        }

        #[inline(always)]
        fn $portable($($argument: $type),*) $body
    };
}

impl Reduction {
    /// Returns the built-in reduction with NCCL's number `op`.
    pub(crate) fn built_in(op: ncclRedOp_t) -> Option<Self> {
        BUILT_IN.get(op.0 as usize).map(|(reduction, _)| *reduction)
    }

    pub(crate) fn number(self) -> u8 {
        let number = match self {
            Self::Sum => ncclRedOp_t::ncclSum,
            Self::Prod => ncclRedOp_t::ncclProd,
            Self::Max => ncclRedOp_t::ncclMax,
            Self::Min => ncclRedOp_t::ncclMin,
            Self::Avg => ncclRedOp_t::ncclAvg,
            Self::PreMulSum(_) => return CUSTOM,
        };
        number.0 as u8
    }

    /// Returns the factor by which this rank's inputs are multiplied first, if any. Only sums have a factor.
    pub(crate) fn factor(self, data_type: DataType, ranks: usize) -> Option<Factor> {
        match self {
            Self::Avg => average_factor(data_type, ranks),
            Self::PreMulSum(scalar) => Some(Factor(scalar)),
            Self::Sum | Self::Prod | Self::Max | Self::Min => None,
        }
    }
}

vectorized! {
    /// Computes result = left (x left's factor) op right (x right's factor). With factors, op is a sum.
    join, join_portably = |
        reduction: Reduction,
        data_type: DataType,
        result: &mut [u8],
        left: &[u8],
        left_factor: Option<Factor>,
        right: &[u8],
        right_factor: Option<Factor>
    | {
        with_element!(data_type, E => match (left_factor, right_factor, reduction) {
            (None, None, Reduction::Sum | Reduction::Avg | Reduction::PreMulSum(_)) => {
                each!(E of result: |one in left, other in right| Element::add(one, other));
            }
            (None, None, Reduction::Prod) => each!(E of result: |one in left, other in right| Element::multiply(one, other)),
            (None, None, Reduction::Max) => each!(E of result: |one in left, other in right| Element::maximum(one, other)),
            (None, None, Reduction::Min) => each!(E of result: |one in left, other in right| Element::minimum(one, other)),
            (Some(Factor(one)), Some(Factor(other)), _) => {
                let (scale, other_scale) = (E::first(one), E::first(other));
                each!(E of result: |one in left, other in right| Element::add(one.multiply(scale), other.multiply(other_scale)));
            }
            _ => {
                begin(data_type, result, left, left_factor);
                combine(reduction, data_type, result, right, right_factor);
            }
        });
    }
}

vectorized! {
    /// Computes result = result op input (x factor). With a factor, op is a sum.
    combine, combine_portably = |
        reduction: Reduction,
        data_type: DataType,
        result: &mut [u8],
        input: &[u8],
        factor: Option<Factor>
    | {
        with_element!(data_type, E => match (factor, reduction) {
            (None, Reduction::Sum | Reduction::Avg | Reduction::PreMulSum(_)) => {
                each!(E of result: |sum, new in input| Element::add(sum, new));
            }
            (None, Reduction::Prod) => each!(E of result: |product, new in input| Element::multiply(product, new)),
            (None, Reduction::Max) => each!(E of result: |most, new in input| Element::maximum(most, new)),
            (None, Reduction::Min) => each!(E of result: |least, new in input| Element::minimum(least, new)),
            (Some(Factor(bytes)), _) => {
                let scale = E::first(bytes);
                each!(E of result: |sum, new in input| Element::add(sum, new.multiply(scale)));
            }
        });
    }
}

vectorized! {
    /// Computes result = input (x factor), for a single rank.
    begin, begin_portably = |data_type: DataType, result: &mut [u8], input: &[u8], factor: Option<Factor>| {
        match factor {
            None => result.copy_from_slice(input),
            Some(Factor(bytes)) => with_element!(data_type, E => {
                let scale = E::first(bytes);
                each!(E of result: |_old, new in input| new.multiply(scale));
            }),
        }
    }
}

/// Finishes a result, after all inputs have been combined.
#[inline]
pub(crate) fn finish(reduction: Reduction, data_type: DataType, ranks: usize, result: &mut [u8]) {
    if matches!(reduction, Reduction::Avg) && ranks > 1 {
        divide(data_type, ranks, result);
    }
}

vectorized! {
    /// Divides the sums for an average whose inputs were not multiplied by a factor.
    divide, divide_portably = |data_type: DataType, ranks: usize, result: &mut [u8]| {
        with_element!(data_type, E => {
            if E::reciprocal(ranks).is_none() {
                each!(E of result: |sum| sum.divide(ranks));
            }
        });
    }
}

/// Returns the factor by which an average multiplies each input. Not inlined: otherwise the compiler would compute it for every
/// type and every call, before the loop that may need it.
#[inline(never)]
fn average_factor(data_type: DataType, ranks: usize) -> Option<Factor> {
    with_element!(data_type, E => E::reciprocal(ranks).map(E::to_padded)).map(Factor)
}

/// Returns NCCL's name of the reduction with a number published by a rank.
pub(crate) fn name(number: u64) -> String {
    let known = usize::try_from(number).ok().and_then(|index| BUILT_IN.get(index));
    match known {
        Some((_, name)) => (*name).to_string(),
        None if number == u64::from(CUSTOM) => "a custom PreMulSum".to_string(),
        None => format!("reduction {number}"),
    }
}

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

            fn first(bytes: [u8; 8]) -> Self {
                Self::from_ne_bytes(padded(&bytes))
            }

            fn to_padded(self) -> [u8; 8] {
                padded(&self.to_ne_bytes())
            }
        }
    )*};
}

// There are no vector instructions for integer division, but there are for floats. The quotient of integers of fewer than 53 bits
// is never rounded up to an integer: its distance to the next integer exceeds the precision of an f64.
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

#[cfg(test)]
mod tests {
    use super::*;
    use libnccl::sys::ncclDataType_t;

    #[test]
    fn built_in_reductions_are_listed_by_their_numbers() {
        for (number, (reduction, name)) in (0..).zip(BUILT_IN) {
            assert_eq!(reduction.number(), number);
            assert_eq!(name, format!("nccl{reduction:?}"));
        }
        assert_eq!(Reduction::built_in(ncclRedOp_t(CUSTOM.into())), None);
    }

    /// Reduces one element of each rank using `begin` and `join`.
    fn reduce<const N: usize>(op: Reduction, data_type: DataType, inputs: &[[u8; N]]) -> [u8; N] {
        let factor = op.factor(data_type, inputs.len());
        let (mut result, mut joined) = ([0; N], [0; N]);
        begin(data_type, &mut result, &inputs[0], factor);
        for (rank, input) in inputs.iter().enumerate().skip(1) {
            if rank == 1 {
                join(op, data_type, &mut joined, &inputs[0], factor, input, factor);
            } else {
                combine(op, data_type, &mut joined, input, factor);
            }
            combine(op, data_type, &mut result, input, factor);
            assert!(joined == result || is_nan(data_type, &result));
        }
        finish(op, data_type, inputs.len(), &mut result);
        result
    }

    fn is_nan(data_type: DataType, element: &[u8]) -> bool {
        let mut bytes = [0; 8];
        bytes[..element.len()].copy_from_slice(element);
        let bits = u64::from_le_bytes(bytes) & (u64::MAX >> (65 - 8 * element.len()));
        match data_type {
            DataType::Float16 => bits > 0x7c00,
            DataType::Bfloat16 => bits > 0x7f80,
            DataType::Float32 => bits > f32::INFINITY.to_bits().into(),
            DataType::Float64 => bits > f64::INFINITY.to_bits(),
            DataType::Float8e4m3 => bits > 0x7e,
            DataType::Float8e5m2 => bits > 0x7c,
            _ => false,
        }
    }

    fn i8s(op: Reduction, inputs: &[i8]) -> i8 {
        let inputs: Vec<_> = inputs.iter().map(|input| input.to_ne_bytes()).collect();
        i8::from_ne_bytes(reduce(op, DataType::Int8, &inputs))
    }

    fn u32s(op: Reduction, inputs: &[u32]) -> u32 {
        let inputs: Vec<_> = inputs.iter().map(|input| input.to_ne_bytes()).collect();
        u32::from_ne_bytes(reduce(op, DataType::Uint32, &inputs))
    }

    #[test]
    fn integer_average_of_any_number_of_ranks_truncates() {
        let mut many = [0; 200];
        many[7] = -128;
        assert_eq!(i8s(Reduction::Avg, &many), 0, "more ranks than the type holds");
        for ranks in 2..300 {
            let mut inputs = vec![0; ranks];
            for quotient in [1, 2, u32::MAX / ranks as u32] {
                inputs[1] = quotient * ranks as u32;
                assert_eq!(u32s(Reduction::Avg, &inputs), quotient);
                inputs[1] -= 1;
                assert_eq!(u32s(Reduction::Avg, &inputs), quotient - 1);
            }
        }
    }

    #[test]
    fn pre_mul_sum_takes_a_factor_per_rank() {
        let two = Some(Factor([2; 8]));
        let op = Reduction::PreMulSum([2; 8]);
        for (left, right, expected) in [(two, None, [9, 12]), (None, two, [12, 15]), (two, two, [14, 18])] {
            let mut result = [0; 2];
            join(op, DataType::Uint8, &mut result, &[2, 3], left, &[5, 6], right);
            assert_eq!(result, expected);
        }
    }

    /// Results do not depend on the CPU, the alignment or the number of elements computed together.
    #[test]
    fn vectorized_reduction_equals_element_by_element() {
        const ELEMENTS: usize = 100;
        let mut bytes = [0; 2 * 8 * ELEMENTS + 1];
        let mut state = 1u64;
        for byte in &mut bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
        let scalar = Reduction::PreMulSum([0x3f; 8]);
        for number in 0..12 {
            let data_type = DataType::new(ncclDataType_t(number)).unwrap();
            let size = data_type.size();
            let (left, right) = bytes[1..].split_at(8 * ELEMENTS);
            for op in
                [Reduction::Sum, Reduction::Prod, Reduction::Max, Reduction::Min, Reduction::Avg, scalar]
            {
                let factor = op.factor(data_type, 3);
                for elements in [0, 1, 2, 31, 32, 33, 63, ELEMENTS] {
                    let (left, right) = (&left[..elements * size], &right[..elements * size]);
                    let mut whole = vec![0; elements * size + 1];
                    join(op, data_type, &mut whole[1..], left, factor, right, factor);
                    finish(op, data_type, 3, &mut whole[1..]);
                    // One element at a time, using the portable kernels.
                    for at in (0..elements * size).step_by(size) {
                        let (left, right) = (&left[at..][..size], &right[at..][..size]);
                        let mut single = vec![0; size];
                        join_portably(op, data_type, &mut single, left, factor, right, factor);
                        finish(op, data_type, 3, &mut single);
                        let element = &whole[1 + at..][..size];
                        assert!(
                            element == single || is_nan(data_type, element) && is_nan(data_type, &single),
                            "{op:?} of {data_type:?}: {element:x?}, not {single:x?}, of {left:x?} and {right:x?}"
                        );
                    }
                }
            }
        }
    }
}
