//! Memory from the kernel.

#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::sys::CUresult;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;

use crate::error::Result;
use crate::fault::Listed;

/// A mapping of this process, unmapped when dropped.
#[derive(Debug)]
struct Mapped {
    address: usize,
    length: usize,
}

impl Mapped {
    fn anonymous(length: usize, protection: ProtFlags) -> Result<Self> {
        // SAFETY: without a fixed address, no memory in use is mapped over.
        let mapped = unsafe {
            mmap_anonymous(ptr::null_mut(), length, protection, MapFlags::PRIVATE | MapFlags::NORESERVE)
        };
        let mapped = mapped.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Self { address: mapped.expose_provenance(), length })
    }

    fn file(file: BorrowedFd<'_>, length: usize) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without a fixed address, no memory in use is mapped over.
        let mapped = unsafe { mmap(ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0) };
        let mapped = mapped.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Self { address: mapped.expose_provenance(), length })
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
        if self.length < self.mapped.length {
            // SAFETY: these pages are nobody else's, and whoever uses them holds the `Mapping`.
            let _ = unsafe {
                madvise(ptr::with_exposed_provenance_mut(self.address), self.length, Advice::LinuxDontNeed)
            };
        }
    }
}

/// A source of pages: few of them come out of a mapping that they share, as a process may have 65,530 mappings.
///
/// So bytes have others beside them, and no page without access: it is the check of each operation's range that keeps them
/// apart. Addresses are still without access, and none is used twice as long as the mapping is there.
#[derive(Debug)]
struct Source {
    protection: ProtFlags,
    /// The mapping that they come out of, and the number of its bytes that are taken.
    shared: Mutex<Option<(Arc<Mapped>, usize)>>,
}

impl Source {
    const SHARED: usize = 16 << 20;

    const fn new(protection: ProtFlags) -> Self {
        Self { protection, shared: Mutex::new(None) }
    }

    fn pages(&self, length: usize) -> Result<Pages> {
        const MOST: usize = 1 << 20;
        if length > MOST {
            return Mapped::anonymous(length, self.protection).map(Pages::all);
        }
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let (mapped, taken) = match shared.take() {
            Some((mapped, taken)) if length <= mapped.length - taken => (mapped, taken),
            _ => (Arc::new(Mapped::anonymous(Self::SHARED, self.protection)?), 0),
        };
        let pages = Pages { address: mapped.address + taken, length, mapped: Arc::clone(&mapped) };
        *shared = Some((mapped, taken + length));
        Ok(pages)
    }
}

/// The bytes of device memory.
static BYTES: Source = Source::new(ProtFlags::READ.union(ProtFlags::WRITE));

/// The addresses of device memory that programs see.
static ADDRESSES: Source = Source::new(ProtFlags::empty());

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
