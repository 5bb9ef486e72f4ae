//! Devices and their primary contexts.

use std::ffi::{CStr, c_char, c_int, c_uint};

use cuda_common::Device;
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_P2PAttribute as Peer, CUdevice_attribute as Attribute, CUmemoryPool, CUuuid,
};

use super::{put, put_text, result};
use crate::config::{self, Config};
use crate::current::Current;
use crate::driver::{Driver, Locked};
use crate::error::{Result, ensure};
use crate::handle::PoolId;

const CAPABILITY: [c_int; 2] = [9, 0];

/// All devices have the same name, because XLA rejects devices with different names.
const NAME: &str = "libnccl CUDA emulation";

fn get(ordinal: c_int) -> Result<CUdevice> {
    Driver::get()?.device(ordinal).map(|_| ordinal)
}

fn physical(device: CUdevice) -> Result<usize> {
    let driver = Driver::get()?;
    Ok(driver.visible[driver.device(device)?])
}

/// Takes the driver's lock for a call that concerns a device.
fn enter(device: CUdevice) -> Result<(&'static Driver, Locked<'static>, usize)> {
    let driver = Driver::get()?;
    let device = driver.device(device)?;
    Ok((driver, driver.enter(), device))
}

/// Describes a physical device, visible or not. Needs no `cuInit`.
pub(super) fn describe(index: c_int) -> Result<Device> {
    let driver = Driver::get();
    let config = driver.map_or_else(|_| Config::from_env(), |driver| Ok(driver.config))?;
    let index = usize::try_from(index).ok().filter(|&index| index < config.devices);
    let index = index.ok_or(CUDA_ERROR_INVALID_DEVICE)?;
    let total = config.device_memory;
    let visible = driver.ok().and_then(|driver| Some((driver, driver.visible(index)?)));
    let free = visible.map_or(total, |(driver, device)| driver.lock().allocations.free(device));
    let mut name = [0; 64];
    name[..NAME.len()].copy_from_slice(NAME.as_bytes());
    Ok(Device {
        name,
        uuid: config::uuid(index),
        bus: bus(index),
        capability: CAPABILITY,
        total: total as u64,
        free: free as u64,
    })
}

fn device_attribute(code: c_uint, physical: usize) -> Result<c_int> {
    const KIB: c_int = 1024;
    // Later versions of CUDA added attributes for features that are not emulated: these are 0.
    const LAST: c_uint = 200;
    ensure(code != 0 && code <= LAST, CUDA_ERROR_INVALID_VALUE)?;
    let values: &[(Attribute, c_int)] = &[
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, c_int::MAX),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 * KIB),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 48 * KIB),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 48 * KIB),
        (Attribute::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 64 * KIB),
        (Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH, c_int::MAX),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 64 * KIB),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 64 * KIB),
        (Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1_000_000),
        (Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1_000_000),
        (Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 64),
        (Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, KIB * KIB),
        (Attribute::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512),
        (Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 1024),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 16),
        (Attribute::CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2),
        (Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, bus(physical) as c_int),
        (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CAPABILITY[0]),
        (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, CAPABILITY[1]),
    ];
    Ok(values.iter().find(|(attribute, _)| *attribute as c_uint == code).map_or(0, |(_, value)| *value))
}

fn bus(physical: usize) -> u32 {
    physical as u32 + 1
}

fn bus_id(physical: usize) -> String {
    format!("0000:{:02X}:00.0", bus(physical))
}

api! {
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) = put(device, get(ordinal)?);
    fn cuDeviceGetCount(count: *mut c_int) = put(count, Driver::get()?.visible.len() as c_int);

    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice) {
        get(device)?;
        put_text(name, usize::try_from(length).unwrap_or(0), NAME.as_bytes())
    }

    fn cuDeviceGetUuid(out: *mut CUuuid, device: CUdevice) {
        let bytes = config::uuid(physical(device)?);
        put(out, CUuuid { bytes: bytes.map(|byte| byte as c_char) })
    }

    fn cuDeviceGetUuid_v2(out: *mut CUuuid, device: CUdevice) = result(cuDeviceGetUuid(out, device));

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) {
        get(device)?;
        put(bytes, Driver::get()?.config.device_memory)
    }

    fn cuDeviceGetAttribute(out: *mut c_int, attribute: c_uint, device: CUdevice)
        = put(out, device_attribute(attribute, physical(device)?)?);

    fn cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, device: CUdevice) {
        get(device)?;
        put(major, CAPABILITY[0]).and(put(minor, CAPABILITY[1]))
    }

    fn cuDeviceGetPCIBusId(out: *mut c_char, length: c_int, device: CUdevice) {
        let id = bus_id(physical(device)?);
        // A truncated id would be invalid.
        let length = usize::try_from(length).ok().filter(|&length| length > id.len());
        put_text(out, length.ok_or(CUDA_ERROR_INVALID_VALUE)?, id.as_bytes())
    }

    fn cuDeviceGetByPCIBusId(out: *mut CUdevice, text: *const c_char) {
        let driver = Driver::get()?;
        ensure(!text.is_null(), CUDA_ERROR_INVALID_VALUE)?;
        let text = CStr::from_ptr(text).to_str().unwrap_or_default().to_ascii_uppercase();
        // The domain and the function are optional.
        let is_named = |device: &CUdevice| {
            let Ok(id) = physical(*device).map(bus_id) else { return false };
            [&id[..], &id[5..], &id[..10], &id[5..10]].contains(&&text[..])
        };
        let device = (0..driver.visible.len() as CUdevice).find(is_named);
        let is_id = text.chars().all(|letter| letter.is_ascii_hexdigit() || letter == ':' || letter == '.');
        let none = if is_id { CUDA_ERROR_INVALID_DEVICE } else { CUDA_ERROR_INVALID_VALUE };
        put(out, device.ok_or(none)?)
    }

    fn cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice)
        = put(can, c_int::from(get(device)? != get(peer)?));

    fn cuDeviceGetP2PAttribute(out: *mut c_int, attribute: c_uint, device: CUdevice, peer: CUdevice) {
        ensure(get(device)? != get(peer)?, CUDA_ERROR_INVALID_DEVICE)?;
        const FIRST: c_uint = Peer::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK as c_uint;
        const LAST: c_uint = Peer::CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED as c_uint;
        ensure((FIRST..=LAST).contains(&attribute), CUDA_ERROR_INVALID_VALUE)?;
        put(out, c_int::from(attribute == Peer::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED as c_uint))
    }

    fn cuDevicePrimaryCtxRetain(out: *mut CUcontext, device: CUdevice) {
        let (_, mut state, device) = enter(device)?;
        let (id, flags) = (state.devices[device].primary, state.devices[device].primary_flags);
        put(out, id.pointer())?;
        if !state.contexts.contains_key(&id) {
            state.open_context(id, device, flags);
        }
        state.devices[device].retained += 1;
        Ok(())
    }

    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) {
        Driver::get()?;
        Current::check_is_no_function()?;
        let (driver, mut state, device) = enter(device)?;
        let retained = state.devices[device].retained.checked_sub(1).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        state.devices[device].retained = retained;
        if retained == 0 {
            let primary = state.devices[device].primary;
            // Another thread may retain it while this one waits.
            drop(driver.destroy_context(state, primary, |state| state.devices[device].retained == 0));
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxReset_v2(device: CUdevice) {
        Driver::get()?;
        Current::check_is_no_function()?;
        let (driver, state, device) = enter(device)?;
        let (primary, flags) = (state.devices[device].primary, state.devices[device].primary_flags);
        if !state.contexts.contains_key(&primary) {
            return Ok(());
        }
        let mut state = driver.destroy_context(state, primary, |_| true);
        // A context that is retained stays active, but empty.
        if state.devices[device].retained > 0 && !state.contexts.contains_key(&primary) {
            state.open_context(primary, device, flags);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint) {
        const SCHEDULING: c_uint = 7;
        const ALL_FLAGS: c_uint = 0xff;
        get(device)?;
        let is_valid = matches!(flags & SCHEDULING, 0 | 1 | 2 | 4) && flags & !ALL_FLAGS == 0;
        ensure(is_valid, CUDA_ERROR_INVALID_VALUE)?;
        let (_, mut state, device) = enter(device)?;
        state.devices[device].primary_flags = flags;
        let primary = state.devices[device].primary;
        if let Ok(context) = state.context(primary) {
            context.flags = flags;
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, active: *mut c_int) {
        let (_, state, device) = enter(device)?;
        let device = &state.devices[device];
        let is_active = state.contexts.contains_key(&device.primary);
        put(flags, device.primary_flags).and(put(active, c_int::from(is_active)))
    }

    fn cuDeviceGetDefaultMemPool(out: *mut CUmemoryPool, device: CUdevice) {
        let (_, state, device) = enter(device)?;
        put(out, state.devices[device].default_pool.pointer())
    }

    fn cuDeviceGetMemPool(out: *mut CUmemoryPool, device: CUdevice) {
        let (_, state, device) = enter(device)?;
        put(out, state.devices[device].pool.pointer())
    }

    fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) {
        let (_, mut state, device) = enter(device)?;
        let id = PoolId::of(pool);
        ensure(state.pools.get(&id).is_some_and(|pool| pool.device == device), CUDA_ERROR_INVALID_VALUE)?;
        state.devices[device].pool = id;
        Ok(())
    }
}
