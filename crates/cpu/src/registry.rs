//! What a communicator made for its caller, who knows it by a number.
//!
//! Numbers are never given twice, so one that is foreign, or of what is no more, is an error and not a crash.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::failure::{Failure, Result};

#[derive(Debug)]
pub(crate) struct Registry<T> {
    /// What is in it, for the error if it is not.
    what: &'static str,
    entries: Mutex<BTreeMap<usize, T>>,
}

impl<T: Clone> Registry<T> {
    pub(crate) fn new(what: &'static str) -> Self {
        Self { what, entries: Mutex::default() }
    }

    /// Adds `entry`; its number is no address of anything, and not zero.
    pub(crate) fn add(&self, entry: T) -> usize {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let number = (LAST.fetch_add(1, Relaxed) + 1) << 4;
        self.entries().insert(number, entry);
        number
    }

    pub(crate) fn get(&self, number: usize) -> Result<T> {
        self.entries().get(&number).cloned().ok_or_else(|| self.unknown(number))
    }

    pub(crate) fn remove(&self, number: usize) -> Result<T> {
        self.entries().remove(&number).ok_or_else(|| self.unknown(number))
    }

    pub(crate) fn any(&self, test: impl FnMut(&T) -> bool) -> bool {
        self.entries().values().any(test)
    }

    fn unknown(&self, number: usize) -> Failure {
        Failure::argument(format!("{number:#x} is no {} of this communicator, or no longer", self.what))
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<usize, T>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_one_registrys_and_never_given_again() {
        let (one, two) = (Registry::new("thing"), Registry::new("thing"));
        let first = one.add('a');
        let second = two.add('b');
        assert_eq!((one.get(first).unwrap(), two.get(second).unwrap()), ('a', 'b'));
        assert!(one.get(second).is_err() && two.remove(first).is_err() && one.get(0).is_err());
        assert_eq!(one.remove(first).unwrap(), 'a');
        assert!(
            one.remove(first).unwrap_err().text.ends_with("is no thing of this communicator, or no longer")
        );
        assert!(one.add('c') > second);
    }
}
