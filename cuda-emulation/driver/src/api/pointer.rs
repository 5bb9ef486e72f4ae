//! Attributes of addresses.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::CUpointer_attribute::*;
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{CUdeviceptr, CUmemorytype, CUpointer_attribute as Attribute};

use super::{put, refuse};
use crate::allocation::{Allocation, Kind};
use crate::current::Current;
use crate::driver::Driver;
use crate::error::{Result, ensure};
use crate::state::State;
use crate::virtual_memory::READ_WRITE;

/// The value of an attribute, with its C type.
#[derive(Debug, Clone, Copy)]
enum Value {
    Int(c_int),
    Bool(bool),
    Long(u64),
}

impl Value {
    /// # Safety
    ///
    /// `out` is null, which is an error, or valid for a write of the type that CUDA documents.
    unsafe fn put(self, out: *mut c_void) -> Result<()> {
        // SAFETY: the caller promises that it is valid.
        unsafe {
            match self {
                Self::Int(value) => put(out.cast(), value),
                Self::Bool(value) => put(out.cast(), value),
                Self::Long(value) => put(out.cast(), value),
            }
        }
    }
}

fn attribute(code: c_uint, state: &State, allocation: &Allocation, address: CUdeviceptr) -> Result<Value> {
    let Allocation { kind, backing, .. } = *allocation;
    let is_host = matches!(kind, Kind::Pinned | Kind::Registered);
    let memory = if is_host { CUmemorytype::CU_MEMORYTYPE_HOST } else { CUmemorytype::CU_MEMORYTYPE_DEVICE };
    Ok(match code {
        c if c == CU_POINTER_ATTRIBUTE_CONTEXT as c_uint => Value::Long(allocation.context.0),
        c if c == CU_POINTER_ATTRIBUTE_MEMORY_TYPE as c_uint => Value::Int(memory as c_int),
        c if c == CU_POINTER_ATTRIBUTE_DEVICE_POINTER as c_uint => Value::Long(address),
        c if c == CU_POINTER_ATTRIBUTE_HOST_POINTER as c_uint && kind != Kind::Device => Value::Long(address),
        c if c == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as c_uint => Value::Bool(false),
        c if c == CU_POINTER_ATTRIBUTE_BUFFER_ID as c_uint => Value::Long(allocation.id),
        c if c == CU_POINTER_ATTRIBUTE_IS_MANAGED as c_uint => Value::Bool(kind == Kind::Managed),
        c if c == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as c_uint => Value::Int(allocation.device as c_int),
        c if c == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE as c_uint => {
            Value::Bool(allocation.export().is_some())
        }
        c if c == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as c_uint => Value::Long(allocation.address),
        c if c == CU_POINTER_ATTRIBUTE_RANGE_SIZE as c_uint => Value::Long(allocation.length as u64),
        c if c == CU_POINTER_ATTRIBUTE_MAPPED as c_uint => Value::Bool(true),
        c if c == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES as c_uint => {
            Value::Long(backing.map_or(0, |_| allocation.flags.into()))
        }
        c if c == CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE as c_uint => Value::Bool(false),
        c if c == CU_POINTER_ATTRIBUTE_ACCESS_FLAGS as c_uint => {
            let device = Current::get().and_then(|context| state.contexts.get(&context));
            let device = device.map_or(allocation.device, |context| context.device);
            Value::Int(backing.map_or(READ_WRITE, |_| state.permission(allocation, device)) as c_int)
        }
        c if c == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE as c_uint => {
            Value::Long(allocation.pool.map_or(0, |pool| pool.0))
        }
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

fn zero(code: c_uint) -> Result<Value> {
    const FLAGS: [Attribute; 5] = [
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        CU_POINTER_ATTRIBUTE_MAPPED,
        CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
    ];
    Ok(match code {
        c if c == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as c_uint => Value::Int(-2),
        c if c == CU_POINTER_ATTRIBUTE_MEMORY_TYPE as c_uint => Value::Int(0),
        c if c == CU_POINTER_ATTRIBUTE_ACCESS_FLAGS as c_uint => Value::Int(0),
        c if FLAGS.iter().any(|&flag| flag as c_uint == c) => Value::Bool(false),
        c if (1..=CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE as c_uint).contains(&c) => Value::Long(0),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

api! {
    fn cuPointerGetAttribute(out: *mut c_void, code: c_uint, address: CUdeviceptr) {
        let state = Driver::get()?.enter();
        let allocation = state.allocations.containing(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        attribute(code, &state, allocation, address)?.put(out)
    }

    fn cuPointerGetAttributes(
        count: c_uint,
        codes: *mut c_uint,
        outs: *mut *mut c_void,
        address: CUdeviceptr,
    ) {
        let state = Driver::get()?.enter();
        ensure(count == 0 || !(codes.is_null() || outs.is_null()), CUDA_ERROR_INVALID_VALUE)?;
        let allocation = state.allocations.containing(address);
        for index in 0..count as usize {
            let (code, out) = (codes.add(index).read(), outs.add(index).read());
            // Attributes that the memory does not have are zero, of the same size.
            let value = match allocation {
                Some(allocation) => attribute(code, &state, allocation, address).unwrap_or(zero(code)?),
                None => zero(code)?,
            };
            value.put(out)?;
        }
        Ok(())
    }

    fn cuPointerSetAttribute(value: *const c_void, code: c_uint, address: CUdeviceptr) {
        let state = Driver::get()?.enter();
        // Copies of such memory would have to be synchronous, which is the only thing that can be set.
        let is_known = code == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as c_uint
            && state.allocations.containing(address).is_some();
        ensure(!value.is_null() && is_known, CUDA_ERROR_INVALID_VALUE)?;
        refuse("cuPointerSetAttribute")
    }
}
