//! Handles: the numbers by which C refers to communicators. Also the report of communicators that still exist when the process exits.
//!
//! Handles are not addresses and are never reused, so a stale or foreign handle causes an error, not a crash. The upper bits of a
//! handle distinguish communicators that a forked child inherited from communicators that it created.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

#[cfg(feature = "device-api")]
use libnccl::sys::ncclWindow_t;
use libnccl::sys::{ncclComm, ncclComm_t};

use crate::comm::communicator::Communicator;
use crate::comm::open_group;
use crate::comm::registry::{self, Kind, SERIAL};
#[cfg(feature = "device-api")]
use crate::comm::window::Window;
use crate::diag::error::{Error, Result};
use crate::diag::report;
use crate::shm::{mem_alloc, process};

static TABLE: LazyLock<RwLock<BTreeMap<usize, Arc<Communicator>>>> = LazyLock::new(|| {
    // CUDA streams and threads call this code, so it must stay loaded.
    libnccl::internal::keep_loaded();
    process::watch_forks();
    report::begin();
    RwLock::default()
});

thread_local! {
    /// The communicator that this thread used last, with its handle number. Most threads use one communicator, and need not lock
    /// the table for it.
    static LAST: Cell<Option<(usize, Arc<Communicator>)>> = const { Cell::new(None) };
}

/// Adds a communicator and returns its handle.
pub(crate) fn add(communicator: Arc<Communicator>) -> ncclComm_t {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let number = registry::communicator_number(process::fork_generation());
    // Far from any real object, and aligned, in case a debugger dereferences it.
    let handle = ptr::without_provenance_mut::<ncclComm>(number << 4);
    communicator.handle.store(handle.addr(), Relaxed);
    table.insert(number, communicator);
    handle
}

pub(crate) fn get(handle: ncclComm_t) -> Result<Arc<Communicator>> {
    look_up(handle, number(handle)?)
}

fn look_up(handle: ncclComm_t, number: usize) -> Result<Arc<Communicator>> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.get(&number).cloned().ok_or_else(|| unknown(handle))
}

/// Returns the communicators that this process created and has not destroyed.
pub(crate) fn all() -> Vec<Arc<Communicator>> {
    own(&TABLE.read().unwrap_or_else(PoisonError::into_inner))
}

fn own(table: &BTreeMap<usize, Arc<Communicator>>) -> Vec<Arc<Communicator>> {
    let own = table.iter().filter(|(number, _)| **number >> SERIAL == process::fork_generation());
    own.map(|(_, communicator)| Arc::clone(communicator)).collect()
}

/// Returns a window and its communicator. This process must have created the communicator.
#[cfg(feature = "device-api")]
pub(crate) fn with_window(window: ncclWindow_t) -> Result<(Arc<Communicator>, Arc<Window>)> {
    if window.is_null() {
        return Err(Error::argument(format!("the window is NULL{}", open_group::explain_absence("window"))));
    }
    let find = |communicator: Arc<Communicator>| {
        let window = communicator.windows.get(window.addr()).ok()?;
        Some((communicator, window))
    };
    all().into_iter().find_map(find).ok_or_else(|| {
        let cause = match Kind::of(window.addr()) {
            Some(Kind::Window) => ": it was deregistered".into(),
            Some(kind) => format!(": it is a {}", kind.name()),
            None => String::new(),
        };
        Error::argument(format!("{window:p} is not a window of this process{cause}"))
    })
}

/// Calls `call` with the communicator of a handle. The thread keeps the communicator for its next call, because changing a
/// reference count would wait for the CPU's pending stores. Another rank may be waiting for these stores. A communicator that
/// another thread destroys therefore stays in memory until this thread uses another communicator or ends.
pub(crate) fn with<T>(handle: ncclComm_t, call: impl FnOnce(&Arc<Communicator>) -> Result<T>) -> Result<T> {
    let number = number(handle)?;
    // A thread that is ending may have dropped it.
    let last = LAST.try_with(Cell::take).ok().flatten();
    let known = last.filter(|(last, communicator)| *last == number && !communicator.is_handle_destroyed());
    let communicator = known.map_or_else(|| look_up(handle, number), |(_, communicator)| Ok(communicator))?;
    let result = call(&communicator).inspect_err(|error| communicator.note_failed_call(error));
    if !communicator.is_handle_destroyed() {
        let _ = LAST.try_with(|last| last.set(Some((number, communicator))));
    }
    result
}

/// Destroys a handle and returns its communicator.
pub(crate) fn remove(handle: ncclComm_t) -> Result<Arc<Communicator>> {
    let number = number(handle)?;
    drop(LAST.try_with(Cell::take));
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let communicator = table.remove(&number).ok_or_else(|| unknown(handle))?;
    communicator.handle_destroyed.store(true, Relaxed);
    Ok(communicator)
}

/// Returns the number of a handle that this process created. Inherited handles are refused without a lock, because a thread of the parent
/// may have held the lock at the fork.
#[inline]
fn number(handle: ncclComm_t) -> Result<usize> {
    // The low bits are part of the number, so that no other address is mistaken for a handle.
    let number = handle.addr().rotate_right(4);
    if number >> SERIAL == process::fork_generation() { Ok(number) } else { Err(foreign(handle, number)) }
}

#[cold]
#[inline(never)]
fn foreign(handle: ncclComm_t, number: usize) -> Error {
    if !handle.is_null() && number >> SERIAL < process::fork_generation() {
        process::inherited(&format!("communicator {handle:p}"))
    } else {
        unknown(handle)
    }
}

fn unknown(handle: ncclComm_t) -> Error {
    Error::argument(if handle.is_null() {
        format!("the communicator is NULL{}", open_group::explain_absence("communicator"))
    } else if let Some(kind) = Kind::of(handle.addr()).filter(|kind| *kind != Kind::Communicator) {
        format!("{handle:p} is not a communicator: it is a {}", kind.name())
    } else {
        format!("{handle:p} is not a communicator, or was destroyed")
    })
}

/// Called after all `atexit` functions and destructors of static objects, because these may still destroy communicators.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn end() {
    if report::has_begun() {
        // It must not unwind, and the data that a report needs may no longer exist.
        let _ = catch_unwind(|| {
            // Another thread may hold the lock forever.
            if let Ok(table) = TABLE.try_read() {
                own(&table).iter().for_each(|communicator| communicator.report_end());
            }
            mem_alloc::report_end();
            report::end();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::config::Config;

    #[test]
    fn handle_destroyed_by_another_thread_is_unknown_and_dropped() {
        let communicator = Arc::new(Communicator::new(0, None, Config::default()));
        let (kept, handle) = (Arc::downgrade(&communicator), add(communicator));
        with(handle, |_| Ok(())).unwrap();
        let address = handle.addr();
        let destroy = move || drop(remove(ptr::without_provenance_mut(address)).unwrap());
        std::thread::spawn(destroy).join().unwrap();
        assert!(kept.upgrade().is_some(), "this thread used it last");
        assert!(
            with(handle, |_| Ok(())).unwrap_err().text.contains("is not a communicator, or was destroyed")
        );
        assert!(kept.upgrade().is_none());
    }
}
