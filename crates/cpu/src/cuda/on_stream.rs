//! A call on a stream: the stream, and the memory that the call uses.

use std::ffi::c_void;
use std::ptr;

use libnccl::sys::cudaStream_t;

use crate::cuda::driver::{Access, Driver, Stream};
use crate::diag::error::Result;

/// The stream of a call, and the accesses that the call will make.
#[derive(Debug)]
pub(crate) struct OnStream {
    driver: &'static Driver,
    pub(crate) stream: Stream,
    pub(crate) accesses: Vec<Access>,
}

impl OnStream {
    pub(crate) fn new(driver: &'static Driver, stream: cudaStream_t) -> Self {
        Self { driver, stream: Stream::new(stream), accesses: vec![] }
    }

    /// Returns the place at which `length` bytes that the call reads can be accessed; the address itself for none.
    pub(crate) fn read(&mut self, what: &str, start: *const c_void, length: usize) -> Result<*const u8> {
        if length == 0 {
            return Ok(start.cast());
        }
        self.accesses.push(Access::read(start.addr(), length));
        Ok(ptr::with_exposed_provenance(self.driver.resolve(what, start.addr(), length)?))
    }

    /// Returns the place at which `length` bytes that the call writes can be accessed; the address itself for none.
    pub(crate) fn write(&mut self, what: &str, start: *mut c_void, length: usize) -> Result<*mut u8> {
        if length == 0 {
            return Ok(start.cast());
        }
        self.accesses.push(Access::write(start.addr(), length));
        Ok(ptr::with_exposed_provenance_mut(self.driver.resolve(what, start.addr(), length)?))
    }
}
