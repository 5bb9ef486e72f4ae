//! Memory pools of stream-ordered allocation.

use std::ffi::{c_uint, c_void};

use cudarc::driver::sys::{CUmemAccessDesc, CUmemLocation, CUmemPoolProps};
use cudarc::runtime::sys::{cudaMemAccessDesc, cudaMemLocation, cudaMemPool_t, cudaMemPoolProps};

use crate::driver;

// Passed on as they are.
const _: () = {
    assert!(size_of::<cudaMemPoolProps>() == size_of::<CUmemPoolProps>());
    assert!(size_of::<cudaMemAccessDesc>() == size_of::<CUmemAccessDesc>());
    assert!(size_of::<cudaMemLocation>() == size_of::<CUmemLocation>());
};

api! {
    fn cudaMemPoolCreate(pool: *mut cudaMemPool_t, properties: *const cudaMemPoolProps) {
        driver::get()?.cuMemPoolCreate(pool.cast(), properties.cast())
    }

    fn cudaMemPoolDestroy(pool: cudaMemPool_t) {
        driver::get()?.cuMemPoolDestroy(pool.cast())
    }

    fn cudaMemPoolTrimTo(pool: cudaMemPool_t, keep: usize) {
        driver::get()?.cuMemPoolTrimTo(pool.cast(), keep)
    }

    fn cudaMemPoolGetAttribute(pool: cudaMemPool_t, attribute: c_uint, value: *mut c_void) {
        driver::get()?.cuMemPoolGetAttribute(pool.cast(), attribute, value)
    }

    fn cudaMemPoolSetAttribute(pool: cudaMemPool_t, attribute: c_uint, value: *mut c_void) {
        driver::get()?.cuMemPoolSetAttribute(pool.cast(), attribute, value)
    }

    fn cudaMemPoolSetAccess(pool: cudaMemPool_t, access: *const cudaMemAccessDesc, count: usize) {
        driver::get()?.cuMemPoolSetAccess(pool.cast(), access.cast(), count)
    }

    fn cudaMemPoolGetAccess(access: *mut c_uint, pool: cudaMemPool_t, location: *mut cudaMemLocation) {
        driver::get()?.cuMemPoolGetAccess(access, pool.cast(), location.cast())
    }
}
