use libnccl::DataType;

use super::{Arithmetic, Number};

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
