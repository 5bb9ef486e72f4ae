use serde::{Deserialize, Serialize};

use super::number::Arithmetic;

/// A periodic sequence of elements.
///
/// The period is a prime, so a block that arrives in the place of another one is noticed: blocks start at multiples of
/// powers of two.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    arithmetic: Arithmetic,
    bytes: Vec<u8>,
}

/// The number of elements after which a pattern repeats.
pub(crate) const PERIOD: usize = 1021;

/// The number of elements to copy at a time, a multiple of the period: a large buffer needs no copy of its size.
pub(crate) const BLOCK: usize = 1024 * PERIOD;

impl Pattern {
    /// Creates a pattern from its elements by index, each in the first bytes.
    pub(crate) fn new(arithmetic: Arithmetic, element: impl Fn(usize) -> [u8; 8]) -> Self {
        let size = arithmetic.size();
        let mut bytes = Vec::with_capacity(PERIOD * size);
        for index in 0..PERIOD {
            bytes.extend_from_slice(&element(index)[..size]);
        }
        Self { arithmetic, bytes }
    }

    /// Returns the pattern of a buffer that has not received anything: a value that is neither sent nor a result.
    pub(crate) fn untouched(arithmetic: Arithmetic) -> Self {
        let element = arithmetic.integer(-1);
        Self::new(arithmetic, |_| element)
    }

    /// Returns the pattern from element `start` on.
    pub(crate) fn from(mut self, start: usize) -> Self {
        self.bytes.rotate_left(start % PERIOD * self.arithmetic.size());
        self
    }

    /// Returns the bytes of the first `count` elements, at most [`BLOCK`], after which the elements repeat.
    pub(crate) fn block(&self, count: usize) -> Vec<u8> {
        let count = count.min(BLOCK);
        let mut block = self.bytes.repeat(count.div_ceil(PERIOD));
        block.truncate(count * self.arithmetic.size());
        block
    }

    /// Compares the bytes of elements with the pattern.
    pub(crate) fn compare(&self, buffer: &[u8]) -> Comparison {
        let mut comparison = Comparison::default();
        for (chunk, start) in buffer.chunks(self.bytes.len()).zip((0..).step_by(PERIOD)) {
            if *chunk != self.bytes[..chunk.len()] {
                comparison.add(self.differences(chunk), start);
            }
        }
        comparison
    }

    /// Compares element by element; numbers may be equal without the same bytes.
    fn differences(&self, chunk: &[u8]) -> Comparison {
        let (mut comparison, size) = (Comparison::default(), self.arithmetic.size());
        let pairs = chunk.chunks_exact(size).zip(self.bytes.chunks_exact(size));
        for (offset, (is, should)) in pairs.enumerate() {
            let (got, expected) = (self.arithmetic.number(is), self.arithmetic.number(should));
            if got != expected {
                comparison.wrong += 1;
                comparison.first.get_or_insert_with(|| FirstWrong {
                    offset,
                    got: shortened(got.to_string()),
                    expected: shortened(expected.to_string()),
                });
            }
        }
        comparison
    }
}

/// Returns the text of a number, with an exponent if it would be long.
fn shortened(text: String) -> String {
    const LONG: usize = 20;
    let float = text.parse::<f64>().ok().filter(|_| text.len() > LONG);
    float.map_or(text, |float| format!("{float:e}"))
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    pub(crate) wrong: usize,
    pub(crate) first: Option<FirstWrong>,
}

/// The first element that differs from a pattern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FirstWrong {
    pub(crate) offset: usize,
    pub(crate) got: String,
    pub(crate) expected: String,
}

impl Comparison {
    /// Adds the comparison of elements that begin `offset` elements after those of this one.
    pub(crate) fn add(&mut self, other: Self, offset: usize) {
        self.wrong += other.wrong;
        if self.first.is_none() {
            self.first = other.first.map(|first| FirstWrong { offset: first.offset + offset, ..first });
        }
    }
}
