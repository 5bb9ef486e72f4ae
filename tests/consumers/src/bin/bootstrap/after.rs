//! The worker with a communicator of libnccl.

#![allow(unsafe_code)] // Views of addresses, and a handle of another library.

use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream};
use libnccl::{Communicator, Config, DeviceSliceMut, Nccl, UniqueId};

use crate::blocks::Block;
use crate::owner::Owned;
use crate::result::Result;
use crate::worker::{self, Id};

pub(crate) struct Worker {
    nccl: Nccl,
    comm: Communicator,
}

impl worker::Worker for Worker {
    fn id() -> Result<Id> {
        Ok(*Nccl::load()?.unique_id()?.as_bytes())
    }

    fn join(context: &CudaContext, rank: usize, size: usize, id: Id) -> Result<Self> {
        let nccl = Nccl::load()?;
        let config = Config::new().max_ctas(8).timeout(Duration::from_secs(60));
        let comm = nccl.init_rank_on(context, size, rank, &UniqueId::from_bytes(id), &config)?;
        Ok(Self { nccl, comm })
    }

    fn broadcast(&self, blocks: &mut [Block], root: usize, stream: &CudaStream) -> Result {
        broadcast(&self.nccl, &self.comm, blocks, root, stream)
    }

    fn broadcast_with(
        owned: &Owned,
        blocks: &mut [Block],
        root: usize,
        stream: &CudaStream,
    ) -> Result<(usize, usize)> {
        let nccl = Nccl::load()?;
        // SAFETY: a live communicator of the same library, which nothing else uses meanwhile.
        let comm = unsafe { Communicator::borrow_raw(&nccl, owned.raw().cast()) }?;
        broadcast(&nccl, &comm, blocks, root, stream)?;
        Ok((comm.rank(), comm.size()))
    }

    fn end(self) -> Result {
        Ok(self.comm.destroy()?)
    }
}

fn broadcast(
    nccl: &Nccl,
    comm: &Communicator,
    blocks: &mut [Block],
    root: usize,
    stream: &CudaStream,
) -> Result {
    nccl.group(|g| {
        blocks.iter_mut().try_for_each(|block| g.broadcast_in_place(comm, bytes_of(block), root, stream))
    })?;
    Ok(())
}

fn bytes_of<'a>(block: &'a mut Block<'_>) -> DeviceSliceMut<'a, u8> {
    // SAFETY: memory of so many bytes, which is freed on the stream of the operations.
    unsafe { DeviceSliceMut::from_raw_parts(block.address().cast(), block.bytes()) }
}
