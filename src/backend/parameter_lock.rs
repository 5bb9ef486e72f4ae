//! The lock of a library's parameter functions, `ncclParam*`.
//!
//! NCCL records the keys that were read in a table without a lock, and threads have crashed in NCCL 2.32.3. So every call of
//! one of these functions holds this lock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::sys::Functions;

thread_local! {
    /// The libraries whose locks this thread holds.
    static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Holds the lock until it is dropped.
pub(crate) struct ParameterGuard {
    key: usize,
    /// `None` if the thread holds the lock already.
    lock: Option<MutexGuard<'static, ()>>,
}

/// Locks the parameter functions of a library. A thread may do so again while it holds the lock, as NCCL may call its own
/// functions by name, and thereby the functions of an interposer.
///
/// There is one lock for each library, however often and by whatever path it was opened, and not one for all, so that a
/// library may read the parameters of another one.
pub(crate) fn lock_parameters(functions: &Functions) -> ParameterGuard {
    let key = functions.ncclParamGetParameter.map_or(0, |function| function as usize);
    if HELD.try_with(|held| held.borrow().contains(&key)).unwrap_or(false) {
        return ParameterGuard { key, lock: None };
    }
    let lock = lock_of(key).lock().unwrap_or_else(PoisonError::into_inner);
    let _ = HELD.try_with(|held| held.borrow_mut().push(key));
    ParameterGuard { key, lock: Some(lock) }
}

impl Drop for ParameterGuard {
    fn drop(&mut self) {
        if self.lock.is_some() {
            let _ = HELD.try_with(|held| held.borrow_mut().retain(|key| *key != self.key));
        }
    }
}

fn lock_of(key: usize) -> &'static Mutex<()> {
    static LOCKS: Mutex<BTreeMap<usize, &'static Mutex<()>>> = Mutex::new(BTreeMap::new());
    let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    // Leaked, as libraries are never unloaded.
    locks.entry(key).or_insert_with(|| Box::leak(Box::default()))
}
