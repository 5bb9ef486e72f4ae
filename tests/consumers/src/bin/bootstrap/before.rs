//! The worker with NCCL's functions, and its options by hand.

#![allow(unsafe_code)] // Functions of NCCL.

use std::ffi::c_char;
use std::ptr;

use cudarc::driver::{CudaContext, CudaStream};
use cudarc::nccl::sys::{self, ncclDataType_t, ncclResult_t};

use crate::blocks::Block;
use crate::owner::Owned;
use crate::result::Result;
use crate::worker::{self, Id};

/// `NCCL_CONFIG_UNDEF_INT`
const UNDEFINED: i32 = i32::MIN;

pub(crate) struct Worker {
    comm: sys::ncclComm_t,
}

// SAFETY: one thread at a time calls.
unsafe impl Send for Worker {}

impl worker::Worker for Worker {
    fn id() -> Result<Id> {
        let mut id = sys::ncclUniqueId { internal: [0; 128] };
        // SAFETY: an out-parameter.
        check(unsafe { sys::ncclGetUniqueId(&raw mut id) })?;
        Ok(id.internal.map(|char| char as u8))
    }

    fn join(context: &CudaContext, rank: usize, size: usize, id: Id) -> Result<Self> {
        context.bind_to_thread()?;
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte as c_char) };
        let mut config = config();
        let mut comm = ptr::null_mut();
        // SAFETY: an out-parameter, options of the release that they name, and the same arguments on all ranks.
        unsafe {
            check(sys::ncclCommInitRankConfig(&raw mut comm, size as i32, id, rank as i32, &raw mut config))?;
        }
        Ok(Self { comm })
    }

    fn broadcast(&self, blocks: &mut [Block], root: usize, stream: &CudaStream) -> Result {
        broadcast(self.comm, blocks, root, stream)
    }

    fn broadcast_with(
        owned: &Owned,
        blocks: &mut [Block],
        root: usize,
        stream: &CudaStream,
    ) -> Result<(usize, usize)> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: a live communicator, and out-parameters.
        unsafe {
            check(sys::ncclCommUserRank(owned.raw(), &raw mut rank))?;
            check(sys::ncclCommCount(owned.raw(), &raw mut size))?;
        }
        broadcast(owned.raw(), blocks, root, stream)?;
        Ok((rank as usize, size as usize))
    }

    fn end(self) -> Result {
        // SAFETY: the last uses of a live communicator.
        unsafe {
            check(sys::ncclCommFinalize(self.comm))?;
            check(sys::ncclCommDestroy(self.comm))
        }
    }
}

fn broadcast(comm: sys::ncclComm_t, blocks: &mut [Block], root: usize, stream: &CudaStream) -> Result {
    // SAFETY: has no arguments.
    check(unsafe { sys::ncclGroupStart() })?;
    for block in blocks {
        // SAFETY: memory of so many bytes, which is freed on the same stream.
        unsafe {
            check(sys::ncclBcast(
                block.address(),
                block.bytes(),
                ncclDataType_t::ncclUint8,
                root as i32,
                comm,
                stream.cu_stream().cast(),
            ))?;
        }
    }
    // SAFETY: has no arguments.
    check(unsafe { sys::ncclGroupEnd() })
}

/// Returns `NCCL_CONFIG_INITIALIZER`, with at most 8 blocks of threads.
fn config() -> sys::ncclConfig_t {
    sys::ncclConfig_t {
        size: size_of::<sys::ncclConfig_t>(),
        magic: 0xcafe_beef,
        version: 2 * 10_000 + 30 * 100 + 4,
        blocking: UNDEFINED,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: 8,
        netName: ptr::null(),
        splitShare: UNDEFINED,
        trafficClass: UNDEFINED,
        commName: ptr::null(),
        collnetEnable: UNDEFINED,
        CTAPolicy: UNDEFINED,
        shrinkShare: UNDEFINED,
        nvlsCTAs: UNDEFINED,
        nChannelsPerNetPeer: UNDEFINED,
        nvlinkCentricSched: UNDEFINED,
        graphUsageMode: UNDEFINED,
        numRmaCtx: UNDEFINED,
        maxP2pPeers: UNDEFINED,
    }
}

fn check(code: ncclResult_t) -> Result {
    if code == ncclResult_t::ncclSuccess { Ok(()) } else { Err(format!("NCCL returned {code:?}").into()) }
}
