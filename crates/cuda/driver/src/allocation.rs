//! Memory that CUDA knows: of devices, pinned, and managed.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys::CUresult;

use crate::error::Result;
use crate::handle::{ContextId, PoolId};
use crate::mapping::{DevicePages, Mapping};
use crate::message;

/// The kind of memory: its place, and those that can use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Memory of a device.
    Device,
    /// Page-locked host memory that CUDA allocated.
    Pinned,
    /// Host memory of the program, page-locked.
    Registered,
    /// Memory that devices and the host share.
    Managed,
}

impl Kind {
    /// Words for messages.
    pub(crate) fn memory(self) -> &'static str {
        match self {
            Self::Device => "device memory",
            Self::Pinned => "pinned host memory",
            Self::Registered => "registered host memory",
            Self::Managed => "managed memory",
        }
    }
}

/// An allocation.
#[derive(Debug)]
pub(crate) struct Allocation {
    /// Its number, never used twice.
    pub(crate) id: u64,
    /// Its kind.
    pub(crate) kind: Kind,
    /// The device of its context.
    pub(crate) device: usize,
    /// The context in which it was made.
    pub(crate) context: ContextId,
    /// The pool that it is from, if its allocation was an operation of a stream.
    pub(crate) pool: Option<PoolId>,
    /// The flags that it was made with.
    pub(crate) flags: u32,
    /// The address that programs see.
    pub(crate) address: u64,
    /// The number of bytes.
    pub(crate) length: usize,
    /// Its memory, unless that is the program's.
    pub(crate) mapping: Option<Mapping>,
}

impl Allocation {
    /// The address at which this process can use the byte at an offset.
    pub(crate) fn alias(&self, offset: usize) -> usize {
        self.mapping.as_ref().map_or(self.address as usize, Mapping::alias) + offset
    }

    /// The addresses that programs see.
    pub(crate) fn addresses(&self) -> Range<u64> {
        self.address..self.address + self.length as u64
    }

    /// The number of bytes that it takes on its device.
    fn length_on_device(&self) -> usize {
        if matches!(self.kind, Kind::Device | Kind::Managed) { self.length } else { 0 }
    }

    /// Words for messages.
    pub(crate) fn description(&self) -> String {
        let Self { id, length, device, .. } = self;
        match self.kind {
            Kind::Device => format!("allocation {id}, {length} bytes of device {device}"),
            kind => format!("allocation {id}, {length} bytes of {}", kind.memory()),
        }
    }
}

/// A part of an allocation, which lives as long as this does.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    /// The allocation.
    pub(crate) allocation: Arc<Allocation>,
    /// The offset of the part in it.
    pub(crate) offset: usize,
}

/// All allocations, by address.
#[derive(Debug)]
pub(crate) struct Allocations {
    by_address: BTreeMap<u64, Arc<Allocation>>,
    /// The addresses of the device memory that was freed last, which nothing else gets meanwhile.
    freed: VecDeque<Arc<DevicePages>>,
    /// The number of bytes that each device has.
    pub(crate) total: usize,
    /// The number of bytes in use on each device.
    used: BTreeMap<usize, usize>,
    /// True once it was said that a device has no room.
    has_said: bool,
    last: u64,
}

impl Allocations {
    /// Creates an empty list, for devices of so many bytes.
    pub(crate) fn new(total: usize) -> Self {
        let (by_address, freed, used) = (BTreeMap::new(), VecDeque::new(), BTreeMap::new());
        Self { by_address, freed, total, used, has_said: false, last: 0 }
    }

    /// Checks that a device has room for so many bytes.
    pub(crate) fn check_room(&mut self, device: usize, length: usize) -> Result<()> {
        let free = self.free(device);
        if length <= free {
            return Ok(());
        }
        if !std::mem::replace(&mut self.has_said, true) {
            let total = self.total;
            message::write(&format!(
                "libnccl: device {device} has no room for {length} bytes: {free} of {total} are free; \
                 LIBNCCL_CPU_DEVICE_MEMORY=BYTES gives each device of this process more\n"
            ));
        }
        Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Returns a number for a new allocation.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Adds an allocation, whose addresses must be free.
    pub(crate) fn insert(&mut self, allocation: Allocation) -> Arc<Allocation> {
        if let Some(pages) = allocation.mapping.as_ref().and_then(Mapping::device_pages) {
            pages.list(allocation.length, allocation.id, allocation.device);
        }
        let allocation = Arc::new(allocation);
        *self.used.entry(allocation.device).or_default() += allocation.length_on_device();
        self.by_address.insert(allocation.address, Arc::clone(&allocation));
        allocation
    }

    /// Finds the allocation that an address is in.
    pub(crate) fn containing(&self, address: u64) -> Option<&Arc<Allocation>> {
        let (_, allocation) = self.by_address.range(..=address).next_back()?;
        (address < allocation.addresses().end || address == allocation.address).then_some(allocation)
    }

    /// Returns whether a range of addresses touches an allocation.
    pub(crate) fn overlaps(&self, address: u64, length: usize) -> bool {
        let end = address.saturating_add(length as u64);
        self.by_address.range(..end).next_back().is_some_and(|(_, last)| last.addresses().end > address)
    }

    /// All that are not freed.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Allocation>> {
        self.by_address.values()
    }

    /// Finds the allocation that begins at an address.
    pub(crate) fn at(&self, address: u64) -> Option<&Arc<Allocation>> {
        self.by_address.get(&address)
    }

    /// Returns whether an allocation has not been freed.
    pub(crate) fn has(&self, allocation: &Arc<Allocation>) -> bool {
        self.at(allocation.address).is_some_and(|own| Arc::ptr_eq(own, allocation))
    }

    /// Finds the part that a range of addresses is, or nothing if CUDA does not know the first address.
    ///
    /// Device memory that was freed lately is an error.
    pub(crate) fn part(&self, address: u64, length: usize) -> Result<Option<Part>> {
        let Some(allocation) = self.containing(address) else {
            let was_freed = self.freed.iter().any(|pages| pages.contain(address));
            return if was_freed { Err(CUresult::CUDA_ERROR_INVALID_VALUE) } else { Ok(None) };
        };
        let offset = (address - allocation.address) as usize;
        if length > allocation.length - offset {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        Ok(Some(Part { allocation: Arc::clone(allocation), offset }))
    }

    /// Finds the part that a range of aliases is.
    pub(crate) fn part_of_alias(&self, alias: u64, length: usize) -> Option<Part> {
        self.by_address.values().find_map(|allocation| {
            let offset = (alias as usize).checked_sub(allocation.alias(0))?;
            let is_inside = offset.checked_add(length)? <= allocation.length;
            is_inside.then(|| Part { allocation: Arc::clone(allocation), offset })
        })
    }

    /// Removes the allocation that begins at an address.
    pub(crate) fn remove(&mut self, address: u64) -> Option<Arc<Allocation>> {
        let removed = self.by_address.remove(&address)?;
        self.keep_addresses(&removed);
        Some(removed)
    }

    /// Notes that an allocation is gone, whose addresses are kept for a while.
    fn keep_addresses(&mut self, removed: &Allocation) {
        const KEPT: usize = 1024;
        *self.used.entry(removed.device).or_default() -= removed.length_on_device();
        let pages = removed.mapping.as_ref().and_then(Mapping::device_pages);
        self.freed.extend(pages.inspect(|pages| pages.free()).map(Arc::clone));
        if self.freed.len() > KEPT {
            self.freed.pop_front();
        }
    }

    /// Removes the allocations of a context.
    pub(crate) fn remove_context(&mut self, context: ContextId) -> Vec<Arc<Allocation>> {
        let (removed, kept) = std::mem::take(&mut self.by_address)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(_, allocation)| allocation.context == context);
        self.by_address = kept;
        for allocation in removed.values() {
            self.keep_addresses(allocation);
        }
        removed.into_values().collect()
    }

    /// The number of bytes that are free on a device.
    pub(crate) fn free(&self, device: usize) -> usize {
        self.total.saturating_sub(self.used.get(&device).copied().unwrap_or(0))
    }
}
