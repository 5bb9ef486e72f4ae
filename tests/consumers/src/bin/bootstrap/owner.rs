//! Another library, which has a communicator of its own. It is the same in both forms.

#![allow(unsafe_code)] // Functions of NCCL.

use std::sync::Arc;

use cudarc::driver::CudaContext;
use cudarc::nccl::{result, sys};

use crate::result::Result;

/// Its communicator, which it destroys.
pub(crate) struct Owned {
    comm: sys::ncclComm_t,
    /// The context that NCCL has found current.
    _context: Arc<CudaContext>,
}

pub(crate) fn id() -> Result<sys::ncclUniqueId> {
    Ok(result::get_uniqueid().map_err(describe)?)
}

impl Owned {
    pub(crate) fn join(rank: usize, size: usize, id: sys::ncclUniqueId) -> Result<Self> {
        let context = CudaContext::new(rank)?;
        context.bind_to_thread()?;
        let mut comm = std::ptr::null_mut();
        // SAFETY: an out-parameter, and the same arguments on all ranks.
        unsafe { result::comm_init_rank(&raw mut comm, size as i32, id, rank as i32) }.map_err(describe)?;
        Ok(Self { comm, _context: context })
    }

    /// Returns the handle, which is live as long as `self`.
    pub(crate) fn raw(&self) -> sys::ncclComm_t {
        self.comm
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the last use of a live communicator.
        let _ = unsafe { result::comm_destroy(self.comm) };
    }
}

fn describe(result::NcclError(code): result::NcclError) -> String {
    format!("NCCL returned {code:?}")
}
