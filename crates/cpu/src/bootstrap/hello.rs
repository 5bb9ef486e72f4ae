//! The first message of a peer to the root, or of a process whose arguments were refused.

use crate::bootstrap::unique_id::MAGIC;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) secret: [u8; 16],
    pub(super) ranks: usize,
    pub(super) rank: usize,
    /// The [`Process::identity`](crate::shm::process::Process::identity) of the rank's process, whose pid the kernel
    /// tells.
    pub(super) identity: u64,
}

impl Hello {
    pub(super) const SIZE: usize = 8 + 16 + 4 + 4 + 8;

    /// Returns the hello of a process whose call has no valid rank: the reason follows in a message.
    pub(super) fn of_refused(secret: [u8; 16], identity: u64) -> Self {
        Self { secret, ranks: 0, rank: 0, identity }
    }

    pub(super) fn is_of_refused(self) -> bool {
        self.ranks == 0
    }

    pub(super) fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.secret);
        bytes[24..28].copy_from_slice(&(self.ranks as u32).to_ne_bytes());
        bytes[28..32].copy_from_slice(&(self.rank as u32).to_ne_bytes());
        bytes[32..].copy_from_slice(&self.identity.to_ne_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::SIZE] = bytes.try_into().ok()?;
        let number = |at: usize| Some(u32::from_ne_bytes(*bytes[at..].first_chunk()?) as usize);
        let hello = Self {
            secret: *bytes[8..].first_chunk()?,
            ranks: number(24)?,
            rank: number(28)?,
            identity: u64::from_ne_bytes(*bytes[32..].first_chunk()?),
        };
        let is_valid = hello.rank < hello.ranks || hello.is_of_refused() && hello.rank == 0;
        (bytes[..8] == MAGIC && is_valid).then_some(hello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hello_round_trips_and_garbage_is_refused() {
        let hello = Hello { secret: [7; 16], ranks: 3, rank: 2, identity: 1 << 40 };
        let bytes = hello.to_bytes();
        assert_eq!(Hello::from_bytes(&bytes), Some(hello));
        assert_eq!(Hello::from_bytes(&bytes[1..]), None);
        assert_eq!(Hello::from_bytes(&[0; Hello::SIZE]), None);
        assert_eq!(Hello::from_bytes(&Hello { rank: 3, ..hello }.to_bytes()), None);
        let refused = Hello::of_refused([7; 16], 5);
        assert_eq!(Hello::from_bytes(&refused.to_bytes()), Some(refused));
        assert_eq!(Hello::from_bytes(&Hello { rank: 1, ..refused }.to_bytes()), None);
    }

    #[test]
    fn damaged_hello_is_refused_or_decoded_as_it_is() {
        let mut state = 1u64;
        let mut random = || {
            // A linear congruential generator, of which the high bits are good.
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) as usize
        };
        let good = Hello { secret: [7; 16], ranks: 1024, rank: 1000, identity: 77 }.to_bytes();
        let mut decoded = 0;
        for _ in 0..200_000 {
            let mut bytes = good.to_vec();
            for _ in 0..=random() % 4 {
                let index = random() % bytes.len();
                bytes[index] ^= 1 << (random() % 8);
            }
            bytes.resize(if random() % 8 == 0 { random() % 80 } else { bytes.len() }, 0);
            if let Some(hello) = Hello::from_bytes(&bytes) {
                decoded += 1;
                assert!(hello.rank < hello.ranks || hello.is_of_refused(), "{hello:?}");
                assert_eq!(hello.to_bytes()[..], bytes, "{hello:?}");
            }
        }
        assert!(decoded > 1000, "only {decoded} were still valid");
    }
}
