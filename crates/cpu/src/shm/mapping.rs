//! Mapped memory, either private or shared through an anonymous file that other processes can open, and checks whether memory is
//! mapped.
//!
//! The files are in no directory, disappear with the last process that has them open or mapped, and are sealed so that no rank
//! can shrink memory that another rank has mapped.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::{OpenOptions, read_dir, read_link};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use libc::{iovec, process_vm_readv};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::{self as rustix_io, Errno};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

use crate::diag::error::{Error, Result};
use crate::shm::process::Process;

fn create_file() -> rustix_io::Result<OwnedFd> {
    memfd_create("libnccl-cpu", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
}

fn is_sealed(file: impl AsFd) -> rustix_io::Result<bool> {
    Ok(fcntl_get_seals(file)?.contains(SealFlags::SHRINK))
}

/// Returns whether this process can read the byte at an address. Only makes system calls, so it is safe in a signal handler.
pub(crate) fn is_own_byte_readable(address: usize) -> bool {
    let mut byte = 0u8;
    let own = iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let other = iovec { iov_base: ptr::without_provenance_mut(address), iov_len: 1 };
    // SAFETY: the kernel writes one byte, to `byte`, and checks the other address.
    unsafe { process_vm_readv(libc::getpid(), &raw const own, 1, &raw const other, 1, 0) == 1 }
}

#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is not bound to a thread, and nothing here accesses its bytes: the users of the bytes synchronize among
// themselves.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn private(length: usize) -> Result<Self> {
        // SAFETY: the kernel chooses an address where nothing is mapped.
        let start = unsafe {
            mmap_anonymous(ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        Self::new(start, length)
    }

    /// Creates zeroed memory that other processes can map, and the file through which they map it.
    pub(crate) fn shared(length: usize) -> Result<(Self, OwnedFd)> {
        let file = create_file().map_err(cannot_create)?;
        Self::fill(file, length)
    }

    /// Creates shared memory if that leaves half of the file descriptors to the program.
    pub(crate) fn shared_within_limits(length: usize) -> Result<(Self, OwnedFd)> {
        let file = create_file().map_err(cannot_create)?;
        // The kernel assigns the lowest free number.
        let number = u64::from(file.as_raw_fd().unsigned_abs());
        if getrlimit(Resource::Nofile).current.is_some_and(|limit| 2 * number > limit) {
            return Err(cannot_create(Errno::MFILE));
        }
        Self::fill(file, length)
    }

    fn fill(file: OwnedFd, length: usize) -> Result<(Self, OwnedFd)> {
        // The kernel kills a process that extends a file beyond this limit.
        if let Some(limit) = getrlimit(Resource::Fsize).current.filter(|limit| length as u64 > *limit) {
            return Err(Error::system(
                &format!(
                    "{length} bytes of shared memory exceed the limit of {limit} for a file (ulimit -f)"
                ),
                Errno::FBIG,
            ));
        }
        ftruncate(&file, length as u64).map_err(cannot_create)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(cannot_create)?;
        Ok((Self::map(&file, length)?, file))
    }

    /// Maps the memory that another rank created and sent as `file`, which must have `length` bytes.
    pub(crate) fn received(file: impl AsFd, length: usize) -> Result<Self> {
        let failed = |error| Error::system("shared memory cannot be examined", error);
        let size = fstat(&file).map_err(failed)?.st_size;
        if size as usize != length || !is_sealed(&file).map_err(failed)? {
            return Err(Error::remote(format!(
                "another rank sent an invalid shared memory file: {size} bytes, expected {length}, sealed"
            )));
        }
        Self::map(file, length)
    }

    /// Maps all of the memory that `owner` shares through its file descriptor `file`.
    pub(crate) fn open(owner: &Process, file: u32) -> Result<Self> {
        let pid = owner.pid;
        let ended = || Error::remote(format!("process {pid} has ended, and its memory with it"));
        let failed = |error: io::Error| match error.kind() {
            _ if owner.ended() => ended(),
            ErrorKind::NotFound => Error::remote(format!("process {pid} has no file descriptor {file}")),
            _ => Error::system(&format!("file descriptor {file} of process {pid} cannot be opened"), error),
        };
        let (path, found) = find_file(pid, file).map_err(failed)?;
        let refused = |why: &str| {
            Error::remote(format!(
                "file descriptor {file} of process {pid} is {}, {why}, and not memory from ncclMemAlloc",
                found.display()
            ))
        };
        // Checked before opening, because opening a device has side effects.
        if !found.as_os_str().as_encoded_bytes().starts_with(b"/memfd:") {
            return Err(refused("not anonymous memory"));
        }
        let opened = OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?;
        // The process is still the owner, so it also was when the file was opened.
        if Process::from_pid(pid).map_err(failed)? != *owner {
            return Err(ended());
        }
        let failed = |error| Error::system("another process's memory cannot be examined", error);
        if !is_sealed(&opened).map_err(failed)? {
            return Err(refused("which can shrink"));
        }
        match usize::try_from(fstat(&opened).map_err(failed)?.st_size) {
            Ok(length) if length > 0 => Self::map(&opened, length),
            _ => Err(refused("which is empty")),
        }
    }

    /// Maps `file`, which must be sealed and have `length` bytes.
    fn map(file: impl AsFd, length: usize) -> Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses an address where nothing is mapped, and the file cannot shrink.
        let start =
            unsafe { mmap(ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0) };
        Self::new(start, length)
    }

    /// Remaps a page-aligned `range` of this mapping, which maps `file` from its start, as copy-on-write. Until its first write,
    /// a page still belongs to the file; see [`copy_pages`](Self::copy_pages).
    pub(crate) fn make_private(&self, file: impl AsFd, range: Range<usize>) -> rustix::io::Result<()> {
        let (start, flags) =
            (self.start.as_ptr().wrapping_add(range.start), MapFlags::PRIVATE | MapFlags::FIXED);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        debug_assert!(range.end <= self.length);
        // SAFETY: the range is part of this mapping, and is mapped to the same bytes of the same file. The kernel replaces it
        // atomically, so threads that use the memory concurrently observe it before or after.
        unsafe { mmap(start.cast(), range.len(), access, flags, file, range.start as u64) }.map(drop)
    }

    /// Copies the pages of a [private](Self::make_private) `range`, as a write to each would. Pages that have already been copied
    /// remain unchanged.
    pub(crate) fn copy_pages(&self, range: Range<usize>) -> rustix::io::Result<()> {
        let start = self.start.as_ptr().wrapping_add(range.start);
        debug_assert!(range.end <= self.length);
        // SAFETY: the range is part of this mapping. The kernel changes none of its bytes.
        unsafe { madvise(start.cast(), range.len(), Advice::LinuxPopulateWrite) }
    }

    fn new(start: rustix::io::Result<*mut c_void>, length: usize) -> Result<Self> {
        REMOVED.load(Acquire);
        let start = start
            .map_err(|error| Error::system(&format!("{length} bytes of memory cannot be mapped"), error))?;
        let start = NonNull::new(start.cast()).ok_or_else(|| Error::internal("mapped at address zero"))?;
        Ok(Self { start, length })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Returns the address of the `length` bytes at `offset`, or `None` if they are out of bounds.
    pub(crate) fn range(&self, offset: u64, length: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok()?;
        if length > self.length.checked_sub(offset)? {
            return None;
        }
        NonNull::new(self.start.as_ptr().wrapping_add(offset))
    }
}

/// The number of mappings that were removed. The kernel orders an access to a mapping before the creation of the next one at the same
/// address; this counter makes that order visible to `ThreadSanitizer`, which does not see the system calls.
static REMOVED: AtomicUsize = AtomicUsize::new(0);

impl Drop for Mapping {
    fn drop(&mut self) {
        REMOVED.fetch_add(1, Release);
        // SAFETY: this value owns the mapping, and its owner no longer uses the bytes.
        let result = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(result.is_ok());
    }
}

/// Returns the `/proc` path of file descriptor `file` of process `pid`, and its target.
fn find_file(pid: u64, file: u32) -> io::Result<(PathBuf, PathBuf)> {
    let look = |folder: PathBuf| {
        let path = folder.join(format!("fd/{file}"));
        read_link(&path).map(|found| (path, found))
    };
    match look(format!("/proc/{pid}").into()) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // This directory belongs to the first thread, and is empty once that thread has exited. The other threads share the
            // same files.
            let mut threads = read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            threads.find_map(|thread| look(thread.path()).ok()).ok_or(error)
        }
        found => found,
    }
}

fn cannot_create(error: Errno) -> Error {
    Error::system("shared memory cannot be created", error)
}

/// Returns the offset of the first unmapped byte among the `length` bytes at `start`, if any.
pub(crate) fn first_unmapped(start: usize, length: usize) -> Option<usize> {
    const PAGES: usize = 256;
    let page = rustix::param::page_size();
    let is_unmapped = |at: usize, pages: usize| {
        let mut resident = [0u8; PAGES];
        // SAFETY: the kernel writes a byte for each page, and reads no memory of the process.
        let result =
            unsafe { libc::mincore(ptr::without_provenance_mut(at), pages * page, resident.as_mut_ptr()) };
        result != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM)
    };
    let end = start.saturating_add(length);
    let mut at = start - start % page;
    while at < end {
        let pages = (end - at).div_ceil(page).min(PAGES);
        if is_unmapped(at, pages) {
            let first = (0..pages).map(|index| at + index * page).find(|at| is_unmapped(*at, 1));
            return first.map(|at| at.saturating_sub(start));
        }
        at = at.saturating_add(pages * page);
    }
    None
}

#[cfg(test)]
#[path = "../../tests/unit/mapping.rs"]
mod tests;
