//! Memory that programs map at addresses that they have reserved.

use cudarc::driver::sys::CUresult;

use crate::allocation::{Allocation, Kind, Part, Permission};
use crate::driver::{Driver, Request, State};
use crate::error::Result;
use crate::handle::{BackingId, ContextId, StreamId};
use crate::mapping::Physical;
use crate::message;
use crate::sync::MutexGuard;

/// The sizes and addresses of what is mapped are multiples of it.
pub(crate) const GRANULARITY: usize = 2 << 20;
/// The permission to read and write.
pub(crate) const READ_WRITE: Permission = 3;

/// Memory that can be mapped. It lives until nothing refers to it, and it is mapped nowhere.
#[derive(Debug)]
pub(crate) struct Backing {
    /// Its device.
    pub(crate) device: usize,
    /// The number of bytes.
    pub(crate) length: usize,
    /// The kinds of handles that other processes can have, as a number of CUDA.
    pub(crate) handle_types: u32,
    /// Its memory.
    pub(crate) physical: Physical,
    /// The number of its allocations.
    allocation: u64,
    /// The bytes that it takes on its device: none of what is another process's.
    length_on_device: usize,
    references: usize,
    mappings: usize,
}

impl State {
    /// Adds memory that can be mapped.
    pub(crate) fn add_backing(
        &mut self,
        device: usize,
        length: usize,
        handle_types: u32,
        physical: Physical,
        is_own: bool,
    ) -> BackingId {
        let (id, allocation) = (BackingId(self.next_handle()), self.allocations.next_id());
        let length_on_device = if is_own { length } else { 0 };
        self.allocations.take(device, length_on_device);
        let (references, mappings) = (1, 0);
        let backing = Backing {
            device,
            length,
            handle_types,
            physical,
            allocation,
            length_on_device,
            references,
            mappings,
        };
        self.backings.insert(id, backing);
        id
    }

    /// Finds memory to which the program has a handle.
    pub(crate) fn backing(&mut self, id: BackingId) -> Result<&mut Backing> {
        let backing = self.backings.get_mut(&id).filter(|backing| backing.references > 0);
        backing.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// Adds a reference to what is mapped at an address.
    pub(crate) fn retain_backing(&mut self, address: u64) -> Result<BackingId> {
        let mapped = self.allocations.containing(address).and_then(|mapped| mapped.backing);
        let id = mapped.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let backing = self.backings.get_mut(&id).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        backing.references += 1;
        Ok(id)
    }

    /// Takes a reference away.
    pub(crate) fn release_backing(&mut self, id: BackingId) -> Result<()> {
        self.backing(id)?.references -= 1;
        self.drop_unused(id);
        Ok(())
    }

    fn drop_unused(&mut self, id: BackingId) {
        let is_unused = |backing: &&Backing| backing.references == 0 && backing.mappings == 0;
        let Some(backing) = self.backings.get(&id).filter(is_unused) else { return };
        let (device, length, allocation) = (backing.device, backing.length_on_device, backing.allocation);
        self.allocations.give_back(device, length);
        self.forget_races(allocation);
        self.backings.remove(&id);
    }

    /// Maps the first bytes of memory at addresses that are reserved, and where nothing is mapped.
    pub(crate) fn map(&mut self, address: u64, length: usize, id: BackingId) -> Result<()> {
        const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
        let end = address.checked_add(length as u64).ok_or(INVALID)?;
        let reservation = self.allocations.reservation(address).ok_or(INVALID)?;
        let backing = self.backings.get_mut(&id).filter(|backing| backing.references > 0).ok_or(INVALID)?;
        let is_free = end <= reservation.range().end && !self.allocations.overlaps(address, length);
        if !is_free || length > backing.length {
            return Err(INVALID);
        }
        let offset = (address - reservation.range().start) as usize;
        let mapping = reservation.map(offset, length, &backing.physical)?;
        backing.mappings += 1;
        let (device, flags) = (backing.device, backing.handle_types);
        self.allocations.insert(Allocation {
            id: backing.allocation,
            kind: Kind::Device,
            device,
            context: ContextId(0),
            backing: Some(id),
            is_imported: false,
            pool: None,
            flags,
            address,
            length,
            mapping: Some(mapping),
        });
        Ok(())
    }

    /// The use that a device may make of memory that is mapped.
    pub(crate) fn permission(&self, allocation: &Allocation, device: usize) -> Permission {
        let all = self.allocations.permissions.get(&allocation.address);
        all.and_then(|all| all.get(&device)).copied().unwrap_or(0)
    }

    /// Checks that the device of a stream may do with memory that is mapped what an operation does.
    ///
    /// # Errors
    /// It may not, which is a fault of its context.
    pub(crate) fn check_permissions(&mut self, stream: StreamId, request: &Request) -> Result<()> {
        let context = self.context_of(stream)?;
        let device = self.context(context)?.device;
        // Copies between devices are done by either.
        let is_peers = request.label.starts_with("cuMemcpyPeer");
        let accesses = request.accesses.iter();
        let mut all = accesses.flat_map(|access| access.allocations().map(|one| (one, access.writes())));
        let forbidden = all.find(|(one, writes)| {
            let may = |device| match self.permission(one, device) {
                READ_WRITE => true,
                permission => permission > 0 && !writes,
            };
            one.backing.is_some() && !may(device) && !(is_peers && may(one.device))
        });
        let Some((one, writes)) = forbidden else { return Ok(()) };
        message::write(&format!(
            "libnccl: fault: {} {} {}, to which cuMemSetAccess has given device {device} no such access\n",
            request.label,
            if writes { "writes" } else { "reads" },
            one.description()
        ));
        self.fail(context, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)
    }
}

impl Driver {
    /// Takes away all that is mapped in a range of addresses, once all work is done.
    pub(crate) fn unmap<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        address: u64,
        length: usize,
    ) -> Result<()> {
        let mapped = state.allocations.mapped(address, length)?;
        state.check_may_wait()?;
        for one in &mapped {
            // Work that uses the same memory at other addresses goes on.
            let is_last =
                one.backing.and_then(|id| state.backings.get(&id)).is_some_and(|of| of.mappings == 1);
            if is_last {
                state.check_host(self.config, "cuMemUnmap", &Part::of(one, 0), one.length);
            }
        }
        // Nothing may use the pages when others come in their place.
        state = self.synchronize_all(state);
        // Another thread may have taken something of it away meanwhile.
        if !mapped.iter().all(|one| state.allocations.has(one)) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        for one in mapped {
            if let Some(reservation) = state.allocations.reservation(one.address) {
                reservation.unmap((one.address - reservation.range().start) as usize, one.length)?;
            }
            state.allocations.remove(one.address);
            if let Some(id) = one.backing {
                if let Some(backing) = state.backings.get_mut(&id) {
                    backing.mappings -= 1;
                }
                state.drop_unused(id);
            }
        }
        Ok(())
    }
}
