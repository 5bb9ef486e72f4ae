//! Handles: the numbers by which C knows communicators.
//!
//! A handle is no address and is never given twice, so one that is foreign, or was destroyed, is an error and
//! not a crash.

use std::cell::Cell;
use std::collections::HashMap;
use std::ptr;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use libnccl::sys::{ncclComm, ncclComm_t};

use crate::communicator::Communicator;
use crate::failure::{Failure, Result};

#[derive(Debug, Default)]
struct Table {
    last: usize,
    communicators: HashMap<usize, Arc<Communicator>>,
}

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(RwLock::default);

thread_local! {
    /// The communicator that this thread used last, with the number of its handle: most threads use one, and the
    /// table's lock is all threads'.
    static LAST: Cell<Option<(usize, Arc<Communicator>)>> = const { Cell::new(None) };
}

pub(crate) fn add(communicator: Arc<Communicator>) -> ncclComm_t {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.last += 1;
    let number = table.last;
    table.communicators.insert(number, communicator);
    // Far from where any real object lies, and aligned, in case anyone looks.
    ptr::without_provenance_mut::<ncclComm>(number << 4)
}

pub(crate) fn get(handle: ncclComm_t) -> Result<Arc<Communicator>> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.communicators.get(&number(handle)).cloned().ok_or_else(|| unknown(handle))
}

/// Makes a call on it that takes little more time than finding it. The thread keeps the communicator for its next call:
/// counting references waits for what the processor has yet to write, which another rank may be waiting for. So one that
/// another thread destroys stays in memory until this one uses another or ends.
pub(crate) fn with<T>(handle: ncclComm_t, call: impl FnOnce(&Arc<Communicator>) -> Result<T>) -> Result<T> {
    let number = number(handle);
    // A thread that ends may have lost it.
    let last = LAST.try_with(Cell::take).ok().flatten();
    let known = last.filter(|(last, communicator)| *last == number && !communicator.is_gone());
    let communicator = known.map_or_else(|| get(handle), |(_, communicator)| Ok(communicator))?;
    let result = call(&communicator);
    if !communicator.is_gone() {
        let _ = LAST.try_with(|last| last.set(Some((number, communicator))));
    }
    result
}

/// The communicator, whose handle is none any more.
pub(crate) fn remove(handle: ncclComm_t) -> Result<Arc<Communicator>> {
    drop(LAST.try_with(Cell::take));
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let communicator = table.communicators.remove(&number(handle)).ok_or_else(|| unknown(handle))?;
    communicator.go();
    Ok(communicator)
}

fn number(handle: ncclComm_t) -> usize {
    // The low bits belong to the number, too, so that no other address is taken for it.
    handle.addr().rotate_right(4)
}

fn unknown(handle: ncclComm_t) -> Failure {
    Failure::argument(if handle.is_null() {
        "the communicator is NULL".into()
    } else {
        format!("{handle:p} is no communicator, or no longer")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    #[test]
    fn what_another_thread_destroyed_is_unknown_and_let_go() {
        let communicator = Arc::new(Communicator::new(0, Options::default()));
        let (kept, handle) = (Arc::downgrade(&communicator), add(communicator));
        with(handle, |_| Ok(())).unwrap();
        let address = handle.addr();
        let destroy = move || drop(remove(ptr::without_provenance_mut(address)).unwrap());
        std::thread::spawn(destroy).join().unwrap();
        assert!(kept.upgrade().is_some(), "this thread used it last");
        assert!(with(handle, |_| Ok(())).unwrap_err().text.contains("is no communicator, or no longer"));
        assert!(kept.upgrade().is_none());
    }
}
