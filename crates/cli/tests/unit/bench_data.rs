use libnccl::{DataType, ReduceOp};

use super::{Arithmetic, BLOCK, Data, Number, PERIOD, Pattern, Reduction, factor};

const COUNT: usize = 3 * PERIOD + 7;

fn data(data_type: DataType, op: ReduceOp, ranks: usize, seed: usize) -> Data {
    let op = Reduction::Op(op);
    Data { arithmetic: Arithmetic::new(data_type).unwrap(), op, ranks, seed }
}

#[test]
fn mismatches_of_a_pattern_are_counted() {
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
    for ((data_type, ranks), &op) in types.flat_map(|case| Reduction::ALL.iter().map(move |op| (case, op))) {
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

impl Arithmetic {
    /// Returns the bytes of `one` and `other`, combined and rounded as NCCL does after each step.
    pub(crate) fn combined(
        self,
        one: [u8; 8],
        other: [u8; 8],
        integers: fn(i64, i64) -> i64,
        floats: fn(f64, f64) -> f64,
    ) -> [u8; 8] {
        match (self.number(&one), self.number(&other)) {
            (Number::Integer(one), Number::Integer(other)) => {
                self.integer(integers(one as i64, other as i64))
            }
            (one, other) => self.float(floats(one.to_f64(), other.to_f64())),
        }
    }

    /// Returns the bytes of `element`, multiplied by the rounded inverse of `ranks`.
    pub(crate) fn scaled(self, element: [u8; 8], ranks: usize) -> [u8; 8] {
        self.combined(element, self.float(1.0 / ranks as f64), |_, _| 0, |element, inverse| element * inverse)
    }
}

#[test]
fn every_type_converts_small_numbers_exactly() {
    for &data_type in DataType::ALL {
        let arithmetic = Arithmetic::new(data_type).unwrap();
        for number in 0..8 {
            let bytes = arithmetic.integer(number);
            assert_eq!(arithmetic.number(&bytes).to_string(), number.to_string(), "{data_type}");
            assert_ne!(arithmetic.number(&bytes), arithmetic.number(&arithmetic.integer(number + 1)));
            assert!(bytes[arithmetic.size()..].iter().all(|byte| *byte == 0), "{data_type}");
        }
        assert_eq!(arithmetic.quotient(8, 2), arithmetic.integer(4), "{data_type}");
    }
}

#[test]
fn numbers_are_shown_as_their_type_has_them() {
    let shown = |data_type, bytes: &[u8]| Arithmetic::new(data_type).unwrap().number(bytes).to_string();
    assert_eq!(shown(DataType::Int8, &[255]), "-1");
    assert_eq!(shown(DataType::Uint64, &[255; 8]), u64::MAX.to_string());
    assert_eq!(shown(DataType::Float32, &0.1_f32.to_ne_bytes()), "0.1");
    assert_eq!(shown(DataType::Float64, &0.1_f64.to_ne_bytes()), "0.1");
    assert_eq!(shown(DataType::Float16, &half::f16::from_f32(0.1).to_ne_bytes()), "0.099975586");
}
