use super::{Axis, powers, show, show_bytes, show_power};

#[test]
fn labels_are_short() {
    assert_eq!(
        [8.0, 1024.0, 65_536.0, 1_048_576.0, 8_589_934_592.0].map(show_bytes),
        ["8", "1K", "64K", "1M", "8G"]
    );
    assert_eq!([0.001, 0.01, 0.1, 1.0, 1000.0].map(show), ["0.001", "0.01", "0.1", "1", "1000"]);
}

#[test]
fn axes_end_at_powers() {
    let powers_of_two = |values: &[f64]| powers(values.iter().map(|value| value.log2()));
    assert_eq!(powers_of_two(&[9.0, 1000.0]), (3, 10));
    assert_eq!(powers_of_two(&[8.0]), (3, 4));
}

#[test]
fn axes_of_any_values_have_few_labels() {
    for (least, most) in [(0.001, 1000.0), (1e-300, 1e300), (5e-324, f64::MAX), (7.0, 7.0)] {
        let (from, to) = powers([least, most].map(f64::log10).into_iter());
        let Axis { labels, .. } = Axis::new((from, to), 8);
        assert!((2..=9).contains(&labels.len()), "{least} to {most}: {labels:?}");
        assert_eq!(labels[0], f64::from(from));
    }
    assert_eq!(
        [-324.0, -6.0, 0.0, 9.0, 10.0].map(show_power),
        ["1e-324", "0.000001", "1", "1000000000", "1e10"]
    );
}
