//! Memory that CUDA knows: of devices, pinned, and managed.

use std::collections::{BTreeMap, VecDeque};
use std::iter;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys::CUresult;

use crate::error::Result;
use crate::handle::{BackingId, ContextId, PoolId};
use crate::mapping::{DevicePages, Exported, Mapping, Reservation};
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

/// An allocation, or memory that is mapped at addresses that were reserved.
#[derive(Debug)]
pub(crate) struct Allocation {
    /// Its number, never used twice; the same at all addresses where the same memory is mapped.
    pub(crate) id: u64,
    /// Its kind.
    pub(crate) kind: Kind,
    /// The device of its context.
    pub(crate) device: usize,
    /// The context in which it was made; none for what is mapped.
    pub(crate) context: ContextId,
    /// The memory that is mapped, if it was.
    pub(crate) backing: Option<BackingId>,
    /// True if it is another process's.
    pub(crate) is_imported: bool,
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
        let is_on_device =
            matches!(self.kind, Kind::Device | Kind::Managed) && self.backing.is_none() && !self.is_imported;
        if is_on_device { self.length } else { 0 }
    }

    /// Returns what another process needs to map it, or nothing if it cannot.
    pub(crate) fn export(&self) -> Option<Exported> {
        let is_own = self.kind == Kind::Device && self.pool.is_none() && !self.is_imported;
        self.mapping.as_ref().filter(|_| is_own)?.export()
    }

    /// Returns whether another process has opened it.
    pub(crate) fn is_open_elsewhere(&self) -> bool {
        let is_own = self.kind == Kind::Device && !self.is_imported;
        self.mapping.as_ref().filter(|_| is_own).is_some_and(Mapping::is_imported)
    }

    /// Returns whether another one lies behind this in the same reservation, or in one that continues it.
    fn is_continued_by(&self, next: &Self) -> bool {
        let are_mapped = self.backing.is_some() && next.backing.is_some();
        are_mapped && next.address == self.addresses().end && next.alias(0) == self.alias(self.length)
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
    /// The memory that is mapped directly behind it, as far as the part goes on there.
    pub(crate) following: Vec<Arc<Allocation>>,
}

impl Part {
    /// A part that ends in its allocation.
    pub(crate) fn of(allocation: &Arc<Allocation>, offset: usize) -> Self {
        Self { allocation: Arc::clone(allocation), offset, following: Vec::new() }
    }
}

/// The use that a device may make of memory that is mapped, as a number of CUDA: none, to read, or to write too.
pub(crate) type Permission = u32;

/// All allocations, by address.
#[derive(Debug)]
pub(crate) struct Allocations {
    by_address: BTreeMap<u64, Arc<Allocation>>,
    /// The addresses of the device memory that was freed last, which nothing else gets meanwhile.
    freed: VecDeque<Arc<DevicePages>>,
    /// The addresses that programs have reserved, by the first.
    pub(crate) reservations: BTreeMap<u64, Reservation>,
    /// The use that devices may make of the memory that is mapped at an address.
    pub(crate) permissions: BTreeMap<u64, BTreeMap<usize, Permission>>,
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
        Self {
            by_address: BTreeMap::new(),
            freed: VecDeque::new(),
            reservations: BTreeMap::new(),
            permissions: BTreeMap::new(),
            total,
            used: BTreeMap::new(),
            has_said: false,
            last: 0,
        }
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
        self.take(allocation.device, allocation.length_on_device());
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
            let is_empty = self.reservation(address).is_some();
            return if was_freed || is_empty { Err(CUresult::CUDA_ERROR_INVALID_VALUE) } else { Ok(None) };
        };
        let mut part = Part::of(allocation, (address - allocation.address) as usize);
        let (mut last, mut room) = (allocation, allocation.length - part.offset);
        while length > room {
            let next = self.at(last.addresses().end).filter(|next| last.is_continued_by(next));
            last = next.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
            room += last.length;
            part.following.push(Arc::clone(last));
        }
        Ok(Some(part))
    }

    /// Finds the reservation that an address is in.
    pub(crate) fn reservation(&self, address: u64) -> Option<&Reservation> {
        let (_, reservation) = self.reservations.range(..=address).next_back()?;
        reservation.range().contains(&address).then_some(reservation)
    }

    /// Finds what is mapped in a range of addresses, which must begin with the first and end with the last of it.
    pub(crate) fn mapped(&self, address: u64, length: usize) -> Result<Vec<Arc<Allocation>>> {
        let end = address.checked_add(length as u64).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let first = self.at(address).filter(|first| first.backing.is_some());
        let next = |last: &&Arc<Allocation>| {
            let next = self.at(last.addresses().end)?;
            last.is_continued_by(next).then_some(next)
        };
        let all = iter::successors(first, next).take_while(|one| one.address < end);
        let all = all.map(Arc::clone).collect::<Vec<_>>();
        let is_whole = all.last().is_some_and(|last| last.addresses().end == end);
        is_whole.then_some(all).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// Gives back the addresses of a reservation, which are kept for a while.
    pub(crate) fn free_reservation(&mut self, address: u64) {
        if let Some(reservation) = self.reservations.remove(&address) {
            self.keep(reservation.pages());
        }
    }

    /// Finds the part that a range of aliases is.
    pub(crate) fn part_of_alias(&self, alias: u64, length: usize) -> Option<Part> {
        let address = self.by_address.values().find_map(|allocation| {
            let offset = (alias as usize).checked_sub(allocation.alias(0))?;
            (offset < allocation.length).then(|| allocation.address + offset as u64)
        });
        self.part(address?, length).ok().flatten()
    }

    /// Removes the allocation that begins at an address.
    pub(crate) fn remove(&mut self, address: u64) -> Option<Arc<Allocation>> {
        let removed = self.by_address.remove(&address)?;
        self.keep_addresses(&removed);
        Some(removed)
    }

    /// Notes that an allocation is gone, whose addresses are kept for a while.
    fn keep_addresses(&mut self, removed: &Allocation) {
        self.give_back(removed.device, removed.length_on_device());
        self.permissions.remove(&removed.address);
        // Addresses that are reserved stay so.
        if removed.backing.is_none()
            && let Some(pages) = removed.mapping.as_ref().and_then(Mapping::device_pages)
        {
            pages.free();
            self.keep(pages);
        }
    }

    /// Keeps addresses for a while, so that nothing else gets them.
    fn keep(&mut self, pages: &Arc<DevicePages>) {
        const KEPT: usize = 1024;
        self.freed.push_back(Arc::clone(pages));
        if self.freed.len() > KEPT {
            self.freed.pop_front();
        }
    }

    /// Counts bytes that are in use on a device.
    pub(crate) fn take(&mut self, device: usize, length: usize) {
        *self.used.entry(device).or_default() += length;
    }

    /// Counts bytes that are no longer in use on a device.
    pub(crate) fn give_back(&mut self, device: usize, length: usize) {
        *self.used.entry(device).or_default() -= length;
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
