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

use crate::error::Result;
use crate::fault::Listed;

#[derive(Debug)]
struct Mapped {
    address: usize,
    length: usize,
    /// The offset in [`DEVICE_MEMORY`], if it is mapped from there.
    offset: Option<u64>,
}

impl Mapped {
    fn anonymous(length: usize, protection: ProtFlags) -> Result<Self> {
        Self::anonymous_near(0, length, protection, MapFlags::PRIVATE)
    }

    /// Maps memory at an address, or elsewhere if the address is in use.
    fn anonymous_near(
        address: usize,
        length: usize,
        protection: ProtFlags,
        sharing: MapFlags,
    ) -> Result<Self> {
        let near = ptr::without_provenance_mut(address);
        // SAFETY: without a fixed address, no memory in use is mapped over.
        let mapped = unsafe { mmap_anonymous(near, length, protection, sharing | MapFlags::NORESERVE) };
        let mapped = mapped.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Self { address: mapped.expose_provenance(), length, offset: None })
    }

    /// Reserves inaccessible addresses at a multiple of `alignment`, a power of two.
    fn aligned(near: usize, length: usize, alignment: usize) -> Result<Self> {
        let none = |near, length| Self::anonymous_near(near, length, ProtFlags::empty(), MapFlags::PRIVATE);
        let mapped = none(near, length)?;
        if mapped.address.is_multiple_of(alignment) {
            return Ok(mapped);
        }
        drop(mapped);
        let room = length.checked_add(alignment).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let whole = ManuallyDrop::new(none(0, room)?);
        let address = whole.address.next_multiple_of(alignment);
        let before = address - whole.address;
        let part = |address, length| Self { address, length, offset: None };
        drop(part(whole.address, before));
        drop(part(address + length, room - before - length));
        Ok(part(address, length))
    }

    fn file(file: BorrowedFd<'_>, length: usize) -> Result<Self> {
        Self::part_of_file(file, 0, length)
    }

    fn part_of_file(file: BorrowedFd<'_>, offset: u64, length: usize) -> Result<Self> {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: without a fixed address, no memory in use is mapped over.
        let mapped = unsafe { mmap(ptr::null_mut(), length, protection, flags, file, offset) };
        let mapped = mapped.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Self { address: mapped.expose_provenance(), length, offset: None })
    }

    /// Maps memory that other processes can map too, unless the file size limit prohibits it.
    fn device(length: usize) -> Result<Self> {
        let take = |taken: u64| taken.checked_add(length as u64).filter(|&end| end <= LENGTH_OF_FILE);
        let place = DEVICE_MEMORY.file().zip(DEVICE_MEMORY.taken.fetch_update(Relaxed, Relaxed, take).ok());
        let Some((file, offset)) = place else {
            return Self::anonymous(length, ProtFlags::READ | ProtFlags::WRITE);
        };
        let mut mapped = Self::part_of_file(file.as_fd(), offset, length)?;
        mapped.offset = Some(offset);
        Ok(mapped)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: these pages are nobody else's, and whoever uses them holds the `Mapping`.
        let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(self.address), self.length) };
    }
}

/// Pages of a mapping, which they keep alive. They are not reused before it is unmapped.
#[derive(Debug)]
struct Pages {
    address: usize,
    length: usize,
    mapped: Arc<Mapped>,
}

impl Pages {
    fn all(mapped: Mapped) -> Self {
        Self { address: mapped.address, length: mapped.length, mapped: Arc::new(mapped) }
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
        // SAFETY: these pages are nobody else's, and whoever uses them holds the `Mapping`.
        let _ = unsafe { madvise(ptr::with_exposed_provenance_mut(self.address), self.length, advice) };
    }
}

/// One file with the bytes of all devices, each part of which is used once. A file per allocation could
/// exhaust the file descriptors.
#[derive(Debug)]
struct DeviceMemory {
    file: OnceLock<Option<OwnedFd>>,
    taken: AtomicU64,
}

static DEVICE_MEMORY: DeviceMemory = DeviceMemory { file: OnceLock::new(), taken: AtomicU64::new(0) };

/// Large enough to be never used up. Only pages in use take memory.
const LENGTH_OF_FILE: u64 = 1 << 46;

impl DeviceMemory {
    fn file(&self) -> Option<&OwnedFd> {
        let create = || {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: a variable that can be written.
            unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
            if limit.rlim_cur < LENGTH_OF_FILE {
                return None;
            }
            let file =
                memfd_create("libnccl-cuda memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).ok()?;
            ftruncate(&file, LENGTH_OF_FILE).ok()?;
            fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).ok()?;
            Some(file)
        };
        self.file.get_or_init(create).as_ref()
    }
}

/// The location of device memory for other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exported {
    pub(crate) process: u32,
    pub(crate) file: u32,
    /// Tells the file from a later one with the same descriptor.
    pub(crate) inode: u64,
    pub(crate) offset: u64,
}

/// A lock on another process's memory, which shows the owner that the memory is open here. The kernel
/// releases it when this process exits.
#[derive(Debug)]
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
/// There is no guard page between allocations: each operation checks its range. The addresses that programs
/// see are inaccessible, and not reused while the mapping exists.
#[derive(Debug)]
struct Source {
    map: fn(usize) -> Result<Mapped>,
    /// The current shared mapping, and the number of its bytes in use.
    shared: Mutex<Option<(Arc<Mapped>, usize)>>,
}

impl Source {
    const SHARED: usize = 16 << 20;

    const fn new(map: fn(usize) -> Result<Mapped>) -> Self {
        Self { map, shared: Mutex::new(None) }
    }

    fn pages(&self, length: usize) -> Result<Pages> {
        const MOST: usize = 1 << 20;
        if length > MOST {
            return (self.map)(length).map(Pages::all);
        }
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let (mapped, taken) = match shared.take() {
            Some((mapped, taken)) if length <= mapped.length - taken => (mapped, taken),
            _ => (Arc::new((self.map)(Self::SHARED)?), 0),
        };
        let pages = Pages { address: mapped.address + taken, length, mapped: Arc::clone(&mapped) };
        *shared = Some((mapped, taken + length));
        Ok(pages)
    }
}

static BYTES: Source = Source::new(Mapped::device);

static ADDRESSES: Source = Source::new(|length| Mapped::anonymous(length, ProtFlags::empty()));

/// Inaccessible pages, whose addresses are device pointers.
#[derive(Debug)]
pub(crate) struct DevicePages {
    pages: Pages,
    listed: OnceLock<Listed>,
}

impl DevicePages {
    fn new(length: usize) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { pages: ADDRESSES.pages(length)?, listed: OnceLock::new() }))
    }

    pub(crate) fn contain(&self, address: u64) -> bool {
        let Pages { address: start, length, .. } = self.pages;
        (start as u64..start as u64 + length as u64).contains(&address)
    }

    pub(crate) fn list(&self, length: usize, allocation: u64, device: usize) {
        self.listed.get_or_init(|| Listed::new(self.pages.address, length, allocation, device));
    }

    pub(crate) fn free(&self) {
        self.listed.get().inspect(|listed| listed.free());
    }
}

/// Memory without an address, which can be mapped any number of times.
#[derive(Debug)]
pub(crate) struct Physical {
    bytes: Mapped,
    /// The file, if other processes can have the memory.
    file: Option<OwnedFd>,
}

impl Physical {
    const NAME: &str = "libnccl-cuda device ";

    pub(crate) fn new(device: usize, length: usize, is_shared: bool) -> Result<Self> {
        let file = if is_shared { Self::file(device, length)? } else { None };
        let bytes = match &file {
            Some(file) => Mapped::file(file.as_fd(), length)?,
            None => Mapped::anonymous_near(0, length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)?,
        };
        Ok(Self { bytes, file })
    }

    /// Creates a file unless half of the file descriptors are in use, because the program needs some too.
    fn file(device: usize, length: usize) -> Result<Option<OwnedFd>> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let Ok(file) = memfd_create(format!("{}{device}", Self::NAME), flags) else { return Ok(None) };
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a variable that can be written.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
        if u64::from(file.as_raw_fd().unsigned_abs()) >= limit.rlim_cur / 2 {
            return Ok(None);
        }
        // Nobody can take pages away from under another.
        let sealed = ftruncate(&file, length as u64)
            .and_then(|()| fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
        sealed.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Some(file))
    }

    /// Opens a file that this library made in any process. Returns its device and length too.
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
        let bytes = Mapped::file(file.as_fd(), length)?;
        Ok((Self { bytes, file: Some(file) }, device, length))
    }

    pub(crate) fn share(&self) -> Result<Option<OwnedFd>> {
        let share = |file: &OwnedFd| file.try_clone().map_err(|_| CUDA_ERROR_OUT_OF_MEMORY);
        self.file.as_ref().map(share).transpose()
    }
}

/// Addresses reserved by a program, and as many at which this process accesses what is mapped there, so that
/// adjacent mappings are adjacent for operations too.
#[derive(Debug)]
pub(crate) struct Reservation {
    addresses: Arc<DevicePages>,
    aliases: Arc<Mapped>,
}

impl Reservation {
    pub(crate) fn new(near: usize, length: usize, alignment: usize) -> Result<Self> {
        let length = Mapping::round_up(length)?;
        let pages = Pages::all(Mapped::aligned(near, length, alignment)?);
        let aliases = Arc::new(Mapped::anonymous(length, ProtFlags::empty())?);
        Ok(Self { addresses: Arc::new(DevicePages { pages, listed: OnceLock::new() }), aliases })
    }

    pub(crate) fn range(&self) -> Range<u64> {
        let Pages { address, length, .. } = self.addresses.pages;
        address as u64..(address + length) as u64
    }

    pub(crate) fn pages(&self) -> &Arc<DevicePages> {
        &self.addresses
    }

    /// Maps the first bytes of memory at an unmapped offset.
    pub(crate) fn map(&self, offset: usize, length: usize, memory: &Physical) -> Result<Mapping> {
        let part = |mapped: &Arc<Mapped>| Pages {
            address: mapped.address + offset,
            length,
            mapped: Arc::clone(mapped),
        };
        let (bytes, pages) = (part(&self.aliases), part(&self.addresses.pages.mapped));
        let pointer = ptr::with_exposed_provenance_mut;
        // Of length 0, so that it stays where it is as well.
        // SAFETY: both are mappings of this library, and nothing uses the pages of the reservation.
        let mapped = unsafe {
            mremap_fixed(
                pointer(memory.bytes.address),
                0,
                length,
                MremapFlags::MAYMOVE,
                pointer(bytes.address),
            )
        };
        mapped.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Mapping { bytes, device: Some(Arc::new(DevicePages { pages, listed: OnceLock::new() })) })
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
#[derive(Debug)]
pub(crate) struct Mapping {
    bytes: Pages,
    /// Inaccessible pages at the program's address, unless the program can access the memory.
    device: Option<Arc<DevicePages>>,
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
        let bytes = Mapped::anonymous(Self::round_up(length)?, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Self { bytes: Pages::all(bytes), device: None })
    }

    pub(crate) fn shared(file: BorrowedFd<'_>, length: usize) -> Result<Self> {
        let length = Self::round_up(length)?;
        let bytes = Pages::all(Mapped::file(file, length)?);
        Ok(Self { bytes, device: Some(DevicePages::new(length)?) })
    }

    pub(crate) fn export(&self) -> Option<Exported> {
        let offset = self.bytes.mapped.offset? + (self.bytes.address - self.bytes.mapped.address) as u64;
        let file = DEVICE_MEMORY.file()?;
        let inode = fstat(file).ok()?.st_ino;
        // A page that is there tells an importer that the memory has not been freed: now it is, as it is read.
        // SAFETY: a byte of a mapping that can be read, which other threads may write meanwhile.
        let _ = unsafe { ptr::with_exposed_provenance::<u8>(self.bytes.address).read_volatile() };
        Some(Exported { process: std::process::id(), file: file.as_raw_fd().unsigned_abs(), inode, offset })
    }

    pub(crate) fn is_imported(&self) -> bool {
        let (Some(offset), Some(file)) = (self.bytes.mapped.offset, DEVICE_MEMORY.file()) else {
            return false;
        };
        let offset = offset + (self.bytes.address - self.bytes.mapped.address) as u64;
        let mut lock = lock(libc::F_WRLCK, offset);
        // SAFETY: an open file, and a struct that the call reads and fills.
        let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
        asked == 0 && lock.l_type != libc::F_UNLCK as libc::c_short
    }

    /// Maps memory of another process of the same user. Returns its file too.
    pub(crate) fn import(from: &Exported, length: usize) -> Result<(Self, OwnedFd)> {
        const GONE: CUresult = CUDA_ERROR_MAP_FAILED;
        let path = format!("/proc/{}/fd/{}", from.process, from.file);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = open(path, flags, Mode::empty()).map_err(|_| GONE)?;
        let is_it = fstat(&file)
            .is_ok_and(|found| found.st_ino == from.inode && found.st_size as u64 == LENGTH_OF_FILE);
        if !is_it || seek(&file, SeekFrom::Data(from.offset)) != Ok(from.offset) {
            return Err(GONE);
        }
        let length = Self::round_up(length)?;
        let end = from.offset.checked_add(length as u64).filter(|&end| end <= LENGTH_OF_FILE);
        end.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let bytes = Pages::all(Mapped::part_of_file(file.as_fd(), from.offset, length)?);
        Ok((Self { bytes, device: Some(DevicePages::new(length)?) }, file))
    }

    pub(crate) fn address(&self) -> usize {
        self.device.as_ref().map_or(&self.bytes, |device| &device.pages).address
    }

    pub(crate) fn device_pages(&self) -> Option<&Arc<DevicePages>> {
        self.device.as_ref()
    }

    pub(crate) fn alias(&self) -> usize {
        self.bytes.address
    }
}
