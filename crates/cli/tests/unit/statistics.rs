use super::{Times, digits, iteration_columns, median};

#[test]
fn summary_has_the_order_statistics_in_microseconds() {
    let times = Times { durations: (1..=200).rev().map(|time| time * 1000).collect(), ..Times::default() };
    let summary = times.summary(3, 1);
    assert_eq!((summary.rank, summary.min_us, summary.max_us), (3, 1.0, 200.0));
    assert_eq!((summary.median_us, summary.p99_us), (100.5, 198.0));
    assert_eq!((summary.late_us, summary.own_us), (None, None));
    let times = Times { durations: vec![8000], delays: vec![3000, 1000], last: vec![4000] };
    let summary = times.summary(0, 4);
    assert_eq!((summary.wait_us, summary.late_us, summary.own_us), (2.0, Some(2.0), Some(1.0)));
}

#[test]
fn columns_are_those_of_nccl_tests() {
    assert_eq!(iteration_columns(&[1000, 3000, 1000, 3000], 1), [1.0, 3.0, 3.0, 50.0]);
    assert_eq!(iteration_columns(&[], 1), [0.0; 4]);
}

#[test]
fn median_of_two_is_between_them() {
    assert_eq!((median(&[]), median(&[7]), median(&[1, 2])), (None, Some(7.0), Some(1.5)));
}

#[test]
fn digits_are_as_many_as_the_decimals_allow() {
    let texts = [123.4, 99.94, 9.876, 0.1234, 0.0, -20.04].map(|value| digits(value, 3, 3));
    assert_eq!(texts, ["123", "99.9", "9.88", "0.123", "0.000", "-20.0"]);
}
