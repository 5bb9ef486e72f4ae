//! The operation with a communicator of libnccl.

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::CudaStream;
use libnccl::{Communicator, Config, Nccl, ReduceOp, UniqueId};

use crate::op::{CustomOp1, Id, Op, Result, Storage};

pub(crate) fn id() -> Result<Id> {
    Ok(Nccl::load()?.unique_id()?.to_c_chars())
}

pub(crate) struct AllReduce {
    comm: Mutex<Communicator>,
    stream: Arc<CudaStream>,
}

impl AllReduce {
    pub(crate) fn new_op(stream: Arc<CudaStream>, rank: usize, world_size: usize, id: Id) -> Result<Op> {
        let (id, config) = (UniqueId::from_c_chars(id), Config::new());
        let comm = Nccl::load()?.init_rank_on(stream.context(), world_size, rank, &id, &config)?;
        Ok(Arc::new(Self { comm: Mutex::new(comm), stream }))
    }
}

impl CustomOp1 for AllReduce {
    fn name(&self) -> &'static str {
        "all_reduce"
    }

    fn forward(&self, input: &Storage) -> Result<Storage> {
        let comm = self.comm.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match input {
            Storage::F32(input) => {
                let mut sum = self.stream.alloc_zeros::<f32>(input.len())?;
                comm.all_reduce(input, &mut sum, ReduceOp::Sum, &self.stream)?;
                Storage::F32(sum)
            }
            Storage::F64(input) => {
                let mut sum = self.stream.alloc_zeros::<f64>(input.len())?;
                comm.all_reduce(input, &mut sum, ReduceOp::Sum, &self.stream)?;
                Storage::F64(sum)
            }
        })
    }
}
