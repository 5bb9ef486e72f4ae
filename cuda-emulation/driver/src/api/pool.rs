//! Memory pools.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags as AccessFlags, CUmemAccessDesc, CUmemAllocationType, CUmemLocation,
    CUmemLocationType, CUmemPool_attribute as Attribute, CUmemPoolProps, CUmemoryPool, CUstream,
};

use super::{memory, put, refuse};
use crate::allocation::Pool;
use crate::driver::Driver;
use crate::error::{Result, ensure};
use crate::handle::PoolId;
use crate::state::State;

fn find(state: &mut State, pool: CUmemoryPool) -> Result<(PoolId, &mut Pool)> {
    let id = PoolId::of(pool);
    state.pools.get_mut(&id).map(|pool| (id, pool)).ok_or(CUDA_ERROR_INVALID_VALUE)
}

fn is_flag(code: c_uint) -> bool {
    code == Attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES as c_uint
        || code == Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC as c_uint
        || code == Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES as c_uint
}

const THRESHOLD: c_uint = Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD as c_uint;
const RESERVED: c_uint = Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT as c_uint;
const RESERVED_HIGH: c_uint = Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH as c_uint;
const USED: c_uint = Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT as c_uint;
const USED_HIGH: c_uint = Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH as c_uint;

api! {
    fn cuMemPoolCreate(out: *mut CUmemoryPool, properties: *const CUmemPoolProps) {
        const PINNED: c_uint = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as c_uint;
        const DEVICE: c_uint = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_uint;
        let driver = Driver::get()?;
        ensure(!out.is_null() && !properties.is_null(), CUDA_ERROR_INVALID_VALUE)?;
        let kind = number!((*properties).allocType);
        let place = number!((*properties).location.type_);
        let handles = number!((*properties).handleTypes);
        let id = (&raw const (*properties).location.id).read();
        ensure(kind == PINNED && place == DEVICE, CUDA_ERROR_INVALID_VALUE)?;
        if handles != 0 {
            return refuse("cuMemPoolCreate with handle types");
        }
        let device = driver.device(id)?;
        let mut state = driver.enter();
        let id = PoolId(state.next_handle());
        state.pools.insert(id, Pool { device, ..Pool::default() });
        put(out, id.pointer())
    }

    fn cuMemPoolDestroy(pool: CUmemoryPool) {
        let mut state = Driver::get()?.enter();
        let (id, pool) = find(&mut state, pool)?;
        ensure(!pool.is_default, CUDA_ERROR_INVALID_VALUE)?;
        state.pools.remove(&id);
        for device in state.devices.iter_mut().filter(|device| device.pool == id) {
            device.pool = device.default_pool;
        }
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: CUmemoryPool, code: c_uint, out: *mut c_void) {
        let mut state = Driver::get()?.enter();
        let (_, pool) = find(&mut state, pool)?;
        let set = pool.attributes.get(&code).copied();
        let value = match code {
            _ if is_flag(code) => return put(out.cast(), set.unwrap_or(1) as c_int),
            THRESHOLD => set.unwrap_or(0),
            RESERVED | USED => pool.used,
            RESERVED_HIGH | USED_HIGH => pool.high,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        put(out.cast::<u64>(), value)
    }

    fn cuMemPoolSetAttribute(pool: CUmemoryPool, code: c_uint, value: *mut c_void) {
        let mut state = Driver::get()?.enter();
        let (_, pool) = find(&mut state, pool)?;
        ensure(!value.is_null(), CUDA_ERROR_INVALID_VALUE)?;
        let is_flag = is_flag(code);
        let value = if is_flag { value.cast::<c_int>().read() as u64 } else { value.cast::<u64>().read() };
        match code {
            // The high-water marks can only be reset.
            RESERVED_HIGH | USED_HIGH if value == 0 => pool.high = pool.used,
            _ if is_flag || code == THRESHOLD => drop(pool.attributes.insert(code, value)),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    fn cuMemPoolTrimTo(pool: CUmemoryPool, _keep: usize) {
        // A pool keeps no memory.
        find(&mut Driver::get()?.enter(), pool).map(|_| ())
    }

    fn cuMemPoolSetAccess(pool: CUmemoryPool, descriptions: *const CUmemAccessDesc, count: usize) {
        let driver = Driver::get()?;
        find(&mut driver.enter(), pool)?;
        ensure(!descriptions.is_null() || count == 0, CUDA_ERROR_INVALID_VALUE)?;
        for index in 0..count {
            driver.device((&raw const (*descriptions.add(index)).location.id).read())?;
        }
        // All devices can access all memory.
        Ok(())
    }

    fn cuMemPoolGetAccess(out: *mut c_uint, pool: CUmemoryPool, location: *mut CUmemLocation) {
        let driver = Driver::get()?;
        find(&mut driver.enter(), pool)?;
        ensure(!location.is_null(), CUDA_ERROR_INVALID_VALUE)?;
        driver.device((&raw const (*location).id).read())?;
        put(out, AccessFlags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as c_uint)
    }

    fn cuMemAllocFromPoolAsync(out: *mut CUdeviceptr, length: usize, pool: CUmemoryPool, stream: CUstream) {
        let (id, _) = find(&mut Driver::get()?.enter(), pool)?;
        memory::allocate_async("cuMemAllocFromPoolAsync", out, length, Some(id), stream)
    }
}
