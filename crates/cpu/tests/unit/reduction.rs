use super::*;

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
