use std::hash::{BuildHasher, Hasher, RandomState};

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
}

/// Returns the 128-bit FNV-1a hash of a job id: the same on all hosts and in all releases.
pub(super) fn hash(id: &str) -> u128 {
    id.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

#[cfg(test)]
mod tests {
    use super::{hash, nonce};

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
}
