use super::{powers, show, show_bytes, show_power};

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
fn labels_of_powers_are_short() {
    assert_eq!(
        [-324.0, -6.0, 0.0, 9.0, 10.0].map(show_power),
        ["1e-324", "0.000001", "1", "1000000000", "1e10"]
    );
}
