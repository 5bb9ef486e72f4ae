//! State that a forked child does not share with its parent.

use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

/// A value that is created when it is first needed, and never freed: any thread may use it at any time.
pub(crate) struct PerProcess<T>(AtomicPtr<T>);

impl<T: Default + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    pub(crate) fn get(&self) -> &'static T {
        self.existing().unwrap_or_else(|| {
            let new = Box::into_raw(Box::<T>::default());
            match self.0.compare_exchange(ptr::null_mut(), new, Release, Acquire) {
                // SAFETY: never freed from here on.
                Ok(_) => unsafe { &*new },
                Err(other) => {
                    // SAFETY: nobody else has seen the new one; the other one is never freed.
                    unsafe {
                        drop(Box::from_raw(new));
                        &*other
                    }
                }
            }
        })
    }

    pub(crate) fn existing(&self) -> Option<&'static T> {
        // SAFETY: null, or a value that is never freed.
        unsafe { self.0.load(Acquire).as_ref() }
    }

    /// Makes a forked child create a new value. The old value is leaked, because another thread of the parent may hold its locks.
    pub(crate) fn forget(&self) {
        self.0.store(ptr::null_mut(), Release);
    }
}
