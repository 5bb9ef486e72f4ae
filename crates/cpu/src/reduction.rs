//! Reductions over buffers: what happens to an input, how two become one, what happens to the result.

use crate::data_type::DataType;
use crate::element::Element;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Reduction {
    Sum,
    Prod,
    Max,
    Min,
    Avg,
    /// The sum of the inputs, each multiplied by its rank's scalar: an element in the first bytes.
    PreMulSum([u8; 8]),
}

/// NCCL's names, by number; a custom operation has the number after the built-in ones.
const NAMES: [&str; 6] = ["ncclSum", "ncclProd", "ncclMax", "ncclMin", "ncclAvg", "a custom PreMulSum"];

/// Evaluates an expression with `$element` standing for the Rust type of a data type's elements.
macro_rules! with_element {
    ($data_type:expr, $element:ident => $body:expr) => {
        match $data_type {
            DataType::Int8 => with_element!(@ i8, $element, $body),
            DataType::Uint8 => with_element!(@ u8, $element, $body),
            DataType::Int32 => with_element!(@ i32, $element, $body),
            DataType::Uint32 => with_element!(@ u32, $element, $body),
            DataType::Int64 => with_element!(@ i64, $element, $body),
            DataType::Uint64 => with_element!(@ u64, $element, $body),
            DataType::Float32 => with_element!(@ f32, $element, $body),
            DataType::Float64 => with_element!(@ f64, $element, $body),
        }
    };
    (@ $type:ty, $element:ident, $body:expr) => {{
        type $element = $type;
        $body
    }};
}

impl Reduction {
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Sum => 0,
            Self::Prod => 1,
            Self::Max => 2,
            Self::Min => 3,
            Self::Avg => 4,
            Self::PreMulSum(_) => 5,
        }
    }

    /// Before an input meets the others'.
    pub(crate) fn prepare(self, data_type: DataType, ranks: usize, input: &mut [u8]) {
        with_element!(data_type, E => {
            let factor = match self {
                Self::Avg => E::reciprocal(ranks),
                Self::PreMulSum(scalar) => E::first(&scalar),
                _ => None,
            };
            if let Some(factor) = factor {
                E::map(input, |element| element.multiply(factor));
            }
        });
    }

    /// Reduces `input` into `result`.
    pub(crate) fn combine(self, data_type: DataType, result: &mut [u8], input: &[u8]) {
        with_element!(data_type, E => match self {
            Self::Sum | Self::Avg | Self::PreMulSum(_) => E::zip(result, input, E::add),
            Self::Prod => E::zip(result, input, E::multiply),
            Self::Max => E::zip(result, input, E::larger),
            Self::Min => E::zip(result, input, E::smaller),
        });
    }

    /// After all inputs are in.
    pub(crate) fn finish(self, data_type: DataType, ranks: usize, result: &mut [u8]) {
        with_element!(data_type, E => {
            if self == Self::Avg && E::reciprocal(ranks).is_none() {
                E::map(result, |element| element.divide(ranks));
            }
        });
    }
}

/// NCCL's name of a reduction that another rank named by number.
pub(crate) fn name(number: u64) -> String {
    let known = usize::try_from(number).ok().and_then(|index| NAMES.get(index));
    known.map_or_else(|| format!("reduction {number}"), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduce<const N: usize>(op: Reduction, data_type: DataType, inputs: &[[u8; N]]) -> [u8; N] {
        let prepared = inputs.iter().map(|input| {
            let mut input = *input;
            op.prepare(data_type, inputs.len(), &mut input);
            input
        });
        let mut result = prepared
            .reduce(|mut result, input| {
                op.combine(data_type, &mut result, &input);
                result
            })
            .unwrap();
        op.finish(data_type, inputs.len(), &mut result);
        result
    }

    fn f32s(op: Reduction, inputs: &[f32]) -> f32 {
        let inputs: Vec<_> = inputs.iter().map(|input| input.to_ne_bytes()).collect();
        f32::from_ne_bytes(reduce(op, DataType::Float32, &inputs))
    }

    fn i8s(op: Reduction, inputs: &[i8]) -> i8 {
        let inputs: Vec<_> = inputs.iter().map(|input| input.to_ne_bytes()).collect();
        i8::from_ne_bytes(reduce(op, DataType::Int8, &inputs))
    }

    #[test]
    fn integers_wrap_and_divide_towards_zero() {
        assert_eq!(i8s(Reduction::Sum, &[127, 1]), -128);
        assert_eq!(i8s(Reduction::Prod, &[64, 4, 3]), 0);
        assert_eq!(i8s(Reduction::Avg, &[-3, 0]), -1);
        assert_eq!(i8s(Reduction::Avg, &[100, 100]), -28, "wrapped, then divided");
        let mut many = [0; 200];
        many[7] = -128;
        assert_eq!(i8s(Reduction::Avg, &many), 0, "more ranks than the type holds");
        assert_eq!(i8s(Reduction::PreMulSum([3, 0, 0, 0, 0, 0, 0, 0]), &[100, 2]), 50);
    }

    #[test]
    fn extremes_ignore_nan_unless_all_are() {
        assert_eq!(f32s(Reduction::Max, &[f32::NAN, 1.0, 2.0]), 2.0);
        assert_eq!(f32s(Reduction::Min, &[1.0, f32::NAN]), 1.0);
        assert!(f32s(Reduction::Max, &[f32::NAN, f32::NAN]).is_nan());
    }

    #[test]
    fn a_float_average_multiplies_each_input_first() {
        let third = 1.0f32 / 3.0;
        assert_eq!(f32s(Reduction::Avg, &[1.0, 2.0, 4.0]), 1.0 * third + 2.0 * third + 4.0 * third);
    }
}
