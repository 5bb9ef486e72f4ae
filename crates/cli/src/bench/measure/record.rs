//! Records that ranks exchange about a measurement.
//!
//! They travel by the library that is measured, and it may be the one that damages data. Each is sent as several copies with
//! checksums, so that a damaged copy is noticed and another one taken.

use std::hash::{DefaultHasher, Hasher};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The size of a record in bytes, equal on all ranks.
pub(crate) const BYTES: usize = COPIES * COPY;

const COPIES: usize = 3;

/// The size of a copy: its checksum, its length and its text.
const COPY: usize = 1024;

const HEADER: usize = size_of::<u64>() + size_of::<u16>();

/// Returns the bytes of a record.
pub(crate) fn encode(record: &impl Serialize) -> Result<Vec<u8>> {
    let text = serde_json::to_vec(record)?;
    ensure!(text.len() <= COPY - HEADER, "a record of {} bytes is longer than {}", text.len(), COPY - HEADER);
    let mut content = (text.len() as u16).to_le_bytes().to_vec();
    content.extend(text);
    let mut copy = checksum(&content).to_le_bytes().to_vec();
    copy.extend(content);
    copy.resize(COPY, 0);
    Ok(copy.repeat(COPIES))
}

/// Returns the record from its bytes. Fails if all copies are damaged.
pub(crate) fn decode<R: DeserializeOwned>(bytes: &[u8]) -> Result<R> {
    let text = bytes.chunks_exact(COPY).find_map(intact);
    serde_json::from_slice(text.context("its record arrived damaged")?).context("its record cannot be read")
}

/// Returns the text of a copy that is not damaged.
fn intact(copy: &[u8]) -> Option<&[u8]> {
    let (expected, content) = copy.split_first_chunk()?;
    let (length, text) = content.split_first_chunk()?;
    let length = usize::from(u16::from_le_bytes(*length));
    let is_intact = checksum(content.get(..size_of::<u16>() + length)?) == u64::from_le_bytes(*expected);
    text.get(..length).filter(|_| is_intact)
}

fn checksum(content: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(content);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::{BYTES, COPIES, COPY, decode, encode};

    #[test]
    fn record_is_read_as_it_was_written() {
        let record = ("rank".to_owned(), Some(1.5e-6), [u64::MAX; 3]);
        let bytes = encode(&record).unwrap();
        assert_eq!(bytes.len(), BYTES);
        assert_eq!(decode::<(String, Option<f64>, [u64; 3])>(&bytes).unwrap(), record);
    }

    #[test]
    fn damaged_copy_is_replaced_by_another() {
        let whole = encode(&vec![7; 20]).unwrap();
        for position in 0..BYTES {
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
        assert!(decode::<i32>(&[0; BYTES]).is_err());
    }

    #[test]
    fn record_that_is_too_long_is_refused() {
        let error = encode(&"x".repeat(COPY)).unwrap_err().to_string();
        assert_eq!(error, "a record of 1026 bytes is longer than 1014");
    }
}
