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

/// A mapping of this process, unmapped when dropped.
#[derive(Debug)]
struct Mapped {
    address: usize,
    length: usize,
    /// Its offset in the file of [`DEVICE_MEMORY`], if it is a part of that.
    offset: Option<u64>,
}

impl Mapped {
    fn anonymous(length: usize, protection: ProtFlags) -> Result<Self> {
        Self::anonymous_near(0, length, protection, MapFlags::PRIVATE)
    }

    /// Maps memory at an address, or elsewhere if that is in use.
    fn anonymous_near(
        address: usize,
        length: usize,
        protection: ProtFlags,
        sharing: MapFlags,
    ) -> Result<Self> {
        let near = ptr::without_provenance_mut(address);
        // SAFETY: without a fixed address, no memory in use is mapped over.
        let mapped = unsafe { mmap_anonymous(near, length, protection, sharing | MapFlags::NORESERVE) };
        let mapped = mapped.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Self { address: mapped.expose_provenance(), length, offset: None })
    }

    /// Maps addresses without access that begin at a multiple of `alignment`, a power of two.
    fn aligned(near: usize, length: usize, alignment: usize) -> Result<Self> {
        let none = |near, length| Self::anonymous_near(near, length, ProtFlags::empty(), MapFlags::PRIVATE);
        let mapped = none(near, length)?;
        if mapped.address.is_multiple_of(alignment) {
            return Ok(mapped);
        }
        drop(mapped);
        let room = length.checked_add(alignment).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
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
        let mapped = mapped.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Self { address: mapped.expose_provenance(), length, offset: None })
    }

    /// Maps memory of a device, which other processes can map too, unless the process may have no file of its size.
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

/// Pages of a mapping, which lives as long as these do. Nothing else gets them before it is unmapped.
#[derive(Debug)]
struct Pages {
    address: usize,
    length: usize,
    mapped: Arc<Mapped>,
}

impl Pages {
    /// Takes all of a mapping.
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

/// The file of the bytes of all devices, of which each part is used once: as a file of its own for each allocation, a
/// program could run out of file descriptors.
#[derive(Debug)]
struct DeviceMemory {
    file: OnceLock<Option<OwnedFd>>,
    /// The number of bytes that were taken.
    taken: AtomicU64,
}

static DEVICE_MEMORY: DeviceMemory = DeviceMemory { file: OnceLock::new(), taken: AtomicU64::new(0) };

/// So long that it is never used up. Only what is in use takes memory.
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

/// Memory of a device, as another process finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exported {
    /// The process that has it.
    pub(crate) process: u32,
    /// The descriptor of the file there.
    pub(crate) file: u32,
    /// The file's number, by which it is known from later ones.
    pub(crate) inode: u64,
    /// The offset in the file.
    pub(crate) offset: u64,
}

/// A lock on memory of another process, by which that process finds out that the memory is open here. The kernel releases it when
/// this process ends.
#[derive(Debug)]
pub(crate) struct ImportLock {
    file: OwnedFd,
    offset: u64,
}

impl ImportLock {
    /// Locks memory in its file, which has no other locks.
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
    /// Also of a forked child, which has the descriptor.
    fn drop(&mut self) {
        self.set(libc::F_UNLCK);
    }
}

/// Describes a lock on the first byte of exported memory.
fn lock(kind: i32, offset: u64) -> libc::flock {
    // SAFETY: a struct of numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = offset as libc::off_t;
    lock.l_len = 1;
    lock
}

/// A source of pages: few of them come out of a mapping that they share, as a process may have 65,530 mappings.
///
/// So bytes have others beside them, and no page without access: it is the check of each operation's range that keeps them
/// apart. Addresses are still without access, and none is used twice as long as the mapping is there.
#[derive(Debug)]
struct Source {
    map: fn(usize) -> Result<Mapped>,
    /// The mapping that they come out of, and the number of its bytes that are taken.
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

/// The bytes of device memory.
static BYTES: Source = Source::new(Mapped::device);

/// The addresses of device memory that programs see.
static ADDRESSES: Source = Source::new(|length| Mapped::anonymous(length, ProtFlags::empty()));

/// Pages without access, whose address programs see.
#[derive(Debug)]
pub(crate) struct DevicePages {
    pages: Pages,
    listed: OnceLock<Listed>,
}

impl DevicePages {
    fn new(length: usize) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { pages: ADDRESSES.pages(length)?, listed: OnceLock::new() }))
    }

    /// Returns whether an address is in them.
    pub(crate) fn contain(&self, address: u64) -> bool {
        let Pages { address: start, length, .. } = self.pages;
        (start as u64..start as u64 + length as u64).contains(&address)
    }

    /// Lists them for reports of faults, as an allocation of a device.
    pub(crate) fn list(&self, length: usize, allocation: u64, device: usize) {
        self.listed.get_or_init(|| Listed::new(self.pages.address, length, allocation, device));
    }

    /// Notes that their memory is freed.
    pub(crate) fn free(&self) {
        self.listed.get().inspect(|listed| listed.free());
    }
}

/// The bytes of memory that has no address for programs, and can get any number of them.
#[derive(Debug)]
pub(crate) struct Physical {
    bytes: Mapped,
    /// The file by which other processes can have it.
    file: Option<OwnedFd>,
}

impl Physical {
    /// The start of the name of a file of device memory; the number of the device follows.
    const NAME: &str = "libnccl-cuda device ";

    /// Creates memory of a device, in a file if other processes are to have it.
    pub(crate) fn new(device: usize, length: usize, is_shared: bool) -> Result<Self> {
        let file = if is_shared { Self::file(device, length)? } else { None };
        let bytes = match &file {
            Some(file) => Mapped::file(file.as_fd(), length)?,
            None => Mapped::anonymous_near(0, length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)?,
        };
        Ok(Self { bytes, file })
    }

    /// Creates a file, unless half of the file descriptors are in use: the program needs some for itself.
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
        sealed.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Some(file))
    }

    /// Takes the memory in a file that this library made, in whatever process; returns its device and its length with it.
    pub(crate) fn of_file(file: BorrowedFd<'_>) -> Result<(Self, usize, usize)> {
        let find = || {
            let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
            let name = name.to_str()?.strip_prefix("/memfd:")?.strip_prefix(Self::NAME)?;
            let device = name.strip_suffix(" (deleted)")?.parse().ok()?;
            let is_sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
            let length = usize::try_from(fstat(file).ok()?.st_size).ok()?;
            (is_sealed && length > 0).then_some((device, length))
        };
        let (device, length) = find().ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let file = file.try_clone_to_owned().map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let bytes = Mapped::file(file.as_fd(), length)?;
        Ok((Self { bytes, file: Some(file) }, device, length))
    }

    /// Returns a new descriptor of its file, or nothing if it has none.
    pub(crate) fn share(&self) -> Result<Option<OwnedFd>> {
        let share = |file: &OwnedFd| file.try_clone().map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        self.file.as_ref().map(share).transpose()
    }
}

/// Addresses that a program has reserved, and as many others at which this process uses what is mapped there: what is side
/// by side for the program is so for the operations too.
#[derive(Debug)]
pub(crate) struct Reservation {
    addresses: Arc<DevicePages>,
    aliases: Arc<Mapped>,
}

impl Reservation {
    /// Reserves addresses that begin at a multiple of a power of two, at a certain one if they are free there.
    pub(crate) fn new(near: usize, length: usize, alignment: usize) -> Result<Self> {
        let length = Mapping::round_up(length)?;
        let pages = Pages::all(Mapped::aligned(near, length, alignment)?);
        let aliases = Arc::new(Mapped::anonymous(length, ProtFlags::empty())?);
        Ok(Self { addresses: Arc::new(DevicePages { pages, listed: OnceLock::new() }), aliases })
    }

    /// The addresses.
    pub(crate) fn range(&self) -> Range<u64> {
        let Pages { address, length, .. } = self.addresses.pages;
        address as u64..(address + length) as u64
    }

    /// The pages of the addresses.
    pub(crate) fn pages(&self) -> &Arc<DevicePages> {
        &self.addresses
    }

    /// Maps the first bytes of memory at an offset, where nothing is mapped.
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
        mapped.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Mapping { bytes, device: Some(Arc::new(DevicePages { pages, listed: OnceLock::new() })) })
    }

    /// Takes away what is mapped at an offset, which nothing uses.
    pub(crate) fn unmap(&self, offset: usize, length: usize) -> Result<()> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let place = ptr::with_exposed_provenance_mut(self.aliases.address + offset);
        // SAFETY: pages of the reservation, and the caller says that nothing uses them.
        let unmapped = unsafe { mmap_anonymous(place, length, ProtFlags::empty(), flags) };
        unmapped.map(|_| ()).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }
}

/// Memory that has an address for programs, and one at which its bytes can be used.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// The bytes.
    bytes: Pages,
    /// The pages without access whose address programs see, unless they see that of the bytes.
    device: Option<Arc<DevicePages>>,
}

impl Mapping {
    fn round_up(length: usize) -> Result<usize> {
        let rounded = length.max(1).checked_next_multiple_of(page_size());
        rounded.filter(|&length| length < isize::MAX as usize).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Creates memory that programs cannot touch.
    pub(crate) fn device(length: usize) -> Result<Self> {
        let length = Self::round_up(length)?;
        Ok(Self { bytes: BYTES.pages(length)?, device: Some(DevicePages::new(length)?) })
    }

    /// Creates memory that programs can use as well.
    pub(crate) fn host(length: usize) -> Result<Self> {
        let bytes = Mapped::anonymous(Self::round_up(length)?, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Self { bytes: Pages::all(bytes), device: None })
    }

    /// Creates memory that programs cannot touch out of a memory file.
    pub(crate) fn shared(file: BorrowedFd<'_>, length: usize) -> Result<Self> {
        let length = Self::round_up(length)?;
        let bytes = Pages::all(Mapped::file(file, length)?);
        Ok(Self { bytes, device: Some(DevicePages::new(length)?) })
    }

    /// Returns what another process needs to map it, or nothing if it cannot.
    pub(crate) fn export(&self) -> Option<Exported> {
        let offset = self.bytes.mapped.offset? + (self.bytes.address - self.bytes.mapped.address) as u64;
        let file = DEVICE_MEMORY.file()?;
        let inode = fstat(file).ok()?.st_ino;
        // A page that is there tells an importer that the memory has not been freed: now it is, as it is read.
        // SAFETY: a byte of a mapping that can be read, which other threads may write meanwhile.
        let _ = unsafe { ptr::with_exposed_provenance::<u8>(self.bytes.address).read_volatile() };
        Some(Exported { process: std::process::id(), file: file.as_raw_fd().unsigned_abs(), inode, offset })
    }

    /// Returns whether another process holds an [`ImportLock`] on it.
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

    /// Maps memory of another process, whose user is the same. Returns its file too.
    pub(crate) fn import(from: &Exported, length: usize) -> Result<(Self, OwnedFd)> {
        const GONE: CUresult = CUresult::CUDA_ERROR_MAP_FAILED;
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
        end.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let bytes = Pages::all(Mapped::part_of_file(file.as_fd(), from.offset, length)?);
        Ok((Self { bytes, device: Some(DevicePages::new(length)?) }, file))
    }

    /// The address that programs see.
    pub(crate) fn address(&self) -> usize {
        self.device.as_ref().map_or(&self.bytes, |device| &device.pages).address
    }

    /// The pages whose address programs see, if they cannot touch the memory.
    pub(crate) fn device_pages(&self) -> Option<&Arc<DevicePages>> {
        self.device.as_ref()
    }

    /// The address of the bytes.
    pub(crate) fn alias(&self) -> usize {
        self.bytes.address
    }
}
