//! Random inputs for whatever reads a file or a socket: valid ones, changed. `LIBNCCL_TEST_SECONDS=600` in the environment makes each
//! of these tests, whose names contain `random_`, go on for so long; `.ci/run --all` does.

use std::time::{Duration, Instant};

/// Counts the inputs of a test: `usual`, or as many as there is time for.
pub fn inputs(usual: usize) -> impl Iterator<Item = usize> {
    let seconds = std::env::var("LIBNCCL_TEST_SECONDS").ok();
    let seconds = seconds.map(|seconds| seconds.parse().expect("LIBNCCL_TEST_SECONDS is a number"));
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    (0..).take_while(move |input| end.map_or(*input < usual, |end| Instant::now() < end))
}

/// A small generator of random numbers (splitmix64).
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns a random number.
    #[allow(clippy::should_implement_trait)] // It never ends.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Changes some bytes: none, a few, or all.
    pub fn change(&mut self, bytes: &mut [u8]) {
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

    /// Changes some bytes, and at times the length: the end is missing, or a part is there twice or not at all.
    pub fn change_all(&mut self, bytes: &mut Vec<u8>) {
        self.change(bytes);
        let [start, end] = [self.below(bytes.len()), self.below(bytes.len())];
        match self.below(6) {
            0 => bytes.truncate(start),
            1 => drop(bytes.drain(start.min(end)..start.max(end))),
            2 => bytes.extend_from_within(start.min(end)..start.max(end)),
            _ => {}
        }
    }
}
