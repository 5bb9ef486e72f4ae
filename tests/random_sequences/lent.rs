//! Buffers that operations borrow, and what becomes of them afterwards.

use std::fmt::Debug;
use std::hint::black_box;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// An element of a buffer.
pub(crate) trait Plain: Copy + PartialEq + Debug + Send + 'static {
    /// The value that nothing may overwrite any more.
    const PATTERN: Self;
}

macro_rules! impl_plain {
    ($($type:ty: $pattern:expr),*) => { $(impl Plain for $type { const PATTERN: Self = $pattern; })* };
}
impl_plain!(u8: 0xA5, u32: 0xA5A5_A5A5, i64: -0x5A5A_5A5A, f32: -165.5);

/// The buffers that were given back, in which nothing may change until the end of the sequence.
#[derive(Default)]
pub(crate) struct Vault(Mutex<Vec<Option<Box<dyn Kept>>>>);

trait Kept: Send {
    /// Returns a description of the first element that has changed.
    fn change(&self) -> Option<String>;
}

impl<T: Plain> Kept for Vec<T> {
    fn change(&self) -> Option<String> {
        let index = black_box(self).iter().position(|element| *element != T::PATTERN)?;
        Some(format!("{:?} at {index} of {}", self[index], self.len()))
    }
}

impl Vault {
    /// Lends a buffer, which is given back when it is dropped.
    pub(crate) fn lend<T: Plain>(&self, elements: impl Into<Vec<T>>) -> Lent<'_, T> {
        Lent { elements: elements.into(), vault: self }
    }

    /// Fails if a buffer was written after it was given back.
    pub(crate) fn check(self) {
        let kept = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let change = kept.iter().flatten().find_map(|buffer| buffer.change());
        assert_eq!(change, None, "a buffer was written after it was given back");
    }
}

/// A buffer that belongs to this rank whenever no operation borrows it.
pub(crate) struct Lent<'v, T: Plain> {
    elements: Vec<T>,
    vault: &'v Vault,
}

impl<T: Plain> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.elements);
        buffer.fill(T::PATTERN);
        let mut kept = self.vault.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Every fourth is freed at once, for a sanitizer to see.
        if kept.len() < 200 {
            let is_kept = kept.len() % 4 < 3;
            kept.push(is_kept.then(|| Box::new(buffer) as Box<dyn Kept>));
        }
    }
}

impl<T: Plain> Deref for Lent<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.elements
    }
}

impl<T: Plain> DerefMut for Lent<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.elements
    }
}
