//! Objects that a communicator made for its caller, who refers to them by handles.
//!
//! Handles are never reused, so a stale or foreign one is an error, not a crash.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::diag::error::{Error, Result};

#[derive(Debug)]
pub(crate) struct Registry<T> {
    /// The name of an entry in errors.
    what: &'static str,
    entries: Mutex<BTreeMap<usize, T>>,
}

impl<T: Clone> Registry<T> {
    pub(crate) fn new(what: &'static str) -> Self {
        Self { what, entries: Mutex::default() }
    }

    /// Adds `entry` and returns its number, which is not zero and not an address.
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

    pub(crate) fn remove_all(&self) -> Vec<T> {
        std::mem::take(&mut *self.entries()).into_values().collect()
    }

    pub(crate) fn any(&self, test: impl FnMut(&T) -> bool) -> bool {
        self.entries().values().any(test)
    }

    fn unknown(&self, number: usize) -> Error {
        Error::argument(format!("{number:#x} is not a {} of this communicator, or was destroyed", self.what))
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<usize, T>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_of_another_registry_or_a_removed_entry_is_refused() {
        let (one, two) = (Registry::new("thing"), Registry::new("thing"));
        let first = one.add('a');
        let second = two.add('b');
        assert_eq!((one.get(first).unwrap(), two.get(second).unwrap()), ('a', 'b'));
        assert!(one.get(second).is_err() && two.remove(first).is_err() && one.get(0).is_err());
        assert_eq!(one.remove(first).unwrap(), 'a');
        assert!(
            one.remove(first)
                .unwrap_err()
                .text
                .ends_with("is not a thing of this communicator, or was destroyed")
        );
        assert!(one.add('c') > second);
    }
}
