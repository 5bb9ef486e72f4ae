//! Memory pools.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags as AccessFlags, CUmemAccessDesc, CUmemAllocationType, CUmemLocation,
    CUmemLocationType, CUmemPool_attribute as Attribute, CUmemPoolProps, CUmemoryPool, CUresult, CUstream,
};

use super::{memory, put, unsupported};
use crate::driver::{Driver, State};
use crate::error::Result;
use crate::handle::PoolId;
use crate::pool::Pool;

fn find(state: &mut State, pool: CUmemoryPool) -> Result<(PoolId, &mut Pool)> {
    let id = PoolId::of(pool);
    state.pools.get_mut(&id).map(|pool| (id, pool)).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// Returns whether the value of an attribute is an `int`.
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
        let driver = Driver::get()?;
        if out.is_null() || properties.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let kind = number!((*properties).allocType);
        let place = number!((*properties).location.type_);
        let handles = number!((*properties).handleTypes);
        let id = (&raw const (*properties).location.id).read();
        if kind != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as c_uint
            || place != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_uint
        {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if handles != 0 {
            unsupported::say("cuMemPoolCreate with handle types");
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let device = driver.device(id)?;
        let mut state = driver.enter();
        let id = PoolId(state.next_handle());
        state.pools.insert(id, Pool::new(device, false));
        put(out, id.pointer())
    }

    fn cuMemPoolDestroy(pool: CUmemoryPool) {
        let mut state = Driver::get()?.enter();
        let (id, pool) = find(&mut state, pool)?;
        if pool.is_default {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
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
        if is_flag(code) {
            return put(out.cast(), set.unwrap_or(1) as c_int);
        }
        let value = match code {
            THRESHOLD => set.unwrap_or(0),
            RESERVED | USED => pool.used,
            RESERVED_HIGH | USED_HIGH => pool.high,
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        };
        put(out.cast::<u64>(), value)
    }

    fn cuMemPoolSetAttribute(pool: CUmemoryPool, code: c_uint, value: *mut c_void) {
        let mut state = Driver::get()?.enter();
        let (_, pool) = find(&mut state, pool)?;
        if value.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let value =
            if is_flag(code) { value.cast::<c_int>().read() as u64 } else { value.cast::<u64>().read() };
        match code {
            THRESHOLD => {}
            _ if is_flag(code) => {}
            // The highest numbers can be set back.
            RESERVED_HIGH | USED_HIGH if value == 0 => {
                pool.high = pool.used;
                return Ok(());
            }
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
        pool.attributes.insert(code, value);
        Ok(())
    }

    fn cuMemPoolTrimTo(pool: CUmemoryPool, _keep: usize) {
        // Nothing is kept that could be trimmed.
        find(&mut Driver::get()?.enter(), pool).map(|_| ())
    }

    fn cuMemPoolSetAccess(pool: CUmemoryPool, descriptions: *const CUmemAccessDesc, count: usize) {
        let driver = Driver::get()?;
        find(&mut driver.enter(), pool)?;
        if descriptions.is_null() && count > 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        for index in 0..count {
            driver.device((&raw const (*descriptions.add(index)).location.id).read())?;
        }
        // Every device can use all memory anyway.
        Ok(())
    }

    fn cuMemPoolGetAccess(out: *mut c_uint, pool: CUmemoryPool, location: *mut CUmemLocation) {
        let driver = Driver::get()?;
        find(&mut driver.enter(), pool)?;
        if location.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        driver.device((&raw const (*location).id).read())?;
        put(out, AccessFlags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as c_uint)
    }

    fn cuMemAllocFromPoolAsync(out: *mut CUdeviceptr, length: usize, pool: CUmemoryPool, stream: CUstream) {
        let (id, _) = find(&mut Driver::get()?.enter(), pool).map(|(id, pool)| (id, pool.device))?;
        memory::allocate_async("cuMemAllocFromPoolAsync", out, length, Some(id), stream)
    }
}
