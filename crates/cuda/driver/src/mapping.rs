//! Memory from the kernel.

#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::CUresult;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::error::Result;
use crate::fault::Listed;

/// Pages of this process, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Pages {
    address: usize,
    length: usize,
}

impl Pages {
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

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: these pages are nobody else's, and whoever uses them holds the `Mapping`.
        let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(self.address), self.length) };
    }
}

/// Pages without access, whose address programs see.
#[derive(Debug)]
pub(crate) struct DevicePages {
    pages: Pages,
    listed: OnceLock<Listed>,
}

impl DevicePages {
    fn new(length: usize) -> Result<Arc<Self>> {
        let pages = Pages::anonymous(length, ProtFlags::empty())?;
        Ok(Arc::new(Self { pages, listed: OnceLock::new() }))
    }

    /// Returns whether an address is in them.
    pub(crate) fn contain(&self, address: u64) -> bool {
        let Pages { address: start, length } = self.pages;
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
    const PAGE: usize = 4096;

    fn round_up(length: usize) -> Result<usize> {
        let rounded = length.max(1).checked_next_multiple_of(Self::PAGE);
        rounded.filter(|&length| length < isize::MAX as usize).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Creates memory that programs cannot touch.
    pub(crate) fn device(length: usize) -> Result<Self> {
        let length = Self::round_up(length)?;
        let bytes = Pages::anonymous(length, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Self { bytes, device: Some(DevicePages::new(length)?) })
    }

    /// Creates memory that programs can use as well.
    pub(crate) fn host(length: usize) -> Result<Self> {
        let bytes = Pages::anonymous(Self::round_up(length)?, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Self { bytes, device: None })
    }

    /// Creates memory that programs cannot touch out of a memory file.
    pub(crate) fn shared(file: BorrowedFd<'_>, length: usize) -> Result<Self> {
        let length = Self::round_up(length)?;
        let bytes = Pages::file(file, length)?;
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
