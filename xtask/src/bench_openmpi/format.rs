//! Figures as the tables show them.

/// Formats a time with three significant digits, `-` if there is none.
pub(crate) fn microseconds(nanoseconds: Option<f64>) -> String {
    match nanoseconds.map(|nanoseconds| nanoseconds / 1e3) {
        None => "-".into(),
        Some(value) if value < 10.0 => format!("{value:.2}"),
        Some(value) if value < 100.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

/// Formats a time in milliseconds.
pub(crate) fn milliseconds(seconds: f64) -> String {
    format!("{:.2} ms", seconds * 1e3)
}

/// Formats a size exactly, in the largest unit of which it is a multiple.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(bits, _)| bytes.trailing_zeros() >= *bits) {
        Some((bits, unit)) => format!("{} {unit}", bytes >> bits),
        None => format!("{bytes} B"),
    }
}

/// Formats an amount of memory in MiB.
pub(crate) fn mebibytes(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact() {
        assert_eq!(["64 KiB", "1028 B", "4 B"], [65536, 1028, 4].map(size));
    }

    #[test]
    fn microseconds_have_three_digits() {
        let texts = [Some(194.0), Some(42_250.0), Some(3_949_400.0), None].map(microseconds);
        assert_eq!(texts, ["0.19", "42.2", "3949", "-"]);
    }
}
