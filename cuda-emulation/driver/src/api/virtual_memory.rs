//! Reserved addresses, and memory that is mapped there.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, IntoRawFd};

use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccessDesc, CUmemAllocationProp, CUmemAllocationType, CUmemLocation, CUmemLocationType,
    CUresult,
};
use rustix::param::page_size;

use super::memory::check_range_free;
use super::{put, refuse};
use crate::allocation::{Allocation, Backing, Kind, READ_WRITE};
use crate::driver::Driver;
use crate::error::{Result, ensure};
use crate::handle::{BackingId, ContextId};
use crate::mapping::{Physical, Reservation};
use crate::state::State;

const INVALID: CUresult = CUDA_ERROR_INVALID_VALUE;

/// The granularity of sizes and addresses of mapped memory.
const GRANULARITY: usize = 2 << 20;

/// Handle types for other processes.
const NONE: c_uint = 0;
const FILE_DESCRIPTOR: c_uint = 1;
const ALL_HANDLE_TYPES: c_uint = 15;

/// # Safety
/// `location` must be readable.
unsafe fn device_of(driver: &Driver, location: *const CUmemLocation) -> Result<usize> {
    const DEVICE: c_uint = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_uint;
    const LAST: c_uint = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT as c_uint;
    match number!((*location).type_) {
        // SAFETY: the caller promises that it can be read.
        DEVICE => driver.device(unsafe { (&raw const (*location).id).read() }),
        kind if kind > DEVICE && kind <= LAST => refuse("host memory that is mapped at reserved addresses"),
        _ => Err(INVALID),
    }
}

/// Returns the device and the handle types.
///
/// # Safety
/// `properties` must be null or readable.
unsafe fn read(driver: &Driver, properties: *const CUmemAllocationProp) -> Result<(usize, c_uint)> {
    const PINNED: c_uint = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as c_uint;
    ensure(!properties.is_null() && number!((*properties).type_) == PINNED, INVALID)?;
    let handle_types = number!((*properties).requestedHandleTypes);
    // SAFETY: the caller promises that it can be read.
    let device = unsafe { device_of(driver, &raw const (*properties).location)? };
    match handle_types {
        NONE | FILE_DESCRIPTOR => Ok((device, handle_types)),
        _ if handle_types > ALL_HANDLE_TYPES => Err(INVALID),
        // Programs try others, and then make do with a file descriptor.
        _ => Err(CUDA_ERROR_NOT_SUPPORTED),
    }
}

fn check_range(address: CUdeviceptr, length: usize) -> Result<()> {
    let is_aligned = length.is_multiple_of(GRANULARITY) && address.is_multiple_of(GRANULARITY as u64);
    ensure(length > 0 && is_aligned, INVALID)
}

fn is_open(file: c_int) -> bool {
    // SAFETY: any number is permitted.
    unsafe { libc::fcntl(file, libc::F_GETFD) >= 0 }
}

impl State {
    fn add_backing(
        &mut self,
        device: usize,
        length: usize,
        handle_types: u32,
        physical: Physical,
        length_on_device: usize,
    ) -> BackingId {
        let (id, allocation) = (BackingId(self.next_handle()), self.allocations.next_id());
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

    fn backing(&mut self, id: BackingId) -> Result<&mut Backing> {
        self.backings.get_mut(&id).filter(|backing| backing.references > 0).ok_or(INVALID)
    }

    fn drop_unused(&mut self, id: BackingId) {
        let is_unused = |backing: &&Backing| backing.references == 0 && backing.mappings == 0;
        let Some(backing) = self.backings.get(&id).filter(is_unused) else { return };
        let (device, length, allocation) = (backing.device, backing.length_on_device, backing.allocation);
        self.allocations.give_back(device, length);
        self.forget_races(allocation);
        self.backings.remove(&id);
    }
}

api! {
    fn cuMemGetAllocationGranularity(
        out: *mut usize, properties: *const CUmemAllocationProp, option: c_uint,
    ) {
        const RECOMMENDED: c_uint = 1;
        read(Driver::get()?, properties)?;
        ensure(option <= RECOMMENDED, INVALID)?;
        put(out, GRANULARITY)
    }

    fn cuMemAddressReserve(
        out: *mut CUdeviceptr, length: usize, alignment: usize, near: CUdeviceptr, flags: c_ulonglong,
    ) {
        let mut state = Driver::get()?.enter();
        let are_pages =
            length > 0 && length.is_multiple_of(page_size()) && near.is_multiple_of(page_size() as u64);
        let is_power = alignment == 0 || alignment.is_power_of_two();
        ensure(!out.is_null() && are_pages && is_power && flags == 0, INVALID)?;
        let reservation = Reservation::new(near as usize, length, alignment.max(GRANULARITY))?;
        let address = reservation.addresses.range().start;
        state.allocations.reservations.insert(address, reservation);
        put(out, address)
    }

    fn cuMemAddressFree(address: CUdeviceptr, length: usize) {
        let mut state = Driver::get()?.enter();
        let reservation = state.allocations.reservations.get(&address).ok_or(INVALID)?;
        let range = reservation.addresses.range();
        let is_whole = range.end - range.start == length as u64;
        ensure(is_whole && !state.allocations.overlaps(address, length), INVALID)?;
        state.allocations.free_reservation(address);
        Ok(())
    }

    fn cuMemCreate(
        out: *mut c_ulonglong, length: usize, properties: *const CUmemAllocationProp, flags: c_ulonglong,
    ) {
        let driver = Driver::get()?;
        let (device, handle_types) = read(driver, properties)?;
        let is_size = length > 0 && length.is_multiple_of(GRANULARITY);
        ensure(!out.is_null() && flags == 0 && is_size, INVALID)?;
        let mut state = driver.enter();
        state.allocations.check_room(device, length)?;
        let physical = Physical::new(driver.visible[device], length, handle_types == FILE_DESCRIPTOR)?;
        put(out, state.add_backing(device, length, handle_types, physical, length).0)
    }

    fn cuMemRelease(handle: c_ulonglong) {
        let mut state = Driver::get()?.enter();
        state.backing(BackingId(handle))?.references -= 1;
        state.drop_unused(BackingId(handle));
        Ok(())
    }

    fn cuMemRetainAllocationHandle(out: *mut c_ulonglong, address: *mut c_void) {
        let mut state = Driver::get()?.enter();
        ensure(!out.is_null(), INVALID)?;
        let id = state.allocations.containing(address.addr() as u64).and_then(|mapped| mapped.backing);
        let backing = id.and_then(|id| Some((id, state.backings.get_mut(&id)?)));
        let (id, backing) = backing.ok_or(INVALID)?;
        backing.references += 1;
        put(out, id.0)
    }

    fn cuMemGetAllocationPropertiesFromHandle(out: *mut CUmemAllocationProp, handle: c_ulonglong) {
        let mut state = Driver::get()?.enter();
        let backing = state.backing(BackingId(handle))?;
        ensure(!out.is_null(), INVALID)?;
        let mut properties = MaybeUninit::<CUmemAllocationProp>::zeroed();
        let place = properties.as_mut_ptr();
        // SAFETY: it is a variable; the numbers are values of the enumerations, of which all have the size.
        unsafe {
            (&raw mut (*place).type_).write(CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED);
            (&raw mut (*place).requestedHandleTypes).cast::<c_uint>().write(backing.handle_types);
            (&raw mut (*place).location.type_).write(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE);
            (&raw mut (*place).location.id).write(backing.device as c_int);
        }
        out.cast::<MaybeUninit<CUmemAllocationProp>>().write(properties);
        Ok(())
    }

    fn cuMemMap(address: CUdeviceptr, length: usize, offset: usize, handle: c_ulonglong, flags: c_ulonglong) {
        let mut locked = Driver::get()?.enter();
        let state = &mut *locked;
        check_range(address, length)?;
        ensure(offset == 0 && flags == 0, INVALID)?;
        let id = BackingId(handle);
        let end = address.checked_add(length as u64).ok_or(INVALID)?;
        let reservation = state.allocations.reservation(address).ok_or(INVALID)?;
        let backing = state.backings.get_mut(&id).filter(|backing| backing.references > 0).ok_or(INVALID)?;
        let is_free = end <= reservation.addresses.range().end && !state.allocations.overlaps(address, length);
        ensure(is_free && length <= backing.length, INVALID)?;
        let offset = (address - reservation.addresses.range().start) as usize;
        let mapping = Some(reservation.map(offset, length, &backing.physical)?);
        backing.mappings += 1;
        let (own, flags) = (backing.allocation, backing.handle_types);
        let mapped = Allocation::new(Kind::Device, backing.device, ContextId(0), address, length);
        state.allocations.insert(Allocation { id: own, backing: Some(id), flags, mapping, ..mapped });
        Ok(())
    }

    fn cuMemUnmap(address: CUdeviceptr, length: usize) {
        let driver = Driver::get()?;
        check_range(address, length)?;
        check_range_free(c"cuMemUnmap", address, length)?;
        let mut state = driver.enter();
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
        state = driver.synchronize_all(state);
        // Another thread may have unmapped some of it meanwhile.
        ensure(mapped.iter().all(|one| state.allocations.has(one)), INVALID)?;
        for one in mapped {
            if let Some(reservation) = state.allocations.reservation(one.address) {
                reservation.unmap((one.address - reservation.addresses.range().start) as usize, one.length)?;
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

    fn cuMemSetAccess(
        address: CUdeviceptr, length: usize, descriptions: *const CUmemAccessDesc, count: usize,
    ) {
        const NO_ACCESS: c_uint = 0;
        const READ: c_uint = 1;
        let (driver, mut state) = Driver::entered()?;
        check_range(address, length)?;
        ensure(!descriptions.is_null() && count > 0, INVALID)?;
        let mut permissions = Vec::new();
        for index in 0..count {
            let description = descriptions.add(index);
            let device = device_of(driver, &raw const (*description).location)?;
            let permission = number!((*description).flags);
            ensure(matches!(permission, NO_ACCESS | READ | READ_WRITE), INVALID)?;
            permissions.push((device, permission));
        }
        for mapped in state.allocations.mapped(address, length)? {
            let own = state.allocations.permissions.entry(mapped.address).or_default();
            own.extend(permissions.iter().copied());
        }
        Ok(())
    }

    fn cuMemGetAccess(out: *mut c_ulonglong, location: *const CUmemLocation, address: CUdeviceptr) {
        let (driver, state) = Driver::entered()?;
        ensure(!location.is_null(), INVALID)?;
        let device = device_of(driver, location)?;
        let mapped = state.allocations.containing(address).filter(|mapped| mapped.backing.is_some());
        put(out, state.permission(mapped.ok_or(INVALID)?, device).into())
    }

    fn cuMemExportToShareableHandle(
        out: *mut c_void, handle: c_ulonglong, handle_type: c_uint, flags: c_ulonglong,
    ) {
        let mut state = Driver::get()?.enter();
        let backing = state.backing(BackingId(handle))?;
        // The handle type must have been requested when the memory was created.
        let is_type = handle_type != NONE && handle_type == backing.handle_types;
        ensure(!out.is_null() && flags == 0 && is_type, INVALID)?;
        let Some(file) = backing.physical.share()? else {
            return refuse("exports of memory that was made while half of the file descriptors were in use (ulimit -n)");
        };
        // The file descriptor is the program's from now on.
        put(out.cast::<c_int>(), file.into_raw_fd())
    }

    fn cuMemImportFromShareableHandle(out: *mut c_ulonglong, handle: *mut c_void, handle_type: c_uint) {
        let (driver, mut state) = Driver::entered()?;
        ensure(!out.is_null() && (1..=ALL_HANDLE_TYPES).contains(&handle_type), INVALID)?;
        ensure(handle_type == FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED)?;
        let file = c_int::try_from(handle.addr()).ok().filter(|&file| is_open(file)).ok_or(INVALID)?;
        // SAFETY: it is open, and by CUDA's contract stays so until this returns.
        let (physical, device, length) = Physical::of_file(unsafe { BorrowedFd::borrow_raw(file) })?;
        let device = driver.device_for_import(&mut state, device)?;
        put(out, state.add_backing(device, length, handle_type, physical, 0).0)
    }
}
