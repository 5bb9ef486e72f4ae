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

#[test]
fn integer_average_of_any_number_of_ranks_truncates() {
    let average = |sum: u32, ranks| {
        let mut bytes = sum.to_ne_bytes();
        finish(Reduction::Avg, DataType::Uint32, ranks, &mut bytes);
        u32::from_ne_bytes(bytes)
    };
    for ranks in 2..300 {
        for quotient in [1, 2, u32::MAX / ranks as u32] {
            let sum = quotient * ranks as u32;
            assert_eq!([average(sum, ranks), average(sum - 1, ranks)], [quotient, quotient - 1]);
        }
    }
    let mut most = i8::MIN.to_ne_bytes();
    finish(Reduction::Avg, DataType::Int8, 200, &mut most);
    assert_eq!(most, [0], "more ranks than the type holds");
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
        for op in [Reduction::Sum, Reduction::Prod, Reduction::Max, Reduction::Min, Reduction::Avg, scalar] {
            let factor = op.factor(data_type, 3);
            for elements in [0, 1, 2, 31, 32, 33, 63, ELEMENTS] {
                let (left, right) = (&left[..elements * size], &right[..elements * size]);
                let mut whole = vec![0; elements * size + 1];
                join(op, data_type, &mut whole[1..], left, right, factor.zip(factor));
                finish(op, data_type, 3, &mut whole[1..]);
                // One element at a time, using the portable kernels.
                for at in (0..elements * size).step_by(size) {
                    let (left, right) = (&left[at..][..size], &right[at..][..size]);
                    let mut single = vec![0; size];
                    join_portably(op, data_type, &mut single, left, right, factor.zip(factor));
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
