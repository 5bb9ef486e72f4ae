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

    /// Returns the number of elements that differ from the pattern.
    pub(crate) fn wrong(&self, buffer: &[T]) -> usize {
        let wrong = |chunk: &[T]| chunk.iter().zip(&self.0).filter(|(is, should)| is != should).count();
        buffer.chunks(PERIOD).map(wrong).sum()
    }
}
