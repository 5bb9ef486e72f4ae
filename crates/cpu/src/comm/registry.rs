//! Objects that a communicator made for its caller, who refers to them by handles.
//!
//! Handles are never reused, so a stale or foreign one is an error, not a crash. Their low bits tell what they stand for,
//! so that the error of one that was passed to another's function says it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::comm::open_group;
use crate::diag::error::{Error, Result};

#[derive(Debug)]
pub(crate) struct Registry<T> {
    kind: Kind,
    entries: Mutex<BTreeMap<usize, T>>,
}

/// What a handle refers to, and the low bits of the handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Communicator = 0,
    Registration = 1,
    Window = 2,
}

/// The last number that any registry has given, without the bits of its [`Kind`].
static LAST: AtomicUsize = AtomicUsize::new(0);

/// The last serial number of a communicator, including those of the processes from which this one was forked.
static LAST_COMMUNICATOR: AtomicUsize = AtomicUsize::new(0);

/// Bits of a communicator's serial number. The [generation](crate::comm::fork::generation) of its process is above them.
pub(crate) const SERIAL: u32 = usize::BITS / 2;
/// Bits of the generation: a handle has 4 more bits below the number.
const GENERATION: u32 = SERIAL - 4;

/// Returns the number of a new communicator in a process of this generation. Its handle has 4 more bits below.
///
/// # Errors
/// The process has used up its numbers.
pub(crate) fn communicator_number(generation: usize) -> Result<usize> {
    next_number(generation, &LAST_COMMUNICATOR)
}

fn next_number(generation: usize, last: &AtomicUsize) -> Result<usize> {
    let fits = |last: usize| (last + 1) >> SERIAL == 0 && generation >> GENERATION == 0;
    match last.fetch_update(Relaxed, Relaxed, |last| fits(last).then_some(last + 1)) {
        Ok(before) => Ok(generation << SERIAL | (before + 1)),
        Err(last) => Err(Error::usage(format!(
            "the process has made {last} communicators after {generation} forks, and there are no more handles"
        ))),
    }
}

impl Kind {
    /// Returns the kind of a handle, which may belong to another communicator or to an object that was destroyed.
    pub(crate) fn of(handle: usize) -> Option<Self> {
        let number = handle >> 4;
        let is_object = (1..=LAST.load(Relaxed)).contains(&number);
        let serial = number & ((1 << SERIAL) - 1);
        match handle & 0xf {
            0 => (1..=LAST_COMMUNICATOR.load(Relaxed)).contains(&serial).then_some(Self::Communicator),
            1 => is_object.then_some(Self::Registration),
            2 => is_object.then_some(Self::Window),
            _ => None,
        }
    }

    /// Returns the name in errors.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Communicator => "communicator",
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
            _ if number == 0 => open_group::explain_absence(what),
            Some(kind) if kind == self.kind => ": it is another communicator's, or was destroyed".into(),
            Some(kind) => format!(": it is a {}", kind.name()),
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
    fn numbers_of_handles_end_with_an_error_and_are_not_reused() {
        let last = AtomicUsize::new((1 << SERIAL) - 2);
        assert_eq!(next_number(0, &last).unwrap(), (1 << SERIAL) - 1);
        for generation in [0, 1] {
            let error = next_number(generation, &last).unwrap_err();
            assert!(error.text.contains("has made 4294967295 communicators"), "{}", error.text);
        }
        assert_eq!(next_number(1, &AtomicUsize::new(0)).unwrap(), 1 << SERIAL | 1);
        assert!(next_number(1 << GENERATION, &AtomicUsize::new(0)).is_err());
    }

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
