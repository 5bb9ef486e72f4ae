//! Handles: the numbers by which C knows communicators.
//!
//! A handle is no address and is never given twice, so one that is foreign, or was destroyed, is an error and
//! not a crash.

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

pub(crate) fn add(communicator: Communicator) -> ncclComm_t {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.last += 1;
    let number = table.last;
    table.communicators.insert(number, Arc::new(communicator));
    // Far from where any real object lies, and aligned, in case anyone looks.
    ptr::without_provenance_mut::<ncclComm>(number << 4)
}

pub(crate) fn get(handle: ncclComm_t) -> Result<Arc<Communicator>> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.communicators.get(&number(handle)).cloned().ok_or_else(|| unknown(handle))
}

pub(crate) fn remove(handle: ncclComm_t) -> Result<Arc<Communicator>> {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.communicators.remove(&number(handle)).ok_or_else(|| unknown(handle))
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
