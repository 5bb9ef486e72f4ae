//! One stretch of mapped memory: private, or shared through an anonymous file that other processes can open.
//!
//! Such a file is in no folder and goes with the last process that has it open or mapped. Its size is sealed, so
//! that nobody can take the memory away under another.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::{OpenOptions, read_link};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

use crate::failure::{Failure, Result};
use crate::process::Process;

/// Memory that this process maps, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to no thread, and nothing here touches its bytes: those who do settle between
// them who may when.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Memory of this process alone, all zero.
    pub(crate) fn private(length: usize) -> Result<Self> {
        // SAFETY: the kernel chooses a place where nothing is mapped.
        let start = unsafe {
            mmap_anonymous(ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        Self::new(start, length)
    }

    /// Memory that others can map, all zero, and the file through which they do.
    pub(crate) fn shared(length: usize) -> Result<(Self, OwnedFd)> {
        let failed = |error| Failure::system("shared memory cannot be created", error);
        // The kernel kills a process that makes a file longer than this.
        if exceeds(length as u64, Resource::Fsize) {
            return Err(failed(Errno::FBIG));
        }
        let file =
            memfd_create("libnccl-cpu", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(failed)?;
        // The kernel gives the lowest free number. Half of what there is stays for the program's other files.
        if exceeds(2 * u64::from(file.as_raw_fd().unsigned_abs()), Resource::Nofile) {
            return Err(failed(Errno::MFILE));
        }
        ftruncate(&file, length as u64).map_err(failed)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(failed)?;
        Ok((Self::file(&file, length)?, file))
    }

    /// The memory that `owner` shares through its file descriptor `file`, whole.
    pub(crate) fn open(owner: &Process, file: u32) -> Result<Self> {
        let pid = owner.pid;
        let ended = || Failure::remote(format!("process {pid} has ended, and its memory with it"));
        let failed = |error: io::Error| match error.kind() {
            _ if owner.ended() => ended(),
            ErrorKind::NotFound => Failure::remote(format!("process {pid} has no file descriptor {file}")),
            _ => Failure::system(&format!("file descriptor {file} of process {pid} cannot be opened"), error),
        };
        let path = format!("/proc/{pid}/fd/{file}");
        let found = read_link(&path).map_err(failed)?;
        let refused = |why: &str| {
            Failure::remote(format!(
                "file descriptor {file} of process {pid} is {}, {why}, and not memory from ncclMemAlloc",
                found.display()
            ))
        };
        // Before opening, which does something to a device, say.
        if !found.as_os_str().as_encoded_bytes().starts_with(b"/memfd:") {
            return Err(refused("no anonymous memory"));
        }
        let opened = OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?;
        // Still the owner: so it was when the file was opened.
        if Process::of(pid).map_err(failed)? != *owner {
            return Err(ended());
        }
        let unexamined = |error| Failure::system("another process's memory cannot be examined", error);
        if !fcntl_get_seals(&opened).map_err(unexamined)?.contains(SealFlags::SHRINK) {
            return Err(refused("which can shrink"));
        }
        match usize::try_from(fstat(&opened).map_err(unexamined)?.st_size) {
            Ok(length) if length > 0 => Self::file(&opened, length),
            _ => Err(refused("which is empty")),
        }
    }

    /// `file` must be sealed against shrinking and have `length` bytes.
    fn file(file: impl AsFd, length: usize) -> Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses a place where nothing is mapped, and the file cannot shrink.
        let start =
            unsafe { mmap(ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0) };
        Self::new(start, length)
    }

    fn new(start: rustix::io::Result<*mut c_void>, length: usize) -> Result<Self> {
        let start = start
            .map_err(|error| Failure::system(&format!("{length} bytes of memory cannot be mapped"), error))?;
        let start = NonNull::new(start.cast()).ok_or_else(|| Failure::internal("mapped at address zero"))?;
        Ok(Self { start, length })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Where `length` bytes at `offset` begin, if there are so many.
    pub(crate) fn part(&self, offset: u64, length: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok()?;
        if length > self.length.checked_sub(offset)? {
            return None;
        }
        NonNull::new(self.start.as_ptr().wrapping_add(offset))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and who drops it no longer uses its bytes.
        let result = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(result.is_ok());
    }
}

fn exceeds(value: u64, resource: Resource) -> bool {
    getrlimit(resource).current.is_some_and(|limit| value > limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    use libnccl::sys::ncclResult_t;

    fn number(file: impl AsFd) -> u32 {
        file.as_fd().as_raw_fd().unsigned_abs()
    }

    fn refusal(file: u32) -> String {
        let failure = Mapping::open(&Process::current().unwrap(), file).unwrap_err();
        assert_eq!(failure.code, ncclResult_t::ncclRemoteError);
        failure.text
    }

    #[test]
    fn two_mappings_of_one_file_see_each_other() {
        let (one, file) = Mapping::shared(8192).unwrap();
        let two = Mapping::open(&Process::current().unwrap(), number(&file)).unwrap();
        let (there, back) = (5000, 8191);
        // SAFETY: inside the mappings, one byte each, and no other thread has them.
        unsafe {
            one.part(there, 1).unwrap().write(7);
            two.part(back, 1).unwrap().write(9);
            assert_eq!(two.part(there, 1).unwrap().read(), 7);
            assert_eq!(one.part(back, 1).unwrap().read(), 9);
        }
        drop((one, file));
        // SAFETY: as above; this mapping needs no other.
        assert_eq!(unsafe { two.part(there, 1).unwrap().read() }, 7);
    }

    #[test]
    fn parts_lie_inside() {
        let (mapping, _file) = Mapping::shared(8192).unwrap();
        assert_eq!(mapping.part(0, 8192), Some(mapping.start()));
        assert_eq!(mapping.part(8191, 1).unwrap().addr().get(), mapping.start().addr().get() + 8191);
        for (offset, length) in [(0, 8193), (8191, 2), (8193, 0), (u64::MAX, 1), (1, usize::MAX)] {
            assert_eq!(mapping.part(offset, length), None, "{offset}+{length}");
        }
    }

    #[test]
    fn the_size_is_sealed_and_the_file_ends_at_exec() {
        let (_mapping, file) = Mapping::shared(8192).unwrap();
        assert_eq!(ftruncate(&file, 4096), Err(Errno::PERM));
        assert!(rustix::io::fcntl_getfd(&file).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let regular = std::fs::File::open("/proc/self/exe").unwrap();
        let program = std::env::current_exe().unwrap();
        let text = refusal(number(&regular));
        assert!(text.contains(&format!(" is {}, no anonymous memory", program.display())), "{text}");

        let (pipe, _other_end) = std::io::pipe().unwrap();
        let text = refusal(number(&pipe));
        assert!(text.contains(" is pipe:["), "{text}");

        let loose = memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&loose, 8192).unwrap();
        let text = refusal(number(&loose));
        assert!(text.contains(" is /memfd:loose (deleted), which can shrink"), "{text}");

        let empty = memfd_create("empty", MemfdFlags::ALLOW_SEALING).unwrap();
        fcntl_add_seals(&empty, SealFlags::SHRINK).unwrap();
        let text = refusal(number(&empty));
        assert!(text.contains("which is empty"), "{text}");

        let text = refusal(i32::MAX as u32);
        assert!(text.ends_with("has no file descriptor 2147483647"), "{text}");
    }

    #[test]
    fn another_process_with_the_number_is_refused() {
        let (_mapping, file) = Mapping::shared(8192).unwrap();
        let current = Process::current().unwrap();
        let before = Process { started: current.started - 1, ..current };
        let failure = Mapping::open(&before, number(&file)).unwrap_err();
        assert_eq!(failure.text, format!("process {} has ended, and its memory with it", current.pid));
    }

    #[test]
    fn an_ended_process_is_refused_before_and_after_it_is_reaped() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id().into()).unwrap();
        let refused = |file| {
            let failure = Mapping::open(&process, file).unwrap_err();
            (failure.code, failure.text.contains("has ended"))
        };
        assert_eq!(refused(1_000), (ncclResult_t::ncclRemoteError, false), "it runs");
        child.kill().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while !process.ended() {
            assert!(std::time::Instant::now() < deadline);
        }
        assert_eq!(refused(0), (ncclResult_t::ncclRemoteError, true));
        child.wait().unwrap();
        assert_eq!(refused(0), (ncclResult_t::ncclRemoteError, true));
    }
}
