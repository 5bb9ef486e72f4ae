//! Parsers of the values of options.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The limit of ranks, more than one host can use.
pub(crate) const MAX_RANKS: usize = 1024;

/// Returns a parser of whole numbers of a range.
pub(crate) fn whole<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: Copy + FromStr + PartialOrd + Display,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("expected a whole number from {} to {}", range.start(), range.end()))
    }
}

/// Parses a number of bytes, with a unit if there is one.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let expected = "expected a number of bytes above 0, such as 8, 64K, 1M or 1G";
    let (digits, unit) = match text.as_bytes() {
        [.., b'K' | b'k'] => (&text[..text.len() - 1], 1 << 10),
        [.., b'M' | b'm'] => (&text[..text.len() - 1], 1 << 20),
        [.., b'G' | b'g'] => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| expected.into())
}

#[cfg(test)]
mod tests {
    use super::{size, whole};

    #[test]
    fn size_accepts_units_and_rejects_other_text() {
        let sizes = [("8", 8), ("64K", 65_536), ("64k", 65_536), ("1M", 1 << 20), ("3G", 3 << 30)];
        for (text, bytes) in sizes {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "0", "0M", "-1", "1.5M", "8 K", "1T", "ä", "18446744073709551615K"] {
            assert!(size(text).is_err(), "{text}");
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
}
