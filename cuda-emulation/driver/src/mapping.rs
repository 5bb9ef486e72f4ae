//! Memory from the kernel.

#![allow(unsafe_code)]

use std::fs;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::sys::CUresult;
use cudarc::driver::sys::CUresult::*;
use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, SeekFrom, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create, open, seek,
};
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mremap_fixed, munmap,
};
use rustix::param::page_size;

use crate::error::{Result, ensure};
use crate::fault::Listed;

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const MEMFD: MemfdFlags = MemfdFlags::CLOEXEC.union(MemfdFlags::ALLOW_SEALING);

struct Mapped {
    address: usize,
    length: usize,
    /// The offset in [`device_file`], if the memory is mapped from that file.
    offset: Option<u64>,
}

impl Mapped {
    /// Maps memory at an address, or elsewhere if the address is in use.
    fn anonymous(near: usize, length: usize, protection: ProtFlags, sharing: MapFlags) -> Result<Self> {
        let near = ptr::without_provenance_mut(near);
        // SAFETY: without a fixed address, no memory in use is mapped over.
        let mapped = unsafe { mmap_anonymous(near, length, protection, sharing | MapFlags::NORESERVE) };
        let address = mapped.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?.expose_provenance();
        Ok(Self { address, length, offset: None })
    }

    fn private(length: usize) -> Result<Self> {
        Self::anonymous(0, length, READ_WRITE, MapFlags::PRIVATE)
    }

    fn reserve(near: usize, length: usize) -> Result<Self> {
        Self::anonymous(near, length, ProtFlags::empty(), MapFlags::PRIVATE)
    }

    /// Reserves inaccessible addresses at a multiple of `alignment`, a power of two.
    fn aligned(near: usize, length: usize, alignment: usize) -> Result<Self> {
        let mapped = Self::reserve(near, length)?;
        if mapped.address.is_multiple_of(alignment) {
            return Ok(mapped);
        }
        drop(mapped);
        let room = length.checked_add(alignment).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let whole = ManuallyDrop::new(Self::reserve(0, room)?);
        let address = whole.address.next_multiple_of(alignment);
        let before = address - whole.address;
        let part = |address, length| Self { address, length, offset: None };
        drop(part(whole.address, before));
        drop(part(address + length, room - before - length));
        Ok(part(address, length))
    }

    fn file(file: BorrowedFd<'_>, offset: u64, length: usize) -> Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: without a fixed address, no memory in use is mapped over.
        let mapped = unsafe { mmap(ptr::null_mut(), length, READ_WRITE, flags, file, offset) };
        let address = mapped.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?.expose_provenance();
        Ok(Self { address, length, offset: None })
    }

    /// Maps memory that other processes can map too, unless the file size limit prohibits it.
    fn device(length: usize) -> Result<Self> {
        static TAKEN: AtomicU64 = AtomicU64::new(0);
        let take = |taken: u64| taken.checked_add(length as u64).filter(|&end| end <= LENGTH_OF_FILE);
        let place = device_file().zip(TAKEN.fetch_update(Relaxed, Relaxed, take).ok());
        let Some((file, offset)) = place else { return Self::private(length) };
        let mut mapped = Self::file(file.as_fd(), offset, length)?;
        mapped.offset = Some(offset);
        Ok(mapped)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nothing else has these pages, and their users hold the `Mapping`.
        let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(self.address), self.length) };
    }
}

/// Pages of a mapping. They keep the mapping alive, and are not reused before it is unmapped.
struct Pages {
    address: usize,
    length: usize,
    mapped: Arc<Mapped>,
}

impl Pages {
    fn of(mapped: &Arc<Mapped>, offset: usize, length: usize) -> Self {
        Self { address: mapped.address + offset, length, mapped: Arc::clone(mapped) }
    }

    fn all(mapped: Mapped) -> Self {
        let length = mapped.length;
        Self::of(&Arc::new(mapped), 0, length)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let advice = match self.mapped.offset {
            // The file stays.
            Some(_) => Advice::LinuxRemove,
            None if self.length < self.mapped.length => Advice::LinuxDontNeed,
            None => return,
        };
        // SAFETY: nothing else has these pages, and their users hold the `Mapping`.
        let _ = unsafe { madvise(ptr::with_exposed_provenance_mut(self.address), self.length, advice) };
    }
}

/// The length of the file in bytes, large enough never to be used up. Only pages in use take memory.
const LENGTH_OF_FILE: u64 = 1 << 46;

/// Returns the file with the memory of all devices. Each part of the file is used only once. A file for each allocation could
/// exhaust the file descriptors.
fn device_file() -> Option<&'static OwnedFd> {
    static FILE: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let create = || {
        if limit(libc::RLIMIT_FSIZE) < LENGTH_OF_FILE {
            return None;
        }
        let file = memfd_create("libnccl-cuda memory", MEMFD).ok()?;
        set_length(&file, LENGTH_OF_FILE).ok()?;
        Some(file)
    };
    FILE.get_or_init(create).as_ref()
}

fn limit(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a variable that can be written.
    unsafe { libc::getrlimit(resource, &raw mut limit) };
    limit.rlim_cur
}

/// Sets the final length of a file, so that no process can remove pages that another one has mapped.
fn set_length(file: &OwnedFd, length: u64) -> rustix::io::Result<()> {
    ftruncate(file, length)?;
    fcntl_add_seals(file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exported {
    pub(crate) process: u32,
    pub(crate) file: u32,
    /// Distinguishes the file from a later one with the same descriptor.
    pub(crate) inode: u64,
    pub(crate) offset: u64,
}

/// A lock on another process's memory, which shows the owner that the memory is open here. The kernel releases it when this
/// process exits.
pub(crate) struct ImportLock {
    file: OwnedFd,
    offset: u64,
}

impl ImportLock {
    pub(crate) fn new(file: OwnedFd, place: &Exported) -> Self {
        let lock = Self { file, offset: place.offset };
        lock.set(libc::F_RDLCK);
        lock
    }

    fn set(&self, kind: i32) {
        let lock = lock(kind, self.offset);
        // If it fails, a free of the memory is not found.
        // SAFETY: an open file, and a struct that the call reads.
        let _ = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    }
}

impl Drop for ImportLock {
    /// Also runs in a forked child, which inherits the descriptor.
    fn drop(&mut self) {
        self.set(libc::F_UNLCK);
    }
}

fn lock(kind: i32, offset: u64) -> libc::flock {
    // SAFETY: a struct of numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = offset as libc::off_t;
    lock.l_len = 1;
    lock
}

/// A source of pages. Small allocations share a mapping, because a process can only have 65,530 mappings.
///
/// There is no guard page between allocations: each operation checks its range. The addresses that programs see are inaccessible,
/// and not reused while the mapping exists.
struct Source {
    map: fn(usize) -> Result<Mapped>,
    /// The current shared mapping, and the number of its bytes in use.
    shared: Mutex<Option<(Arc<Mapped>, usize)>>,
}

impl Source {
    const fn new(map: fn(usize) -> Result<Mapped>) -> Self {
        Self { map, shared: Mutex::new(None) }
    }

    fn pages(&self, length: usize) -> Result<Pages> {
        const SHARED: usize = 16 << 20;
        const MOST: usize = 1 << 20;
        if length > MOST {
            return (self.map)(length).map(Pages::all);
        }
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let (mapped, taken) = match shared.take() {
            Some((mapped, taken)) if length <= mapped.length - taken => (mapped, taken),
            _ => (Arc::new((self.map)(SHARED)?), 0),
        };
        let pages = Pages::of(&mapped, taken, length);
        *shared = Some((mapped, taken + length));
        Ok(pages)
    }
}

static BYTES: Source = Source::new(Mapped::device);
static ADDRESSES: Source = Source::new(|length| Mapped::reserve(0, length));

/// Inaccessible pages, whose addresses are device pointers.
pub(crate) struct DevicePages {
    pages: Pages,
    listed: OnceLock<Option<Listed>>,
}

impl DevicePages {
    fn of(pages: Pages) -> Arc<Self> {
        Arc::new(Self { pages, listed: OnceLock::new() })
    }

    fn new(length: usize) -> Result<Arc<Self>> {
        ADDRESSES.pages(length).map(Self::of)
    }

    pub(crate) fn range(&self) -> Range<u64> {
        let Pages { address, length, .. } = self.pages;
        address as u64..(address + length) as u64
    }

    pub(crate) fn list(&self, length: usize, allocation: u64, device: usize) {
        self.listed.get_or_init(|| Listed::new(self.pages.address, length, allocation, device));
    }

    pub(crate) fn free(&self) {
        self.listed.get().and_then(Option::as_ref).inspect(|listed| listed.free());
    }
}

/// Memory without an address, which can be mapped any number of times.
pub(crate) struct Physical {
    bytes: Mapped,
    file: Option<OwnedFd>,
}

impl Physical {
    const NAME: &str = "libnccl-cuda device ";

    pub(crate) fn new(device: usize, length: usize, is_shared: bool) -> Result<Self> {
        let file = if is_shared { Self::create_file(device, length)? } else { None };
        let bytes = match &file {
            Some(file) => Mapped::file(file.as_fd(), 0, length)?,
            None => Mapped::anonymous(0, length, READ_WRITE, MapFlags::SHARED)?,
        };
        Ok(Self { bytes, file })
    }

    /// Creates a file unless half of the file descriptors are in use, because the program needs some too.
    fn create_file(device: usize, length: usize) -> Result<Option<OwnedFd>> {
        let Ok(file) = memfd_create(format!("{}{device}", Self::NAME), MEMFD) else { return Ok(None) };
        if u64::from(file.as_raw_fd().unsigned_abs()) >= limit(libc::RLIMIT_NOFILE) / 2 {
            return Ok(None);
        }
        set_length(&file, length as u64).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Some(file))
    }

    /// Opens a file that this library created in any process. Also returns the device and the length.
    pub(crate) fn of_file(file: BorrowedFd<'_>) -> Result<(Self, usize, usize)> {
        let find = || {
            let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
            let name = name.to_str()?.strip_prefix("/memfd:")?.strip_prefix(Self::NAME)?;
            let device = name.strip_suffix(" (deleted)")?.parse().ok()?;
            let is_sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
            let length = usize::try_from(fstat(file).ok()?.st_size).ok()?;
            (is_sealed && length > 0).then_some((device, length))
        };
        let (device, length) = find().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let file = file.try_clone_to_owned().map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok((Self { bytes: Mapped::file(file.as_fd(), 0, length)?, file: Some(file) }, device, length))
    }

    pub(crate) fn share(&self) -> Result<Option<OwnedFd>> {
        self.file.as_ref().map(OwnedFd::try_clone).transpose().map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)
    }
}

/// Addresses reserved by a program, and an equally long range at which this process accesses the mapped memory, so that adjacent
/// mappings are also adjacent for operations.
pub(crate) struct Reservation {
    pub(crate) addresses: Arc<DevicePages>,
    aliases: Arc<Mapped>,
}

impl Reservation {
    pub(crate) fn new(near: usize, length: usize, alignment: usize) -> Result<Self> {
        let length = Mapping::round_up(length)?;
        let addresses = DevicePages::of(Pages::all(Mapped::aligned(near, length, alignment)?));
        Ok(Self { addresses, aliases: Arc::new(Mapped::reserve(0, length)?) })
    }

    pub(crate) fn map(&self, offset: usize, length: usize, memory: &Physical) -> Result<Mapping> {
        let bytes = Pages::of(&self.aliases, offset, length);
        let pages = Pages::of(&self.addresses.pages.mapped, offset, length);
        let [from, to] = [memory.bytes.address, bytes.address].map(ptr::with_exposed_provenance_mut);
        // The old length 0 keeps the memory mapped at its old address too.
        // SAFETY: both are mappings of this library, and nothing uses the pages of the reservation.
        let mapped = unsafe { mremap_fixed(from, 0, length, MremapFlags::MAYMOVE, to) };
        mapped.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Mapping { bytes, device: Some(DevicePages::of(pages)) })
    }

    pub(crate) fn unmap(&self, offset: usize, length: usize) -> Result<()> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let place = ptr::with_exposed_provenance_mut(self.aliases.address + offset);
        // SAFETY: pages of the reservation, and the caller says that nothing uses them.
        let unmapped = unsafe { mmap_anonymous(place, length, ProtFlags::empty(), flags) };
        unmapped.map(|_| ()).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)
    }
}

/// Memory with an address for programs and one for this process's accesses.
pub(crate) struct Mapping {
    bytes: Pages,
    /// Inaccessible pages at the program's address, unless the program can access the memory.
    pub(crate) device: Option<Arc<DevicePages>>,
}

impl Mapping {
    fn round_up(length: usize) -> Result<usize> {
        let rounded = length.max(1).checked_next_multiple_of(page_size());
        rounded.filter(|&length| length < isize::MAX as usize).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
    }

    pub(crate) fn device(length: usize) -> Result<Self> {
        let length = Self::round_up(length)?;
        Ok(Self { bytes: BYTES.pages(length)?, device: Some(DevicePages::new(length)?) })
    }

    pub(crate) fn host(length: usize) -> Result<Self> {
        Ok(Self { bytes: Pages::all(Mapped::private(Self::round_up(length)?)?), device: None })
    }

    /// Creates memory from a file. It is inaccessible at the address that programs see.
    pub(crate) fn shared(file: BorrowedFd<'_>, length: usize) -> Result<Self> {
        let length = Self::round_up(length)?;
        Ok(Self {
            bytes: Pages::all(Mapped::file(file, 0, length)?),
            device: Some(DevicePages::new(length)?),
        })
    }

    fn offset(&self) -> Option<u64> {
        let Pages { address, mapped, .. } = &self.bytes;
        Some(mapped.offset? + (address - mapped.address) as u64)
    }

    pub(crate) fn export(&self) -> Option<Exported> {
        let (offset, file) = (self.offset()?, device_file()?);
        let inode = fstat(file).ok()?.st_ino;
        // An importer recognizes freed memory by its missing page. The read makes the page exist.
        // SAFETY: a byte of a mapping that can be read, which other threads may write meanwhile.
        let _ = unsafe { ptr::with_exposed_provenance::<u8>(self.bytes.address).read_volatile() };
        Some(Exported { process: std::process::id(), file: file.as_raw_fd().unsigned_abs(), inode, offset })
    }

    pub(crate) fn is_imported(&self) -> bool {
        let (Some(offset), Some(file)) = (self.offset(), device_file()) else { return false };
        let mut lock = lock(libc::F_WRLCK, offset);
        // SAFETY: an open file, and a struct that the call reads and fills.
        let status = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
        status == 0 && lock.l_type != libc::F_UNLCK as libc::c_short
    }

    /// Maps memory of another process of the same user. Returns its file too.
    pub(crate) fn import(from: &Exported, length: usize) -> Result<(Self, OwnedFd)> {
        const GONE: CUresult = CUDA_ERROR_MAP_FAILED;
        let path = format!("/proc/{}/fd/{}", from.process, from.file);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = open(path, flags, Mode::empty()).map_err(|_| GONE)?;
        let is_it = fstat(&file)
            .is_ok_and(|found| found.st_ino == from.inode && found.st_size as u64 == LENGTH_OF_FILE);
        ensure(is_it && seek(&file, SeekFrom::Data(from.offset)) == Ok(from.offset), GONE)?;
        let length = Self::round_up(length)?;
        let end = from.offset.checked_add(length as u64);
        ensure(end.is_some_and(|end| end <= LENGTH_OF_FILE), CUDA_ERROR_INVALID_VALUE)?;
        let bytes = Pages::all(Mapped::file(file.as_fd(), from.offset, length)?);
        Ok((Self { bytes, device: Some(DevicePages::new(length)?) }, file))
    }

    /// Returns the address that programs see.
    pub(crate) fn address(&self) -> usize {
        self.device.as_ref().map_or(&self.bytes, |device| &device.pages).address
    }

    /// Returns the address at which this process accesses the bytes.
    pub(crate) fn alias(&self) -> usize {
        self.bytes.address
    }
}
