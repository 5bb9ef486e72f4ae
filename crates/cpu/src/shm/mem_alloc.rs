//! Memory from `ncclMemAlloc`: whole zeroed pages that other processes on the host can map.
//!
//! Collectives on this memory need no copies between processes. A process that may not open this process's `/proc` entries, such
//! as another user's process, cannot map the memory.
//!
//! A forked child shares this memory with its parent, unlike other memory: each observes the other's writes. The memory is freed
//! when the process that allocated it frees it. Pages that were [taken back](take_back) are no longer shared.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use cuda_common::finding::Finding;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::param::page_size;

use crate::cuda::{Driver, driver};
use crate::diag::debug::{self, Subsystem};
use crate::diag::error::{Error, Result};
use crate::diag::report;
use crate::shm::mapping::Mapping;
use crate::shm::window_memory;

/// The granularity of sizes in bytes. If pages are larger, the kernel rounds further.
const PAGE: usize = 4096;

struct Allocation {
    number: u64,
    address: usize,
    /// This process's mapping of the memory. CUDA has a separate mapping of device memory, whose address is the key in
    /// [`ALLOCATIONS`].
    mapping: Mapping,
    driver: Option<&'static Driver>,
    /// The file through which other processes map the memory, open until the memory is freed. `None` if the memory is private.
    file: Option<OwnedFd>,
    /// The pid of the process that allocated the memory, not of a forked child.
    process: u32,
    /// The offsets of the pages that this process has taken back. They no longer belong to the file.
    taken: BTreeSet<usize>,
}

/// The allocations, keyed by the address at which this process accesses them.
static ALLOCATIONS: RwLock<BTreeMap<usize, Allocation>> = RwLock::new(BTreeMap::new());

static TAKEN: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShmHandle {
    /// The allocation's number, never 0 and never reused in a process.
    pub(crate) allocation: u64,
    /// The file descriptor's number in the owner's process.
    pub(crate) file: u32,
    pub(crate) offset: u64,
}

/// Allocates `size` bytes, or returns NULL for 0.
pub(crate) fn allocate(size: usize) -> Result<*mut c_void> {
    if size == 0 {
        return Ok(ptr::null_mut());
    }
    // The kernel refuses a size that overflows.
    let size = size.checked_next_multiple_of(PAGE).unwrap_or(size);
    if let Some(driver) = driver() {
        return allocate_on_device(driver, size);
    }
    // Private memory first: the kernel refuses to map more than the host has. In contrast, it creates a file of any size and
    // kills the process that uses it.
    let private = Mapping::private(size)?;
    let (mapping, file) = match Mapping::shared_within_limits(size) {
        Ok((mapping, file)) => (mapping, Some(file)),
        // Most likely no file descriptors are left. The allocation must not fail because of that: private memory is only slower.
        Err(error) => {
            debug::info(Subsystem::Allocation, || {
                format!(
                    "{size} bytes at {:p} are not shared with other processes: {}",
                    private.start(),
                    error.text
                )
            });
            (private, None)
        }
    };
    let memory = mapping.start();
    add(memory.addr().get(), memory.addr().get(), mapping, None, file);
    Ok(memory.as_ptr().cast())
}

fn allocate_on_device(driver: &'static Driver, size: usize) -> Result<*mut c_void> {
    // Checks the size, as for host memory.
    drop(Mapping::private(size)?);
    let (mapping, file) = Mapping::shared(size)?;
    let device = driver.current_device()?;
    let address = driver.on_device(device, || driver.allocate_shared(file.as_fd(), size))?;
    let place = driver.resolve("the memory", address, size)?;
    add(place, address, mapping, Some(driver), Some(file));
    Ok(ptr::without_provenance_mut(address))
}

fn add(
    place: usize,
    address: usize,
    mapping: Mapping,
    driver: Option<&'static Driver>,
    file: Option<OwnedFd>,
) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    let (process, taken) = (std::process::id(), BTreeSet::new());
    allocations().insert(place, Allocation { number, address, mapping, driver, file, process, taken });
}

/// Frees memory returned by [`allocate`].
///
/// # Safety
/// The memory must no longer be used in this process.
pub(crate) unsafe fn free(memory: *mut c_void) -> Result {
    if memory.is_null() {
        return Ok(());
    }
    let allocation = remove(memory.addr())
        .ok_or_else(|| Error::argument(format!("{memory:p} is not from ncclMemAlloc, or was freed")))?;
    if let Some(driver) = allocation.driver {
        // SAFETY: the caller's contract.
        unsafe { driver.free(allocation.address) }?;
    }
    // Other processes may keep the memory mapped, but its pages are freed immediately.
    if let Some(file) = &allocation.file
        && allocation.process == std::process::id()
        && let Err(error) = fallocate(
            file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            0,
            allocation.mapping.length() as u64,
        )
    {
        debug::info(Subsystem::Allocation, || {
            format!("memory at {memory:p} is free only once no process maps it any more: {error}")
        });
    }
    Ok(())
}

/// Reports memory that was not freed when the process ends, unless a thread is currently allocating.
pub(crate) fn report_end() {
    let Ok(allocations) = ALLOCATIONS.try_read() else { return };
    let own = allocations.values().filter(|allocation| allocation.process == std::process::id());
    let bytes = own.map(|allocation| allocation.mapping.length()).sum::<usize>();
    if bytes > 0 {
        let text = format!("{bytes} bytes from ncclMemAlloc were not freed before the process exits");
        report::report_if_strict(Finding::LeakedMemory, None, &text);
    }
}

/// Returns the length of the allocation at the program's address `address`.
pub(crate) fn length(address: *mut c_void) -> Option<usize> {
    let allocations = ALLOCATIONS.read().unwrap_or_else(PoisonError::into_inner);
    let mut all = allocations.values();
    all.find(|allocation| allocation.address == address.addr()).map(|allocation| allocation.mapping.length())
}

/// Removes the allocation at the program's address `address`.
fn remove(address: usize) -> Option<Allocation> {
    let mut allocations = allocations();
    let place = *allocations.iter().find(|(_, allocation)| allocation.address == address)?.0;
    allocations.remove(&place)
}

/// Returns the handle of `length` bytes at `start`. Returns `None` unless all of them are in one shared allocation of this
/// process and none was taken back.
pub(crate) fn find(start: *const u8, length: usize) -> Option<ShmHandle> {
    let allocations = ALLOCATIONS.read().unwrap_or_else(PoisonError::into_inner);
    let (first, Allocation { number, mapping, file, taken, .. }) =
        allocations.range(..=start.addr()).next_back()?;
    let (file, offset) = (file.as_ref()?, (start.addr() - first) as u64);
    mapping.range(offset, length)?;
    let first_page = offset as usize / page_size() * page_size();
    let is_taken = taken.range(first_page..offset as usize + length).next().is_some();
    (!is_taken).then(|| ShmHandle { allocation: *number, file: file.as_raw_fd().unsigned_abs(), offset })
}

/// Returns the number of times that memory was taken back. If the number is the same before and after a call, other processes'
/// writes to memory with a [handle](find) have arrived.
pub(crate) fn taken() -> u64 {
    TAKEN.load(Ordering::Acquire)
}

/// Takes `length` bytes at `start` back from other processes, which may never finish an access: replaces the pages in this
/// process with private copies. Other processes keep the file. Does nothing for memory that other processes cannot map.
///
/// The memory must not be in more than `windows` windows: the ranks of other windows would write to the file and not observe this
/// process's writes.
///
/// # Errors
/// Fails with the reason if the memory cannot be taken back. It is then still shared, and the call can be retried.
pub(crate) fn take_back(start: *const u8, length: usize, windows: usize) -> Result {
    let mut allocations = allocations();
    let Some((first, allocation)) = allocations.range_mut(..=start.addr()).next_back() else { return Ok(()) };
    let Allocation { mapping, driver, file: Some(file), process, taken, .. } = allocation else {
        return Ok(());
    };
    let offset = start.addr() - first;
    if length == 0 || offset >= mapping.length() {
        return Ok(());
    }
    if driver.is_some() || *process != std::process::id() {
        return Err(Error::usage("it is device memory, or memory of a parent process"));
    }
    let page = page_size();
    let end = offset.saturating_add(length).checked_next_multiple_of(page);
    let pages = offset / page * page..end.unwrap_or(usize::MAX).min(mapping.length());
    if window_memory::count(mapping.start().as_ptr().wrapping_add(pages.start), pages.len()) > windows {
        return Err(Error::usage("some of it is in a window"));
    }
    TAKEN.fetch_add(1, Ordering::AcqRel);
    for at in pages.clone().step_by(page) {
        // A page that is already private may contain bytes that the file does not.
        if !taken.contains(&at) {
            let mapped = mapping.make_private(&*file, at..pages.end.min(at + page));
            mapped.map_err(|error| Error::system("it cannot be mapped", error))?;
            taken.insert(at);
        }
    }
    mapping.copy_pages(pages).map_err(|error| Error::system("it cannot be copied", error))
}

fn allocations() -> RwLockWriteGuard<'static, BTreeMap<usize, Allocation>> {
    ALLOCATIONS.write().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "../../tests/unit/mem_alloc.rs"]
mod tests;
