//! CUDA memory: device, pinned, and managed memory.

use std::collections::{BTreeMap, VecDeque};
use std::iter;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys::CUresult::*;

use crate::error::{Result, ensure, print};
use crate::handle::{BackingId, ContextId, PoolId};
use crate::mapping::{DevicePages, Exported, ImportLock, Mapping, Physical, Reservation};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Device,
    Pinned,
    /// Host memory of the program that `cuMemHostRegister` page-locked.
    Registered,
    Managed,
}

impl Kind {
    pub(crate) fn memory(self) -> &'static str {
        match self {
            Self::Device => "device memory",
            Self::Pinned => "pinned host memory",
            Self::Registered => "registered host memory",
            Self::Managed => "managed memory",
        }
    }
}

pub(crate) struct Allocation {
    /// The id, never reused; 0 until the allocation is inserted. All mappings of the same memory share an id.
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    pub(crate) device: usize,
    /// The context that allocated the memory, or 0 for mapped memory.
    pub(crate) context: ContextId,
    /// The mapped memory, if this is a mapping at reserved addresses.
    pub(crate) backing: Option<BackingId>,
    pub(crate) is_imported: bool,
    /// The pool, if the memory was allocated in stream order.
    pub(crate) pool: Option<PoolId>,
    pub(crate) flags: u32,
    pub(crate) address: u64,
    pub(crate) length: usize,
    /// The mapping, or `None` if the program owns the memory.
    pub(crate) mapping: Option<Mapping>,
}

impl Allocation {
    pub(crate) fn new(kind: Kind, device: usize, context: ContextId, address: u64, length: usize) -> Self {
        let (id, backing, is_imported, pool, flags, mapping) = (0, None, false, None, 0, None);
        Self { id, kind, device, context, backing, is_imported, pool, flags, address, length, mapping }
    }

    /// Returns the address of a byte in this process's accessible mapping.
    pub(crate) fn alias(&self, offset: usize) -> usize {
        self.mapping.as_ref().map_or(self.address as usize, Mapping::alias) + offset
    }

    pub(crate) fn addresses(&self) -> Range<u64> {
        self.address..self.address + self.length as u64
    }

    fn length_on_device(&self) -> usize {
        let is_on_device =
            matches!(self.kind, Kind::Device | Kind::Managed) && self.backing.is_none() && !self.is_imported;
        if is_on_device { self.length } else { 0 }
    }

    pub(crate) fn export(&self) -> Option<Exported> {
        let is_own = self.kind == Kind::Device && self.pool.is_none() && !self.is_imported;
        self.mapping.as_ref().filter(|_| is_own)?.export()
    }

    pub(crate) fn is_open_elsewhere(&self) -> bool {
        let is_own = self.kind == Kind::Device && !self.is_imported;
        self.mapping.as_ref().filter(|_| is_own).is_some_and(Mapping::is_imported)
    }

    pub(crate) fn description(&self) -> String {
        let Self { id, length, device, .. } = self;
        match self.kind {
            Kind::Device => format!("allocation {id}, {length} bytes of device {device}"),
            kind => format!("allocation {id}, {length} bytes of {}", kind.memory()),
        }
    }
}

pub(crate) struct Import {
    pub(crate) context: ContextId,
    pub(crate) place: Exported,
    pub(crate) address: u64,
    pub(crate) count: usize,
    pub(crate) _lock: ImportLock,
}

/// Memory that can be mapped. Freed when it has neither references nor mappings.
pub(crate) struct Backing {
    pub(crate) device: usize,
    pub(crate) length: usize,
    /// The permitted handle types for other processes.
    pub(crate) handle_types: u32,
    pub(crate) physical: Physical,
    /// The [`Allocation::id`] of all its mappings.
    pub(crate) allocation: u64,
    /// The length in device memory: 0 for another process's memory.
    pub(crate) length_on_device: usize,
    pub(crate) references: usize,
    pub(crate) mappings: usize,
}

/// A pool of stream-ordered allocations. It only counts bytes, because memory is not kept for reuse.
#[derive(Default)]
pub(crate) struct Pool {
    pub(crate) device: usize,
    /// Set for a device's default pool, which cannot be destroyed.
    pub(crate) is_default: bool,
    pub(crate) attributes: BTreeMap<u32, u64>,
    pub(crate) used: u64,
    pub(crate) high: u64,
}

/// A range that starts in an allocation. Keeps the allocation alive.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) allocation: Arc<Allocation>,
    pub(crate) offset: usize,
    /// Mappings directly behind the allocation into which the range extends.
    pub(crate) following: Vec<Arc<Allocation>>,
}

impl Part {
    pub(crate) fn of(allocation: &Arc<Allocation>, offset: usize) -> Self {
        Self { allocation: Arc::clone(allocation), offset, following: Vec::new() }
    }
}

/// Access of a device to mapped memory: 0 is none, 1 is read, 3 is read and write.
pub(crate) type Permission = u32;

pub(crate) const READ_WRITE: Permission = 3;

#[derive(Default)]
pub(crate) struct Allocations {
    by_address: BTreeMap<u64, Arc<Allocation>>,
    /// Addresses of recently freed device memory, which are not reused yet.
    freed: VecDeque<Arc<DevicePages>>,
    /// Reserved address ranges by first address.
    pub(crate) reservations: BTreeMap<u64, Reservation>,
    /// The permissions by address of the mapping, then by device.
    pub(crate) permissions: BTreeMap<u64, BTreeMap<usize, Permission>>,
    pub(crate) total: usize,
    used: BTreeMap<usize, usize>,
    was_reported: bool,
    last: u64,
}

impl Allocations {
    pub(crate) fn new(total: usize) -> Self {
        Self { total, ..Self::default() }
    }

    pub(crate) fn check_room(&mut self, device: usize, length: usize) -> Result<()> {
        let free = self.free(device);
        if length <= free {
            return Ok(());
        }
        if !std::mem::replace(&mut self.was_reported, true) {
            let total = self.total;
            print(&format!(
                "libnccl: device {device} has no room for {length} bytes: {free} of {total} are free; \
                 LIBNCCL_CPU_DEVICE_MEMORY=BYTES gives each device of this process more\n"
            ));
        }
        Err(CUDA_ERROR_OUT_OF_MEMORY)
    }

    pub(crate) fn next_id(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(crate) fn insert(&mut self, mut allocation: Allocation) -> Arc<Allocation> {
        if allocation.id == 0 {
            allocation.id = self.next_id();
        }
        if let Some(pages) = allocation.mapping.as_ref().and_then(|mapping| mapping.device.as_ref()) {
            pages.list(allocation.length, allocation.id, allocation.device);
        }
        let allocation = Arc::new(allocation);
        self.take(allocation.device, allocation.length_on_device());
        self.by_address.insert(allocation.address, Arc::clone(&allocation));
        allocation
    }

    pub(crate) fn containing(&self, address: u64) -> Option<&Arc<Allocation>> {
        let (_, allocation) = self.by_address.range(..=address).next_back()?;
        (address < allocation.addresses().end || address == allocation.address).then_some(allocation)
    }

    pub(crate) fn overlaps(&self, address: u64, length: usize) -> bool {
        let end = address.saturating_add(length as u64);
        self.by_address.range(..end).next_back().is_some_and(|(_, last)| last.addresses().end > address)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Allocation>> {
        self.by_address.values()
    }

    pub(crate) fn at(&self, address: u64) -> Option<&Arc<Allocation>> {
        self.by_address.get(&address)
    }

    pub(crate) fn has(&self, allocation: &Arc<Allocation>) -> bool {
        self.at(allocation.address).is_some_and(|own| Arc::ptr_eq(own, allocation))
    }

    /// Finds the mapping directly behind another one, in the same reservation or an adjacent one.
    fn behind(&self, last: &Allocation) -> Option<&Arc<Allocation>> {
        let next = self.at(last.addresses().end)?;
        let are_mapped = last.backing.is_some() && next.backing.is_some();
        (are_mapped && next.alias(0) == last.alias(last.length)).then_some(next)
    }

    /// Finds the range that starts at an address, or `None` for memory unknown to CUDA.
    ///
    /// Recently freed device memory causes an error.
    pub(crate) fn part(&self, address: u64, length: usize) -> Result<Option<Part>> {
        let Some(allocation) = self.containing(address) else {
            let was_freed = self.freed.iter().any(|pages| pages.range().contains(&address));
            let is_unmapped = self.reservation(address).is_some();
            return ensure(!was_freed && !is_unmapped, CUDA_ERROR_INVALID_VALUE).map(|()| None);
        };
        let mut part = Part::of(allocation, (address - allocation.address) as usize);
        let (mut last, mut room) = (allocation, allocation.length - part.offset);
        while length > room {
            last = self.behind(last).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            room += last.length;
            part.following.push(Arc::clone(last));
        }
        Ok(Some(part))
    }

    pub(crate) fn reservation(&self, address: u64) -> Option<&Reservation> {
        let (_, reservation) = self.reservations.range(..=address).next_back()?;
        reservation.addresses.range().contains(&address).then_some(reservation)
    }

    /// Finds the mappings in a range. The range must start and end with a mapping.
    pub(crate) fn mapped(&self, address: u64, length: usize) -> Result<Vec<Arc<Allocation>>> {
        let end = address.checked_add(length as u64).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let first = self.at(address).filter(|first| first.backing.is_some());
        let all = iter::successors(first, |last| self.behind(last)).take_while(|one| one.address < end);
        let all = all.map(Arc::clone).collect::<Vec<_>>();
        let is_whole = all.last().is_some_and(|last| last.addresses().end == end);
        is_whole.then_some(all).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    pub(crate) fn free_reservation(&mut self, address: u64) {
        if let Some(reservation) = self.reservations.remove(&address) {
            self.keep(&reservation.addresses);
        }
    }

    /// Finds the range at an address of this process's accessible mapping.
    pub(crate) fn part_of_alias(&self, alias: u64, length: usize) -> Option<Part> {
        let address = self.by_address.values().find_map(|allocation| {
            let offset = (alias as usize).checked_sub(allocation.alias(0))?;
            (offset < allocation.length).then(|| allocation.address + offset as u64)
        });
        self.part(address?, length).ok().flatten()
    }

    pub(crate) fn remove(&mut self, address: u64) -> Option<Arc<Allocation>> {
        let removed = self.by_address.remove(&address)?;
        self.give_back(removed.device, removed.length_on_device());
        self.permissions.remove(&address);
        // Reserved addresses stay reserved.
        if removed.backing.is_none()
            && let Some(pages) = removed.mapping.as_ref().and_then(|mapping| mapping.device.as_ref())
        {
            pages.free();
            self.keep(pages);
        }
        Some(removed)
    }

    /// Defers the reuse of addresses.
    fn keep(&mut self, pages: &Arc<DevicePages>) {
        const KEPT: usize = 1024;
        self.freed.push_back(Arc::clone(pages));
        if self.freed.len() > KEPT {
            self.freed.pop_front();
        }
    }

    pub(crate) fn take(&mut self, device: usize, length: usize) {
        *self.used.entry(device).or_default() += length;
    }

    pub(crate) fn give_back(&mut self, device: usize, length: usize) {
        *self.used.entry(device).or_default() -= length;
    }

    /// Returns the addresses of a context's allocations.
    pub(crate) fn of_context(&self, context: ContextId) -> Vec<u64> {
        self.all().filter(|one| one.context == context).map(|one| one.address).collect()
    }

    pub(crate) fn free(&self, device: usize) -> usize {
        self.total.saturating_sub(self.used.get(&device).copied().unwrap_or(0))
    }
}
