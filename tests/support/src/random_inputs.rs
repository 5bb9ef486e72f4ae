//! Seeded random numbers, so that a failed test can be repeated; and random inputs for readers of files and sockets: valid
//! ones, changed. With `LIBNCCL_TEST_SECONDS=600` in the environment, each test of a reader, whose names contain `random_`,
//! runs for 600 seconds; `.ci/run long` sets it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Counts the inputs of a test: `usual`, or as many as there is time for.
pub fn inputs(usual: usize) -> impl Iterator<Item = usize> {
    let seconds = from_environment("LIBNCCL_TEST_SECONDS");
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    (0..).take_while(move |input| end.map_or(*input < usual, |end| Instant::now() < end))
}

/// Returns the number in the environment variable `name`.
pub fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text}, which is not a number")))
}

/// Returns a seed that differs from run to run.
pub fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    mix(now.map_or(0, |now| now.as_nanos() as u64) ^ u64::from(std::process::id())) >> 32
}

/// Mixes a number into all 64 bits.
pub fn mix(mut number: u64) -> u64 {
    number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// The splitmix64 generator, with its seed.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// Returns a random number.
    #[allow(clippy::should_implement_trait)] // It never ends.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `end`, which must not be 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns true with probability 1/2.
    pub fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }

    /// Returns true with probability `1 / times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Returns one of the choices.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Fills the buffer with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill_with(|| self.next() as u8);
    }

    /// Returns `0..length` in random order.
    pub fn shuffled(&mut self, length: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..length).collect();
        for index in (1..length).rev() {
            order.swap(index, self.below(index + 1));
        }
        order
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
