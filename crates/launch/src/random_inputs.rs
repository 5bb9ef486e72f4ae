//! Random changes of messages, for tests of their parsers. `LIBNCCL_TEST_LAUNCH_INPUTS=1000000` in the environment tries so many.

/// Returns the number of inputs for a parser: `usual`, or that of `LIBNCCL_TEST_LAUNCH_INPUTS`.
pub(crate) fn count(usual: usize) -> usize {
    std::env::var("LIBNCCL_TEST_LAUNCH_INPUTS").ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}

/// A small generator of random numbers (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Changes some bytes: none, a few, or all.
    pub(crate) fn change(&mut self, bytes: &mut [u8]) {
        let changes = match self.below(8) {
            0 => 0,
            1 => bytes.len(),
            _ => 1 + self.below(4),
        };
        for _ in 0..changes {
            let place = self.below(bytes.len());
            // Small numbers, digits and separators get further into a parser than others.
            bytes[place] = match self.below(4) {
                0 => self.below(8) as u8,
                1 => b"0123456789abcdef \n:-[](),"[self.below(25)],
                2 => 0xff,
                _ => self.next() as u8,
            };
        }
    }
}
