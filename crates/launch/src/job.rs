use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

use super::wire::read_text;

/// A value that no other exchange has.
pub(super) type Nonce = [u8; 16];

/// Returns a new nonce, from the randomness of the standard library's hash tables.
pub(super) fn nonce() -> Nonce {
    let random = || RandomState::new().build_hasher().finish().to_le_bytes();
    let mut nonce = [0; 16];
    nonce[..8].copy_from_slice(&random());
    nonce[8..].copy_from_slice(&random());
    nonce
}

/// The job, as one rank of it sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    pub(super) rank: u32,
    pub(super) size: u32,
    /// The hash of its id.
    pub(super) hash: [u8; 16],
    /// Whoever reaches rank 0 can stand for a rank.
    pub(super) is_open: bool,
    /// The name of what the ranks create by this exchange.
    pub(super) name: Name,
}

/// The name of a communicator, as far as a hello has room for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) hash: [u8; 16],
    /// The first bytes; then 0.
    pub(super) text: [u8; Self::TEXT],
}

impl Name {
    pub(super) const TEXT: usize = 64;

    /// The name of an exchange in which a rank compares none.
    pub(super) const ANY: Self = Self { hash: [u8::MAX; 16], text: [0; Self::TEXT] };

    /// Creates a name. The empty one stands for none.
    pub(super) fn new(name: &str) -> Self {
        let mut text = [0; Self::TEXT];
        text.iter_mut().zip(name.bytes()).for_each(|(place, byte)| *place = byte);
        Self { hash: if name.is_empty() { [0; 16] } else { hash(name).to_be_bytes() }, text }
    }

    /// Returns whether ranks with these names may create one communicator.
    pub(super) fn fits(&self, other: &Self) -> bool {
        [self, other].contains(&&Self::ANY) || self.hash == other.hash
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*read_text(&self.text) {
            "" => f.write_str("a communicator without a name"),
            text => write!(f, "communicator {text:?}"),
        }
    }
}

/// Returns the 128-bit FNV-1a hash of a job id: the same on all hosts and in all releases.
pub(super) fn hash(id: &str) -> u128 {
    id.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

#[cfg(test)]
mod tests {
    use super::{Name, hash, nonce};

    #[test]
    fn hash_is_fnv_1a() {
        assert_eq!(hash(""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(hash("a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }

    #[test]
    fn nonces_differ() {
        let nonces: std::collections::HashSet<_> = (0..1000).map(|_| nonce()).collect();
        assert_eq!(nonces.len(), 1000);
    }

    #[test]
    fn names_that_differ_beyond_the_text_do_not_fit() {
        let [one, other] = ["a", "b"].map(|end| Name::new(&("x".repeat(Name::TEXT) + end)));
        assert_eq!(one.to_string(), other.to_string());
        assert!(!one.fits(&other) && one.fits(&one));
        let none = Name::new("");
        assert!(!none.fits(&one) && none.fits(&none));
        assert!(Name::ANY.fits(&one) && none.fits(&Name::ANY));
        assert_eq!(
            [none, Name::new("data")].map(|name| name.to_string()),
            ["a communicator without a name", "communicator \"data\""]
        );
    }
}
