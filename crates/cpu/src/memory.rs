//! Memory from `ncclMemAlloc`: whole pages, all zero.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::failure::{Failure, Result};

/// The allocations' sizes, by address.
static SIZES: LazyLock<Mutex<HashMap<usize, usize>>> = LazyLock::new(Mutex::default);

pub(crate) fn allocate(size: usize) -> Result<*mut c_void> {
    if size == 0 {
        return Ok(ptr::null_mut());
    }
    // SAFETY: the kernel chooses a place where nothing is mapped.
    let memory = unsafe {
        mmap_anonymous(ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }
    .map_err(|error| Failure::system(&format!("{size} bytes of memory cannot be allocated"), error))?;
    sizes().insert(memory.addr(), size);
    Ok(memory)
}

/// Frees what [`allocate`] returned.
///
/// # Safety
///
/// Nobody uses the memory any more.
pub(crate) unsafe fn free(memory: *mut c_void) -> Result {
    if memory.is_null() {
        return Ok(());
    }
    let size = sizes()
        .remove(&memory.addr())
        .ok_or_else(|| Failure::argument(format!("{memory:p} is not from ncclMemAlloc, or was freed")))?;
    // SAFETY: exactly what `allocate` mapped, once, and the caller vouches that it is not in use.
    unsafe { munmap(memory, size) }.map_err(|error| Failure::system("memory cannot be freed", error))
}

fn sizes() -> MutexGuard<'static, HashMap<usize, usize>> {
    SIZES.lock().unwrap_or_else(PoisonError::into_inner)
}
