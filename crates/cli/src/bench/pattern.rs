use serde::{Deserialize, Serialize};

use super::number::Number;

/// A periodic sequence of elements.
///
/// The period is a prime, so a block that arrives in the place of another one is noticed: blocks start at multiples of
/// powers of two.
#[derive(Debug, Clone)]
pub(crate) struct Pattern<T>(Vec<T>);

/// The number of elements after which a pattern repeats.
pub(crate) const PERIOD: usize = 1021;

/// The number of elements to copy at a time, a multiple of the period: a large buffer needs no copy of its size.
pub(crate) const BLOCK: usize = 1024 * PERIOD;

impl<T: Number> Pattern<T> {
    /// Creates a pattern from its elements by index.
    pub(crate) fn new(element: impl Fn(usize) -> T) -> Self {
        Self((0..PERIOD).map(element).collect())
    }

    /// Returns the pattern of a buffer that has not received anything: a value that is neither sent nor a result.
    pub(crate) fn untouched() -> Self {
        Self::new(|_| T::from_integer(-1))
    }

    /// Returns the pattern from element `start` on.
    pub(crate) fn from(mut self, start: usize) -> Self {
        self.0.rotate_left(start % PERIOD);
        self
    }

    /// Returns the first `count` elements, at most [`BLOCK`], after which the elements repeat.
    pub(crate) fn block(&self, count: usize) -> Vec<T> {
        let count = count.min(BLOCK);
        let mut block = self.0.repeat(count.div_ceil(PERIOD));
        block.truncate(count);
        block
    }

    /// Compares elements with the pattern.
    pub(crate) fn compare(&self, buffer: &[T]) -> Comparison {
        let mut comparison = Comparison::default();
        for (chunk, start) in buffer.chunks(PERIOD).zip((0..).step_by(PERIOD)) {
            comparison.wrong += chunk.iter().zip(&self.0).filter(|(is, should)| is != should).count();
            if comparison.wrong > 0 && comparison.first.is_none() {
                let mut pairs = chunk.iter().zip(&self.0).zip(start..);
                let first = pairs.find(|((is, should), _)| is != should);
                comparison.first = first.map(|((is, should), offset)| FirstWrong {
                    offset,
                    got: text(is),
                    expected: text(should),
                });
            }
        }
        comparison
    }
}

/// Returns the text of a number, with an exponent if it would be long.
fn text(number: &impl ToString) -> String {
    const LONG: usize = 20;
    let text = number.to_string();
    let float = text.parse::<f64>().ok().filter(|_| text.len() > LONG);
    float.map_or(text, |float| format!("{float:e}"))
}

/// The result of a comparison with a pattern.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// The number of elements that differ.
    pub(crate) wrong: usize,
    pub(crate) first: Option<FirstWrong>,
}

/// The first element that differs from a pattern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FirstWrong {
    /// The index of the element.
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
