//! Memory from `ncclMemAlloc`: whole zeroed pages that other processes on the host can map.
//!
//! Collectives on this memory need no copies between processes. A process that may not open this process's `/proc` entries, such
//! as another user's process, cannot map it.
//!
//! A forked child shares this memory with its parent, unlike other memory: each observes the other's writes. The memory is freed
//! when the process that allocated it frees it. Pages that were [taken back](take_back) are no longer shared.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use cuda_common::finding::Finding;
use rustix::fs::{FallocateFlags, fallocate};

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
    /// The address that the program uses.
    address: usize,
    /// This process's mapping of the memory. CUDA has a separate mapping of device memory; device memory is looked up by the
    /// address of that mapping.
    mapping: Mapping,
    driver: Option<&'static Driver>,
    /// The file through which other processes map the memory, open until the memory is freed. `None` if the memory is private.
    file: Option<OwnedFd>,
    /// The pid of the process that allocated the memory, not of a forked child.
    process: u32,
    /// The offsets of the pages that this process has taken back. They no longer belong to the file.
    taken: Vec<Range<usize>>,
}

/// The allocations, keyed by the address at which this process accesses them.
static ALLOCATIONS: RwLock<BTreeMap<usize, Allocation>> = RwLock::new(BTreeMap::new());

static TAKEN: AtomicU64 = AtomicU64::new(0);

/// A handle to a process's shared memory that other processes can use.
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
    add(memory.addr().get(), Allocation::new(memory.addr().get(), mapping, None, file));
    Ok(memory.as_ptr().cast())
}

/// Allocates device memory on the calling thread's current device.
fn allocate_on_device(driver: &'static Driver, size: usize) -> Result<*mut c_void> {
    // Checks the size, as for host memory.
    drop(Mapping::private(size)?);
    let (mapping, file) = Mapping::shared(size)?;
    let device = driver.current_device()?;
    let address = driver.on_device(device, || driver.allocate_shared(file.as_fd(), size))?;
    let place = driver.resolve("the memory", address, size)?;
    add(place, Allocation::new(address, mapping, Some(driver), Some(file)));
    Ok(ptr::without_provenance_mut(address))
}

impl Allocation {
    fn new(address: usize, mapping: Mapping, driver: Option<&'static Driver>, file: Option<OwnedFd>) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        Self { number, address, mapping, driver, file, process: std::process::id(), taken: Vec::new() }
    }
}

/// Adds an allocation that this process accesses at `place`.
fn add(place: usize, allocation: Allocation) {
    allocations().insert(place, allocation);
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
    let is_it = |allocation: &Allocation| allocation.address == address;
    if allocations.get(&address).is_some_and(is_it) {
        return allocations.remove(&address);
    }
    let place = allocations.iter().find(|(_, allocation)| is_it(allocation)).map(|(place, _)| *place)?;
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
    let (begin, end) = (offset as usize, offset as usize + length);
    if taken.iter().any(|taken| begin < taken.end && taken.start < end) {
        return None;
    }
    Some(ShmHandle { allocation: *number, file: file.as_raw_fd().unsigned_abs(), offset })
}

/// Returns the number of times that memory was taken back. If the number is the same before and after a call, other processes'
/// writes to memory with a [handle](find) have arrived.
pub(crate) fn taken() -> u64 {
    TAKEN.load(Ordering::Acquire)
}

/// Takes `length` bytes at `start` back from other processes, which may never finish an access: replaces the pages in this
/// process with private copies. Other processes keep the file. Does nothing for memory that other processes cannot map.
///
/// The memory must not be in more than `windows` windows: their other ranks would write to the file and not observe this
/// process's writes.
///
/// # Errors
/// The memory is still shared, for the stated reason. The call can be retried.
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
    let page = rustix::param::page_size();
    let end = offset.saturating_add(length).checked_next_multiple_of(page);
    let pages = offset / page * page..end.unwrap_or(usize::MAX).min(mapping.length());
    if window_memory::count(mapping.start().as_ptr().wrapping_add(pages.start), pages.len()) > windows {
        return Err(Error::usage("some of it is in a window"));
    }
    TAKEN.fetch_add(1, Ordering::AcqRel);
    // Pages that are already private may contain bytes that the file does not.
    let mut at = pages.start;
    while at < pages.end {
        if let Some(known) = taken.iter().find(|known| known.contains(&at)) {
            at = known.end;
            continue;
        }
        let next = taken.iter().map(|known| known.start).filter(|known| *known > at).min();
        let part = at..next.unwrap_or(pages.end).min(pages.end);
        mapping
            .make_private(&*file, part.clone())
            .map_err(|error| Error::system("it cannot be mapped", error))?;
        at = part.end;
        taken.push(part);
    }
    mapping.copy_pages(pages).map_err(|error| Error::system("it cannot be copied", error))
}

fn allocations() -> RwLockWriteGuard<'static, BTreeMap<usize, Allocation>> {
    ALLOCATIONS.write().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use crate::shm::process::Process;

    /// Memory that is freed on drop.
    struct Memory(*mut u8);

    impl Memory {
        fn new(size: usize) -> Self {
            Self(allocate(size).unwrap().cast())
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: only this test uses the memory.
            unsafe { free(self.0.cast()) }.unwrap();
        }
    }

    #[test]
    fn freed_pages_are_released_while_another_process_maps_them() {
        let memory = Memory::new(10_000);
        let handle = find(memory.0, 10_000).unwrap();
        let mapping = Mapping::open(&Process::current().unwrap(), handle.file).unwrap();
        let there = mapping.range(handle.offset, 10_000).unwrap();
        // SAFETY: 10000 bytes, of this test only.
        unsafe { memory.0.add(9_999).write(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { there.add(9_999).read() }, 7);
        drop(memory);
        // SAFETY: as above; `mapping` keeps the file's size, and its pages are zero again.
        assert_eq!(unsafe { there.add(9_999).read() }, 0);
    }

    #[test]
    fn memory_that_was_taken_back_keeps_its_bytes_and_is_not_written_by_others() {
        const PAGES: usize = 6;
        let page = rustix::param::page_size();
        let memory = Memory::new(PAGES * page);
        let handle = find(memory.0, PAGES * page).unwrap();
        let mapping = Mapping::open(&Process::current().unwrap(), handle.file).unwrap();
        let there = mapping.range(0, PAGES * page).unwrap().as_ptr();
        let here = |index: usize| memory.0.wrapping_add(index);
        // SAFETY: inside the memory, which only this test uses, here and below.
        let write = |start: *mut u8, index: usize, value| unsafe { start.add(index).write_volatile(value) };
        // SAFETY: as above.
        let read = |start: *mut u8, index: usize| unsafe { start.add(index).read_volatile() };
        (0..PAGES * page).for_each(|index| write(memory.0, index, 1));
        let before = taken();
        // Parts of pages 1 and 2, then of 1 to 4.
        take_back(here(page + 5), page, 0).unwrap();
        assert!(taken() > before);
        write(memory.0, page, 2);
        take_back(here(2 * page - 1), 2 * page + 2, 0).unwrap();
        (0..PAGES * page).for_each(|index| write(there, index, 3));
        let bytes = [0, page, page + 1, 2 * page, 4 * page - 1, 5 * page - 1, 5 * page]
            .map(|index| read(memory.0, index));
        assert_eq!(bytes, [3, 2, 1, 1, 1, 1, 3], "only what was not taken back");
        assert_eq!(find(here(page), 1), None);
        assert_eq!(find(memory.0, PAGES * page), None);
        assert_eq!(find(here(5 * page), page), Some(ShmHandle { offset: 5 * page as u64, ..handle }));
        // Other ranks of a window keep writing to the file.
        let window = window_memory::WindowMemory::new(here(5 * page + 8), 8);
        let refused = take_back(here(5 * page), 1, 0).unwrap_err();
        assert_eq!(refused.text, "some of it is in a window");
        take_back(here(5 * page), 1, 1).unwrap();
        drop(window);
        // Memory that other processes cannot map.
        let own = [0_u8; 10];
        take_back(own.as_ptr(), own.len(), 0).unwrap();
    }

    #[test]
    fn pointer_is_found_up_to_the_end_of_the_last_page() {
        let memory = Memory::new(10_000);
        let whole = find(memory.0, 12_288).unwrap();
        assert_ne!(whole.allocation, 0);
        assert_eq!(whole.offset, 0);
        assert_eq!(find(memory.0.wrapping_add(12_287), 1), Some(ShmHandle { offset: 12_287, ..whole }));
        assert_eq!(find(memory.0, 12_289), None);
        assert_eq!(find(memory.0.wrapping_add(12_287), 2), None);
        assert_eq!(find(memory.0, usize::MAX), None);
        let other = 0_u8;
        assert_eq!(find(&raw const other, 1), None);
        assert_eq!(find(ptr::null(), 0), None);
    }

    #[test]
    fn adjacent_allocations_are_told_apart() {
        // The kernel places mappings next to each other if possible.
        let memories: Vec<Memory> = (0..64).map(|_| Memory::new(4096)).collect();
        let (mut numbers, mut adjacent) = (Vec::new(), 0);
        for memory in &memories {
            let handle = find(memory.0, 4096).unwrap();
            let end = memory.0.wrapping_add(4096);
            assert_eq!(find(end.wrapping_sub(1), 1), Some(ShmHandle { offset: 4095, ..handle }));
            assert_eq!(find(memory.0, 4097), None);
            if let Some(after) = find(end, 1) {
                assert_eq!(after.offset, 0);
                adjacent += 1;
            }
            numbers.push((handle.allocation, handle.file));
        }
        assert!(adjacent > 0, "nothing was tested");
        numbers.sort_unstable();
        numbers.dedup_by_key(|(allocation, _)| *allocation);
        assert_eq!(numbers.len(), 64);
        numbers.sort_unstable_by_key(|(_, file)| *file);
        numbers.dedup_by_key(|(_, file)| *file);
        assert_eq!(numbers.len(), 64);
    }

    #[test]
    fn freed_memory_is_not_found_and_its_number_not_reused() {
        let mut last = 0;
        for _ in 0..10 {
            let memory = Memory::new(4096);
            let handle = find(memory.0, 4096).unwrap();
            assert!(handle.allocation > last);
            last = handle.allocation;
            let start = memory.0;
            drop(memory);
            // Another test may have been given the address since.
            assert!(find(start, 1).is_none_or(|now| now.allocation > last));
        }
    }

    /// Runs in a child process because the limits apply to a whole process.
    #[test]
    fn allocation_beyond_the_process_limits_is_private() {
        const CHILD: &str = "LIBNCCL_TEST_LIMITS";
        if std::env::var_os(CHILD).is_none() {
            let name = "shm::mem_alloc::tests::allocation_beyond_the_process_limits_is_private";
            let mut child = Command::new(std::env::current_exe().unwrap());
            let output = child.args([name, "--exact", "--nocapture"]).env(CHILD, "").output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
            assert!(text.contains("1 passed"), "{text}");
            return;
        }
        let limit = |resource, current| {
            let maximum = getrlimit(resource).maximum;
            setrlimit(resource, Rlimit { current: Some(current), maximum }).unwrap();
        };
        let used = |memory: &Memory| {
            // SAFETY: 4096 bytes, of this test only.
            let bytes = unsafe { std::slice::from_raw_parts_mut(memory.0, 4096) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes.fill(1);
        };
        limit(Resource::Fsize, 8192);
        assert!(find(Memory::new(8192).0, 1).is_some());
        let long = Memory::new(8193);
        assert_eq!(find(long.0, 1), None, "longer than a file may be");
        used(&long);

        limit(Resource::Nofile, 400);
        let memories: Vec<Memory> = (0..400).map(|_| Memory::new(4096)).collect();
        memories.iter().for_each(used);
        let shared = memories.iter().filter(|memory| find(memory.0, 1).is_some()).count();
        assert!((1..=201).contains(&shared), "half of the file descriptors: {shared}");
        std::fs::File::open("/proc/self/exe").expect("file descriptors are left");

        limit(Resource::Nofile, 1);
        std::fs::File::open("/proc/self/exe").expect_err("no file descriptor is left");
        let memory = Memory::new(4096);
        used(&memory);
        assert_eq!(find(memory.0, 1), None);
    }
}
