use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// A geometric range of sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    min: u64,
    max: u64,
    factor: u64,
}

impl Display for Sizes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.min, self.max, self.factor)
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<u64>> = text.split(':').map(bytes).collect();
        match numbers.as_deref() {
            Some(&[min, max, factor]) if (4..=max).contains(&min) && factor >= 2 => {
                Ok(Self { min, max, factor })
            }
            _ => Err("expected MIN:MAX:FACTOR with MIN of at least 4 bytes and FACTOR of at least 2".into()),
        }
    }
}

/// Returns the number of bytes in a text such as `64` or `1M`.
fn bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.char_indices().last()? {
        (at, 'K') => (&text[..at], 1 << 10),
        (at, 'M') => (&text[..at], 1 << 20),
        (at, 'G') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_units_are_parsed_and_malformed_ones_rejected() {
        assert_eq!("4:64M:4".parse(), Ok(Sizes { min: 4, max: 64 << 20, factor: 4 }));
        assert_eq!("1K:1K:2".parse(), Ok(Sizes { min: 1024, max: 1024, factor: 2 }));
        for wrong in
            ["", "4:64M", "4:64M:1", "8:4:2", "0:4:2", "4:8:2:2", "4:M:2", "4:20000000000G:2", "4:8é:2"]
        {
            assert!(wrong.parse::<Sizes>().is_err(), "{wrong}");
        }
    }
}
