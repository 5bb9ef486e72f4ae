//! The operation with the communicator of cudarc.

#![allow(unsafe_code)] // `Send` and `Sync`.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::nccl::result::NcclError;
use cudarc::nccl::{Comm, Id, ReduceOp};

use crate::op::{self, CustomOp1, Op, Result, Storage};

pub(crate) fn id() -> Result<op::Id> {
    Ok(*Id::new().map_err(describe)?.internal())
}

pub(crate) struct AllReduce {
    comm: Comm,
}

// SAFETY: none. Two threads that call at once are in NCCL with one communicator.
unsafe impl Send for AllReduce {}
// SAFETY: as above.
unsafe impl Sync for AllReduce {}

impl AllReduce {
    pub(crate) fn new_op(stream: Arc<CudaStream>, rank: usize, world_size: usize, id: op::Id) -> Result<Op> {
        // The device of the stream has to be current.
        stream.context().bind_to_thread()?;
        let comm = Comm::from_rank(stream, rank, world_size, Id::uninit(id)).map_err(describe)?;
        Ok(Arc::new(Self { comm }))
    }
}

impl CustomOp1 for AllReduce {
    fn name(&self) -> &'static str {
        "all_reduce"
    }

    fn forward(&self, input: &Storage) -> Result<Storage> {
        let stream = self.comm.stream();
        Ok(match input {
            Storage::F32(input) => {
                let mut sum = stream.alloc_zeros::<f32>(input.len())?;
                self.comm.all_reduce(input, &mut sum, &ReduceOp::Sum).map_err(describe)?;
                Storage::F32(sum)
            }
            Storage::F64(input) => {
                let mut sum = stream.alloc_zeros::<f64>(input.len())?;
                self.comm.all_reduce(input, &mut sum, &ReduceOp::Sum).map_err(describe)?;
                Storage::F64(sum)
            }
        })
    }
}

/// Returns a text for an error, which has none.
fn describe(NcclError(code): NcclError) -> String {
    format!("NCCL returned {code:?}")
}
