//! Parsers of the values of options.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The maximum number of ranks, more than one host can use.
pub(crate) const MAX_RANKS: usize = 1024;

pub(crate) fn whole<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: Copy + FromStr + PartialOrd + Display,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("expected a whole number from {} to {}", range.start(), range.end()))
    }
}

/// Parses a number of bytes above 0, in the forms of [`size_from_0`].
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let bytes = size_from_0(text).ok().filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| format!("expected a number of bytes above 0, {FORMS}"))
}

const FORMS: &str = "such as 8, 64K, 1.5M, 1GB, 1e6 or 0x1000";

/// Parses a number of bytes as nccl-tests does: a decimal or hexadecimal number, or a decimal one with a unit (K, M or G).
pub(crate) fn size_from_0(text: &str) -> Result<u64, String> {
    let parse = || {
        let text = text.to_ascii_lowercase();
        let number = text.trim_end_matches('b').trim_end_matches(['k', 'm', 'g']);
        let (hexadecimal, unit) = (text.strip_prefix("0x"), &text[number.len()..]);
        if let Some(digits) = hexadecimal {
            return u64::from_str_radix(digits, 16).ok();
        }
        let unit = match unit {
            "" => 1,
            "k" | "kb" => 1 << 10,
            "m" | "mb" => 1 << 20,
            "g" | "gb" => 1 << 30,
            _ => return None,
        };
        // A whole number is exact. Any other number is parsed as a double and rounded down to whole bytes.
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(unit);
        }
        let bytes = number.parse::<f64>().ok()? * unit as f64;
        (number.starts_with(|first: char| first.is_ascii_digit() || first == '.') && bytes < u64::MAX as f64)
            .then_some(bytes as u64)
    };
    parse().ok_or_else(|| format!("expected a number of bytes, {FORMS}"))
}
