//! Memory of the program's own allocator, which gives addresses.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut};

use crate::result::Result;

/// Device memory that is divided into blocks of one length.
pub(crate) struct Blocks {
    memory: CudaSlice<u8>,
    stream: Arc<CudaStream>,
    block_bytes: usize,
}

/// A block; nothing else uses its memory.
pub(crate) struct Block<'a> {
    address: u64,
    bytes: usize,
    memory: std::marker::PhantomData<&'a mut Blocks>,
}

impl Blocks {
    pub(crate) fn new(
        stream: &Arc<CudaStream>,
        blocks: usize,
        block_bytes: usize,
        content: impl Fn(usize) -> u8,
    ) -> Result<Self> {
        let content: Vec<u8> = (0..blocks * block_bytes).map(content).collect();
        Ok(Self { memory: stream.clone_htod(&content)?, stream: stream.clone(), block_bytes })
    }

    /// Returns the blocks, to be used on the stream of the memory.
    pub(crate) fn blocks(&mut self) -> Vec<Block<'_>> {
        let (bytes, end) = (self.block_bytes, self.memory.len() as u64);
        let (address, _) = self.memory.device_ptr_mut(&self.stream);
        let blocks = (0..end).step_by(bytes);
        blocks
            .map(|offset| Block { address: address + offset, bytes, memory: std::marker::PhantomData })
            .collect()
    }

    pub(crate) fn read(&self, stream: &Arc<CudaStream>) -> Result<Vec<u8>> {
        Ok(stream.clone_dtoh(&self.memory)?)
    }
}

impl Block<'_> {
    pub(crate) fn address(&self) -> *mut c_void {
        self.address as *mut c_void
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}
