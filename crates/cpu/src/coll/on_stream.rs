//! A call on a stream: the stream, and the memory that the call uses.
#![allow(unsafe_code)]

use std::ptr;

use crate::cuda::driver::{Access, Driver, Stream};
use crate::diag::error::Result;
use crate::shm::buffer::{ReadBuf, WriteBuf};

/// The stream of a call, and the accesses that the call will make.
#[derive(Debug)]
pub(crate) struct OnStream {
    driver: &'static Driver,
    pub(crate) stream: Stream,
    pub(crate) accesses: Vec<Access>,
}

impl OnStream {
    pub(crate) fn new(driver: &'static Driver, stream: Stream) -> Self {
        Self { driver, stream, accesses: vec![] }
    }

    /// Resolves a buffer that the call reads, which its caller passed as `what`: from the address of the program to that
    /// at which this process can access it.
    pub(crate) fn resolve_read(&mut self, what: &str, buffer: &mut ReadBuf) -> Result {
        let (address, length) = (buffer.start().addr(), buffer.length());
        if length == 0 {
            return Ok(());
        }
        let place = ptr::with_exposed_provenance(self.driver.resolve(what, address, length)?);
        // SAFETY: CUDA has as many bytes there, and the caller guaranteed that they stay allocated until the operation has
        // run.
        *buffer = unsafe { ReadBuf::of_caller(place, length) };
        self.accesses.push(Access::read(address, length));
        Ok(())
    }

    /// Resolves a buffer that the call writes, as [`resolve_read`](Self::resolve_read) does.
    pub(crate) fn resolve_write(&mut self, what: &str, buffer: &mut WriteBuf) -> Result {
        let (address, length) = (buffer.start().addr(), buffer.length());
        if length == 0 {
            return Ok(());
        }
        let place = ptr::with_exposed_provenance_mut(self.driver.resolve(what, address, length)?);
        // SAFETY: as in `resolve_read`.
        *buffer = unsafe { WriteBuf::of_caller(place, length) };
        self.accesses.push(Access::write(address, length));
        Ok(())
    }

    /// Notes that the call writes memory of another rank, and then tells it. CUDA leaves out what another process has.
    pub(crate) fn note_put(&mut self, to: &WriteBuf) {
        if to.length() > 0 {
            self.accesses.push(Access::put(to.start().addr(), to.length()));
        }
    }
}
