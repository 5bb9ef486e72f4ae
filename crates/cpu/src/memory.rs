//! Memory from `ncclMemAlloc`: whole pages, all zero, which other processes of the host can map.
//!
//! So collectives on it need no copies between processes. Who may not look into this process's `/proc` entry,
//! such as another user's process, cannot map it.
//!
//! A process that forks shares the memory with its child, as it does not share its other memory: what either
//! writes, the other reads. It is freed when the one that allocated it frees it.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use rustix::fs::{FallocateFlags, fallocate};

use crate::debug::{self, Subsystem};
use crate::failure::{Failure, Result};
use crate::mapping::Mapping;

/// A multiple of this is a size in pages; where they are larger, the kernel rounds further.
const PAGE: usize = 4096;

#[derive(Debug)]
struct Allocation {
    number: u64,
    mapping: Mapping,
    /// None where the memory could only be private. Open for as long as the memory is there: through it others
    /// find it.
    file: Option<OwnedFd>,
    /// The process that allocated it, which a child of it is not.
    process: u32,
}

/// The allocations, by address.
static ALLOCATIONS: RwLock<BTreeMap<usize, Allocation>> = RwLock::new(BTreeMap::new());

/// Where in a process's allocations some memory lies, in words that other processes understand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Never 0, and never given twice in a process.
    pub(crate) allocation: u64,
    /// The descriptor's number in the owner.
    pub(crate) file: u32,
    pub(crate) offset: u64,
}

pub(crate) fn allocate(size: usize) -> Result<*mut c_void> {
    if size == 0 {
        return Ok(ptr::null_mut());
    }
    // A size that overflows is too large for the kernel as it is.
    let size = size.checked_next_multiple_of(PAGE).unwrap_or(size);
    // First without a file: the kernel refuses private memory that the host does not have, but a file of any
    // size, and then kills who uses it.
    let private = Mapping::private(size)?;
    let (mapping, file) = match Mapping::shared(size) {
        Ok((mapping, file)) => (mapping, Some(file)),
        // Most likely out of file descriptors, which memory must not fail for: it is only slower.
        Err(failure) => {
            debug::info(Subsystem::Allocation, || {
                format!(
                    "{size} bytes at {:p} are not shared with other processes: {}",
                    private.start(),
                    failure.text
                )
            });
            (private, None)
        }
    };
    let memory = mapping.start();
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    allocations()
        .insert(memory.addr().get(), Allocation { number, mapping, file, process: std::process::id() });
    Ok(memory.as_ptr().cast())
}

/// Frees what [`allocate`] returned.
///
/// # Safety
///
/// Nobody in this process uses the memory any more.
pub(crate) unsafe fn free(memory: *mut c_void) -> Result {
    if memory.is_null() {
        return Ok(());
    }
    let allocation = allocations()
        .remove(&memory.addr())
        .ok_or_else(|| Failure::argument(format!("{memory:p} is not from ncclMemAlloc, or was freed")))?;
    // Other processes keep the memory mapped, but its pages are free at once.
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

/// The place of `length` bytes at `start`, if they lie in one shared allocation of this process.
pub(crate) fn locate(start: *const u8, length: usize) -> Option<Place> {
    let allocations = ALLOCATIONS.read().unwrap_or_else(PoisonError::into_inner);
    let (first, Allocation { number, mapping, file, .. }) = allocations.range(..=start.addr()).next_back()?;
    let (file, offset) = (file.as_ref()?, (start.addr() - first) as u64);
    mapping.part(offset, length)?;
    Some(Place { allocation: *number, file: file.as_raw_fd().unsigned_abs(), offset })
}

fn allocations() -> RwLockWriteGuard<'static, BTreeMap<usize, Allocation>> {
    ALLOCATIONS.write().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use crate::process::Process;

    /// Memory that is freed at the end.
    struct Memory(*mut u8);

    impl Memory {
        fn new(size: usize) -> Self {
            Self(allocate(size).unwrap().cast())
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: only this test has it.
            unsafe { free(self.0.cast()) }.unwrap();
        }
    }

    #[test]
    fn others_see_what_the_owner_writes() {
        let memory = Memory::new(10_000);
        let place = locate(memory.0.wrapping_add(9_000), 1_000).unwrap();
        assert_eq!(place.offset, 9_000);
        let mapping = Mapping::open(&Process::current().unwrap(), place.file).unwrap();
        // SAFETY: 10000 bytes, which only this test has.
        unsafe { memory.0.add(9_999).write(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { mapping.part(place.offset, 1_000).unwrap().add(999).read() }, 7);
    }

    #[test]
    fn what_is_freed_is_free_although_others_map_it() {
        let memory = Memory::new(10_000);
        let place = locate(memory.0, 10_000).unwrap();
        let mapping = Mapping::open(&Process::current().unwrap(), place.file).unwrap();
        let there = mapping.part(place.offset, 10_000).unwrap();
        // SAFETY: 10000 bytes, which only this test has.
        unsafe { memory.0.add(9_999).write(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { there.add(9_999).read() }, 7);
        drop(memory);
        // SAFETY: as above; `mapping` keeps the file's size, and its pages are zero again.
        assert_eq!(unsafe { there.add(9_999).read() }, 0);
    }

    #[test]
    fn pointers_are_located_up_to_the_last_page() {
        let memory = Memory::new(10_000);
        let whole = locate(memory.0, 12_288).unwrap();
        assert_ne!(whole.allocation, 0);
        assert_eq!(whole.offset, 0);
        assert_eq!(locate(memory.0.wrapping_add(12_287), 1), Some(Place { offset: 12_287, ..whole }));
        assert_eq!(locate(memory.0, 12_289), None);
        assert_eq!(locate(memory.0.wrapping_add(12_287), 2), None);
        assert_eq!(locate(memory.0, usize::MAX), None);
        let other = 0_u8;
        assert_eq!(locate(&raw const other, 1), None);
        assert_eq!(locate(ptr::null(), 0), None);
    }

    #[test]
    fn adjacent_allocations_are_not_confused() {
        // The kernel places mappings side by side where it can.
        let memories: Vec<Memory> = (0..64).map(|_| Memory::new(4096)).collect();
        let (mut numbers, mut adjacent) = (Vec::new(), 0);
        for memory in &memories {
            let place = locate(memory.0, 4096).unwrap();
            let end = memory.0.wrapping_add(4096);
            assert_eq!(locate(end.wrapping_sub(1), 1), Some(Place { offset: 4095, ..place }));
            assert_eq!(locate(memory.0, 4097), None);
            if let Some(after) = locate(end, 1) {
                assert_eq!(after.offset, 0);
                adjacent += 1;
            }
            numbers.push((place.allocation, place.file));
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
    fn what_was_freed_is_not_located_and_its_number_not_given_again() {
        let mut last = 0;
        for _ in 0..10 {
            let memory = Memory::new(4096);
            let place = locate(memory.0, 4096).unwrap();
            assert!(place.allocation > last);
            last = place.allocation;
            let start = memory.0;
            drop(memory);
            // Another test may have got the address since.
            assert!(locate(start, 1).is_none_or(|now| now.allocation > last));
        }
    }

    /// In a process of its own, as the limits are the process's: this program, told to be one by its environment.
    #[test]
    fn memory_that_cannot_be_shared_is_private() {
        const TOLD: &str = "LIBNCCL_TEST_LIMITS";
        if std::env::var_os(TOLD).is_none() {
            let name = "memory::tests::memory_that_cannot_be_shared_is_private";
            let mut child = Command::new(std::env::current_exe().unwrap());
            let output = child.args([name, "--exact", "--nocapture"]).env(TOLD, "").output().unwrap();
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
            // SAFETY: 4096 bytes, which only this test has.
            let bytes = unsafe { std::slice::from_raw_parts_mut(memory.0, 4096) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes.fill(1);
        };
        limit(Resource::Fsize, 8192);
        assert!(locate(Memory::new(8192).0, 1).is_some());
        let long = Memory::new(8193);
        assert_eq!(locate(long.0, 1), None, "longer than a file may be");
        used(&long);

        limit(Resource::Nofile, 400);
        let memories: Vec<Memory> = (0..400).map(|_| Memory::new(4096)).collect();
        memories.iter().for_each(used);
        let shared = memories.iter().filter(|memory| locate(memory.0, 1).is_some()).count();
        assert!((1..=201).contains(&shared), "half of the file descriptors: {shared}");
        std::fs::File::open("/proc/self/exe").expect("file descriptors are left");

        limit(Resource::Nofile, 1);
        std::fs::File::open("/proc/self/exe").expect_err("no file descriptor is left");
        let memory = Memory::new(4096);
        used(&memory);
        assert_eq!(locate(memory.0, 1), None);
    }
}
