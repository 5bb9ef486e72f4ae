//! Memory that programs map at addresses that they have reserved.

use cudarc::driver::sys::CUresult;
use cudarc::driver::sys::CUresult::*;

use crate::allocation::{Allocation, Backing, Kind, Permission};
use crate::driver::Driver;
use crate::error::{Result, ensure, print};
use crate::handle::{BackingId, ContextId, StreamId};
use crate::mapping::Physical;
use crate::state::{Request, State};

/// The granularity of sizes and addresses of mapped memory.
pub(crate) const GRANULARITY: usize = 2 << 20;
pub(crate) const READ_WRITE: Permission = 3;

impl State {
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
        let backing = Backing {
            device,
            length,
            handle_types,
            physical,
            allocation,
            length_on_device,
            references: 1,
            mappings: 0,
        };
        self.backings.insert(id, backing);
        id
    }

    pub(crate) fn backing(&mut self, id: BackingId) -> Result<&mut Backing> {
        self.backings.get_mut(&id).filter(|backing| backing.references > 0).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Adds a reference to the memory mapped at an address.
    pub(crate) fn retain_backing(&mut self, address: u64) -> Result<BackingId> {
        let id = self.allocations.containing(address).and_then(|mapped| mapped.backing);
        let backing = id.and_then(|id| Some((id, self.backings.get_mut(&id)?)));
        let (id, backing) = backing.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        backing.references += 1;
        Ok(id)
    }

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

    pub(crate) fn map(&mut self, address: u64, length: usize, id: BackingId) -> Result<()> {
        const INVALID: CUresult = CUDA_ERROR_INVALID_VALUE;
        let end = address.checked_add(length as u64).ok_or(INVALID)?;
        let reservation = self.allocations.reservation(address).ok_or(INVALID)?;
        let backing = self.backings.get_mut(&id).filter(|backing| backing.references > 0).ok_or(INVALID)?;
        let is_free = end <= reservation.range().end && !self.allocations.overlaps(address, length);
        ensure(is_free && length <= backing.length, INVALID)?;
        let offset = (address - reservation.range().start) as usize;
        let mapping = Some(reservation.map(offset, length, &backing.physical)?);
        backing.mappings += 1;
        let (own, flags) = (backing.allocation, backing.handle_types);
        let mapped = Allocation::new(Kind::Device, backing.device, ContextId(0), address, length);
        self.allocations.insert(Allocation { id: own, backing: Some(id), flags, mapping, ..mapped });
        Ok(())
    }

    pub(crate) fn permission(&self, allocation: &Allocation, device: usize) -> Permission {
        let all = self.allocations.permissions.get(&allocation.address);
        all.and_then(|all| all.get(&device)).copied().unwrap_or(0)
    }

    /// Checks that an operation is permitted to access mapped memory.
    ///
    /// # Errors
    ///
    /// It is not. The context gets a sticky error.
    pub(crate) fn check_permissions(&mut self, stream: StreamId, request: &Request) -> Result<()> {
        let context = self.context_of(stream)?;
        let device = self.context(context)?.device;
        // Either device may do a copy between devices.
        let is_peers = request.label.starts_with("cuMemcpyPeer");
        let accesses = request.accesses.iter();
        let mut all = accesses.flat_map(|access| access.allocations().map(|one| (one, access.writes)));
        let forbidden = all.find(|(one, writes)| {
            let may = |device| match self.permission(one, device) {
                READ_WRITE => true,
                permission => permission > 0 && !writes,
            };
            one.backing.is_some() && !may(device) && !(is_peers && may(one.device))
        });
        let Some((one, writes)) = forbidden else { return Ok(()) };
        print(&format!(
            "libnccl: fault: {} {} {}, to which cuMemSetAccess has given device {device} no such access\n",
            request.label,
            if writes { "writes" } else { "reads" },
            one.description()
        ));
        self.fail(context, CUDA_ERROR_ILLEGAL_ADDRESS);
        Err(CUDA_ERROR_ILLEGAL_ADDRESS)
    }
}

impl Driver {
    pub(crate) fn unmap(&self, address: u64, length: usize) -> Result<()> {
        let mut state = self.enter();
        let mapped = state.allocations.mapped(address, length)?;
        state.check_may_wait()?;
        for one in &mapped {
            // Work that uses the same memory at other addresses continues.
            let backing = one.backing.and_then(|id| state.backings.get(&id));
            if backing.is_some_and(|backing| backing.mappings == 1) {
                state.check_host("cuMemUnmap", one);
            }
        }
        // Nothing may use the pages when others replace them.
        state = self.synchronize_all(state);
        // Another thread may have unmapped some of it meanwhile.
        ensure(mapped.iter().all(|one| state.allocations.has(one)), CUDA_ERROR_INVALID_VALUE)?;
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
