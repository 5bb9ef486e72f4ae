//! The party with a communicator of libnccl.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaSlice, CudaStream};
use libnccl::{Communicator, Config, Nccl};

use crate::party::{self, Result};

pub(crate) struct Party {
    nccl: Nccl,
    comm: Mutex<Communicator>,
    stream: Arc<CudaStream>,
}

impl party::Party for Party {
    fn id() -> Result<String> {
        Ok(Nccl::load()?.unique_id()?.to_string())
    }

    fn join(stream: &Arc<CudaStream>, rank: usize, size: usize, id: &str) -> Result<Self> {
        let nccl = Nccl::load()?;
        let comm = nccl.init_rank_on(stream.context(), size, rank, &id.parse()?, &Config::new())?;
        Ok(Self { nccl, comm: Mutex::new(comm), stream: stream.clone() })
    }

    fn exchange(
        &self,
        shares: &[CudaSlice<u32>],
        received: &mut [CudaSlice<u32>],
        part: Range<usize>,
    ) -> Result {
        let comm = &*self.comm.lock().unwrap_or_else(PoisonError::into_inner);
        let (rank, size) = (comm.rank(), comm.size());
        self.nccl.group(|g| {
            for (share, received) in shares.iter().zip(received) {
                g.send(comm, share.slice(part.clone()), (rank + 1) % size, &self.stream)?;
                g.recv(comm, received.slice_mut(part.clone()), (rank + size - 1) % size, &self.stream)?;
            }
            Ok(())
        })?;
        Ok(())
    }
}
