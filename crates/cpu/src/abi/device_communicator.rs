//! Device communicators, with which kernels communicate: there are no kernels here, and so none of them. What they would need is
//! computed as NCCL does.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::c_int;

use libnccl::sys::device::{
    ncclDevComm_t, ncclDevCommRequirements_t, ncclDevResourceRequirements_t, ncclGinBarrierHandle_t,
    ncclLLA2AHandle_t, ncclLsaBarrierHandle_t, ncclTeam_t,
};
use libnccl::sys::{ncclComm_t, ncclResult_t};

use super::ffi_guard::{check_not_null, guard, guard_of_all, write_out};
use crate::comm::handle;
use crate::diag::error::{Error, Result};

/// Bytes of a word of a barrier, and of a slot of an all-to-all.
const WORD: usize = 4;
const SLOT: usize = 16;

/// Words of a barrier beside one for each rank.
const BARRIER_WORDS: usize = 3;

/// Bytes of an element that a slot of an all-to-all holds.
const SLOT_DATA: c_int = 8;

pub(super) unsafe extern "C" fn ncclDevCommCreate(
    comm: ncclComm_t,
    reqs: *const ncclDevCommRequirements_t,
    outDevComm: *mut ncclDevComm_t,
) -> ncclResult_t {
    guard_of_all("ncclDevCommCreate", comm, || -> Result {
        handle::get(comm)?.check_ready()?;
        check_not_null(reqs, "the requirements")?;
        check_not_null(outDevComm, "the device communicator")?;
        Err(Error::usage(
            "a device communicator is for kernels, and the CPU implementation runs none: see deviceApiSupport of \
             ncclCommProperties_t, which is false",
        ))
    })
}

pub(super) unsafe extern "C" fn ncclDevCommDestroy(
    comm: ncclComm_t,
    devComm: *const ncclDevComm_t,
) -> ncclResult_t {
    guard(|| -> Result {
        handle::get(comm)?.check_ready()?;
        check_not_null(devComm, "the device communicator")?;
        Err(Error::usage(
            "there is no device communicator to destroy: the CPU implementation runs no kernels, and ncclDevCommCreate \
             makes none",
        ))
    })
}

pub(super) unsafe extern "C" fn ncclLsaBarrierCreateRequirement(
    team: ncclTeam_t,
    nBarriers: c_int,
    outHandle: *mut ncclLsaBarrierHandle_t,
    outReq: *mut ncclDevResourceRequirements_t,
) -> ncclResult_t {
    guard(|| {
        let [ranks, barriers] = [natural("nRanks", team.nRanks)?, natural("nBarriers", nBarriers)?];
        check_not_null(outHandle, "the handle")?;
        let size = product([BARRIER_WORDS + ranks, barriers, WORD])?;
        // SAFETY: the C declaration's contract: not NULL, so it can be written.
        let outBufferHandle = unsafe {
            (*outHandle).nBarriers = nBarriers;
            &raw mut (*outHandle).bufHandle
        };
        let requirements = ncclDevResourceRequirements_t {
            bufferSize: size,
            bufferAlign: WORD,
            outBufferHandle,
            ..Default::default()
        };
        // SAFETY: the C declaration's contract.
        unsafe { write_out(outReq, requirements) }
    })
}

/// Fills in the requirements. As in NCCL, they depend on the team alone, and the communicator may be NULL.
pub(super) unsafe extern "C" fn ncclGinBarrierCreateRequirement(
    _: ncclComm_t,
    team: ncclTeam_t,
    nBarriers: c_int,
    outHandle: *mut ncclGinBarrierHandle_t,
    outReq: *mut ncclDevResourceRequirements_t,
) -> ncclResult_t {
    guard(|| {
        let signals = product([natural("nRanks", team.nRanks)?, natural("nBarriers", nBarriers)?])?;
        check_not_null(outHandle, "the handle")?;
        let requirements = ncclDevResourceRequirements_t {
            ginSignalCount: c_int::try_from(signals).map_err(|_| too_large())?,
            // SAFETY: the C declaration's contract: not NULL, so it is a handle.
            outGinSignalStart: unsafe { &raw mut (*outHandle).signal0 },
            ..Default::default()
        };
        // SAFETY: the C declaration's contract.
        unsafe { write_out(outReq, requirements) }
    })
}

/// Returns the number of slots, as NCCL computes it of any numbers.
pub(super) unsafe extern "C" fn ncclLLA2ACalcSlots(maxElts: c_int, maxEltSize: c_int) -> c_int {
    maxElts.wrapping_mul(maxEltSize.wrapping_add(SLOT_DATA - 1) / SLOT_DATA)
}

pub(super) unsafe extern "C" fn ncclLLA2ACreateRequirement(
    nBlocks: c_int,
    nSlots: c_int,
    outHandle: *mut ncclLLA2AHandle_t,
    outReq: *mut ncclDevResourceRequirements_t,
) -> ncclResult_t {
    guard(|| {
        let [blocks, slots] = [natural("nBlocks", nBlocks)?, natural("nSlots", nSlots)?];
        check_not_null(outHandle, "the handle")?;
        // A block has two sets of slots, which take turns, and one slot for its state.
        let size = product([blocks, 1 + 2 * slots, SLOT])?;
        // SAFETY: the C declaration's contract: not NULL, so it can be written.
        let outBufferHandle = unsafe {
            (*outHandle).nSlots = slots as u32;
            &raw mut (*outHandle).bufHandle
        };
        let requirements = ncclDevResourceRequirements_t {
            bufferSize: size,
            bufferAlign: SLOT,
            outBufferHandle,
            ..Default::default()
        };
        // SAFETY: the C declaration's contract.
        unsafe { write_out(outReq, requirements) }
    })
}

fn natural(what: &str, number: c_int) -> Result<usize> {
    usize::try_from(number)
        .map_err(|_| Error::argument(format!("invalid {what} {number}: it has to be at least 0")))
}

fn product<const N: usize>(factors: [usize; N]) -> Result<usize> {
    factors.into_iter().try_fold(1_usize, usize::checked_mul).ok_or_else(too_large)
}

fn too_large() -> Error {
    Error::argument("the requirements are larger than their type")
}
