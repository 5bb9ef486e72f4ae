//! Handles.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// Values behind handles: numbers that programs see as pointers, and that are never dereferenced.
pub(crate) struct Handles<T>(Mutex<(usize, BTreeMap<usize, T>)>);

impl<T> Handles<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new((0x1000, BTreeMap::new())))
    }

    pub(crate) fn create(&self, value: T) -> *mut c_void {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.0 += 0x10;
        let handle = all.0;
        all.1.insert(handle, value);
        ptr::without_provenance_mut(handle)
    }

    /// Calls `work` with the value behind a handle. Returns `None` if there is no such handle.
    pub(crate) fn with<R>(&self, handle: *mut c_void, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.get_mut(&handle.addr()).map(work)
    }

    pub(crate) fn destroy(&self, handle: *mut c_void) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&handle.addr())
    }
}
