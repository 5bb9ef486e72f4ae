//! Reductions over byte slices: scaling an input, combining two, finishing the result.
//!
//! The loops over elements are compiled twice: for this CPU's widest instructions and for any CPU. The results are equal, because
//! nothing is contracted or reordered.
#![allow(unsafe_code)]

use libnccl::sys::ncclRedOp_t;

use crate::reduce::data_type::DataType;
use crate::reduce::element::{Bfloat16, Element, Float8e4m3, Float8e5m2, Float16, padded};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Reduction {
    Sum,
    Prod,
    Max,
    Min,
    Avg,
    /// The sum of the inputs, each multiplied by its rank's scalar. The first bytes contain this rank's scalar.
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

/// Computes each element of `$result` from its present value and its counterparts in the inputs. If the type holds several elements,
/// fewer may remain at the end. This is a macro because closures are not always inlined.
macro_rules! each {
    ($element:ident of $result:ident: |$old:ident $(, $new:ident in $input:ident)*| $value:expr) => {{
        let (elements, rest) = $result.as_chunks_mut();
        $(
            let ($input, $new) = $input.as_chunks();
            // The compiler then checks no index in the loop.
            let $input = &$input[..elements.len()];
        )*
        if !rest.is_empty() {
            let $old = $element::from_ne_bytes(padded(rest));
            $(let $new = $element::from_ne_bytes(padded($new));)*
            rest.copy_from_slice(&$value.to_ne_bytes()[..rest.len()]);
        }
        for index in 0..elements.len() {
            let $old = $element::from_ne_bytes(elements[index]);
            $(let $new = $element::from_ne_bytes($input[index]);)*
            elements[index] = $value.to_ne_bytes();
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
    /// Computes result = left (x its factor) op right (x its factor). With factors, op is a sum.
    join, join_portably = |
        reduction: Reduction,
        data_type: DataType,
        result: &mut [u8],
        left: &[u8],
        right: &[u8],
        factors: Option<(Factor, Factor)>
    | {
        with_element!(data_type, E => match (factors, reduction) {
            (None, Reduction::Sum | Reduction::Avg | Reduction::PreMulSum(_)) => {
                each!(E of result: |_old, one in left, other in right| Element::add(one, other));
            }
            (None, Reduction::Prod) => each!(E of result: |_old, one in left, other in right| Element::multiply(one, other)),
            (None, Reduction::Max) => each!(E of result: |_old, one in left, other in right| Element::maximum(one, other)),
            (None, Reduction::Min) => each!(E of result: |_old, one in left, other in right| Element::minimum(one, other)),
            (Some((Factor(one), Factor(other))), _) => {
                let (scale, other_scale) = (E::first(one), E::first(other));
                each!(E of result: |_old, one in left, other in right| {
                    Element::add(one.multiply(scale), other.multiply(other_scale))
                });
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

/// Returns NCCL's name of a reduction, from the number that a rank published.
pub(crate) fn name(number: u64) -> String {
    let known = usize::try_from(number).ok().and_then(|index| BUILT_IN.get(index));
    match known {
        Some((_, name)) => (*name).to_string(),
        None if number == u64::from(CUSTOM) => "a custom PreMulSum".to_string(),
        None => format!("reduction {number}"),
    }
}

#[cfg(test)]
#[path = "../../tests/unit/reduction.rs"]
mod tests;
