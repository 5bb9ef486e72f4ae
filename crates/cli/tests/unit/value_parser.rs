use super::{size, size_from_0, whole};

#[test]
fn size_accepts_units_and_rejects_other_text() {
    let sizes = [
        ("8", 8),
        ("64K", 65_536),
        ("64k", 65_536),
        ("1M", 1 << 20),
        ("3G", 3 << 30),
        ("128MB", 128 << 20),
        ("1.5M", 3 << 19),
        (".5k", 512),
        ("1e6", 1_000_000),
        ("0x1000", 4096),
        ("0XffB", 0xffb),
        ("18446744073709551615", u64::MAX),
    ];
    for (text, bytes) in sizes {
        assert_eq!(size(text), Ok(bytes), "{text}");
    }
    let bad = "|K|0|0M|0x|-1|0.1|8 K|8B|1T|1KM|nan|inf|1e40|ä|18446744073709551615K";
    for text in bad.split('|') {
        assert!(size(text).is_err(), "{text}");
    }
    for text in ["0", "0M", "0x0", "0.0", "0e5"] {
        assert_eq!(size_from_0(text), Ok(0), "{text}");
    }
    for text in ["", "K", "-0", "0T", "nan"] {
        assert!(size_from_0(text).is_err(), "{text}");
    }
}

#[test]
fn whole_rejects_numbers_outside_of_the_range() {
    let parse = whole::<usize>(1..=1024);
    assert_eq!((parse("1"), parse("1024")), (Ok(1), Ok(1024)));
    for text in ["0", "-1", "1025", "two", "", "1.0"] {
        assert_eq!(parse(text).unwrap_err(), "expected a whole number from 1 to 1024", "{text}");
    }
}
