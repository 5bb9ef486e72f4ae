//! Objects that a communicator made for its caller, who refers to them by handles.
//!
//! Handles are never reused, so a stale or foreign one is an error, not a crash. Their low bits tell what they stand for,
//! so that the error of one that was passed to another's function says it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::comm::{group, handle};
use crate::diag::error::{Error, Result};

#[derive(Debug)]
pub(crate) struct Registry<T> {
    kind: Kind,
    entries: Mutex<BTreeMap<usize, T>>,
}

/// The thing that a number stands for, and its low bits. Those of a [communicator's handle](handle) are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Registration = 1,
    Window = 2,
}

/// The last number that any registry has given, without the bits of its [`Kind`].
static LAST: AtomicUsize = AtomicUsize::new(0);

impl Kind {
    /// Returns the kind for which a registry has given a number, perhaps another communicator's or one that is gone.
    pub(crate) fn of(number: usize) -> Option<Self> {
        let is_given = (1..=LAST.load(Relaxed)).contains(&(number >> 4));
        [Self::Registration, Self::Window].into_iter().find(|kind| is_given && number & 0xf == *kind as usize)
    }

    /// Returns the name in errors.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Registration => "registration",
            Self::Window => "window",
        }
    }
}

impl<T: Clone> Registry<T> {
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, entries: Mutex::default() }
    }

    /// Adds `entry` and returns its number, which is not zero and not an address.
    pub(crate) fn add(&self, entry: T) -> usize {
        let number = (LAST.fetch_add(1, Relaxed) + 1) << 4 | self.kind as usize;
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

    pub(crate) fn len(&self) -> usize {
        self.entries().len()
    }

    pub(crate) fn any(&self, test: impl FnMut(&T) -> bool) -> bool {
        self.entries().values().any(test)
    }

    /// Returns the number of the first entry that passes the test.
    pub(crate) fn find(&self, mut test: impl FnMut(&T) -> bool) -> Option<usize> {
        self.entries().iter().find(|(_, entry)| test(entry)).map(|(number, _)| *number)
    }

    fn unknown(&self, number: usize) -> Error {
        let what = self.kind.name();
        let cause = match Kind::of(number) {
            _ if number == 0 => group::explain_absence(what),
            Some(kind) if kind == self.kind => ": it is another communicator's, or was destroyed".into(),
            Some(kind) => format!(": it is a {}", kind.name()),
            None if handle::is_known(number) => ": it is a communicator".into(),
            None => String::new(),
        };
        let number = if number == 0 { "NULL".into() } else { format!("{number:#x}") };
        Error::argument(format!("{number} is not a {what} of this communicator{cause}"))
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
        let (one, two) = (Registry::new(Kind::Window), Registry::new(Kind::Window));
        let first = one.add('a');
        let second = two.add('b');
        assert_eq!((one.get(first).unwrap(), two.get(second).unwrap()), ('a', 'b'));
        assert!(one.get(second).is_err() && two.remove(first).is_err() && one.get(0).is_err());
        assert_eq!(one.remove(first).unwrap(), 'a');
        assert!(one.remove(first).unwrap_err().text.ends_with(
            "is not a window of this communicator: it is another communicator's, or was destroyed"
        ));
        assert!(one.add('c') > second);
    }
}
