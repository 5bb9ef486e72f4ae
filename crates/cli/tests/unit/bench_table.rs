use super::{exponent, general, number, usage_text};

#[test]
fn usage_has_the_format_of_nccl_tests() {
    let expected = "Initialization 300 MB | User-Allocated 2.00 GB | Collective 1.50 KB | Total  2.29 GB";
    assert_eq!(usage_text([300 << 20, 2 << 30, 1536]), expected);
    let expected = "Initialization 0.00 B | User-Allocated 50.0 KB | Collective -20.0 KB | Total  30.0 KB";
    assert_eq!(usage_text([0, 50 << 10, -(20 << 10)]), expected);
}

#[test]
fn number_fits_the_width() {
    let texts = [(0.0, "0.00"), (1.234, "1.23"), (9999.994, "9999.99"), (12_345.6, "12345.6")];
    for (value, text) in texts {
        assert_eq!(number(value, 7), text);
    }
    assert_eq!(number(1_234_567.0, 7), "1234567");
    assert_eq!(number(12_345_678.0, 7), "1.2e+07");
    assert_eq!(number(12_345_678.0, 6), "1e+07");
    assert_eq!(number(999.996, 6), "1000.0");
}

#[test]
fn general_and_exponent_are_those_of_c() {
    for (value, text) in [
        (0.0, "0"),
        (6.0, "6"),
        (0.123_456_789, "0.123457"),
        (123.456_789, "123.457"),
        (100_000.0, "100000"),
        (999_999.5, "1e+06"),
        (1_234_567.0, "1.23457e+06"),
        (0.000_1, "0.0001"),
        (0.000_012_345, "1.2345e-05"),
    ] {
        assert_eq!(general(value), text, "{value}");
    }
    assert_eq!(exponent(12_345_678.0, 1), "1.2e+07");
}
