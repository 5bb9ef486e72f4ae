use super::{COPIES, COPY, RECORD, decode, encode};

#[test]
fn damaged_copy_is_replaced_by_another() {
    let whole = encode(&vec![7; 20]).unwrap();
    for position in 0..RECORD {
        let mut bytes = whole.clone();
        bytes[position] ^= 0x55;
        assert_eq!(decode::<Vec<i32>>(&bytes).unwrap(), [7; 20], "{position}");
    }
}

#[test]
fn record_with_all_copies_damaged_is_an_error() {
    let mut bytes = encode(&7).unwrap();
    for copy in 0..COPIES {
        bytes[copy * COPY + 10] ^= 1;
    }
    assert_eq!(decode::<i32>(&bytes).unwrap_err().to_string(), "its record arrived damaged");
    assert!(decode::<i32>(&[0; RECORD]).is_err());
}

#[test]
fn record_that_is_too_long_is_refused() {
    let error = encode(&"x".repeat(COPY)).unwrap_err().to_string();
    assert_eq!(error, "a record of 1026 bytes is longer than 1014");
}
