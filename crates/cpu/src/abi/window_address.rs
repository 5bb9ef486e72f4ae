//! Addresses of the ranks' parts of a window. The communicator is that of the window.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{c_int, c_void};
use std::ptr;

use libnccl::sys::device::{ncclCftLeId, ncclMultimemHandle_t, ncclTeam_t};
use libnccl::sys::{ncclResult_t, ncclWindow_t};

use super::ffi_guard::{check_not_null, check_rank, guard, write_out};
use super::team;
use crate::coll::window::Window;
use crate::comm::handle;
use crate::diag::error::{Error, Result};
use crate::shm::call_context::CallContext;

/// Stores the address of a rank's part, or NULL, as in NCCL, if the rank is not in the caller's LSA team.
pub(super) unsafe extern "C" fn ncclGetPeerDevicePointer(
    window: ncclWindow_t,
    offset: usize,
    peer: c_int,
    outPtr: *mut *mut c_void,
) -> ncclResult_t {
    guard(|| {
        let (communicator, window) = handle::with_window(window)?;
        let context = communicator.check_ready()?;
        let peer = check_rank(peer, context.state.ranks(), "peer")?;
        let lsa = team::lsa(&communicator, context);
        let first = context.rank - lsa.rank as usize;
        let reached = (first..first + lsa.nRanks as usize).contains(&peer);
        let address = if reached { address(&window, context, peer, offset)? } else { ptr::null_mut() };
        // SAFETY: the C declaration's contract.
        unsafe { write_out(outPtr, address) }
    })
}

pub(super) unsafe extern "C" fn ncclGetLsaDevicePointer(
    window: ncclWindow_t,
    offset: usize,
    lsaRank: c_int,
    outPtr: *mut *mut c_void,
) -> ncclResult_t {
    guard(|| {
        let (communicator, window) = handle::with_window(window)?;
        let context = communicator.check_ready()?;
        let lsa = team::lsa(&communicator, context);
        let peer = context.rank - lsa.rank as usize + check_rank(lsaRank, lsa.nRanks as usize, "lsaRank")?;
        let address = address(&window, context, peer, offset)?;
        // SAFETY: the C declaration's contract.
        unsafe { write_out(outPtr, address) }
    })
}

/// Stores NULL, as NCCL does where a system has no multicast.
pub(super) unsafe extern "C" fn ncclGetLsaMultimemDevicePointer(
    window: ncclWindow_t,
    _: usize,
    outPtr: *mut *mut c_void,
) -> ncclResult_t {
    guard(|| {
        handle::with_window(window)?;
        // SAFETY: the C declaration's contract.
        unsafe { write_out(outPtr, ptr::null_mut()) }
    })
}

/// Stores NULL, as NCCL does where a system has no multicast.
pub(super) unsafe extern "C" fn ncclGetMultimemDevicePointer(
    window: ncclWindow_t,
    _: usize,
    multimem: ncclMultimemHandle_t,
    outPtr: *mut *mut c_void,
) -> ncclResult_t {
    guard(|| {
        handle::with_window(window)?;
        check_not_null(multimem.mcBasePtr, "multicast memory")?;
        // SAFETY: the C declaration's contract.
        unsafe { write_out(outPtr, ptr::null_mut()) }
    })
}

pub(super) unsafe extern "C" fn ncclGetMultimemDeviceLeInfo(
    window: ncclWindow_t,
    _: usize,
    _: *mut ncclCftLeId,
    _: *mut usize,
) -> ncclResult_t {
    guard(|| no_endpoint(window))
}

pub(super) unsafe extern "C" fn ncclGetCftDeviceLeInfo(
    window: ncclWindow_t,
    _: usize,
    _: c_int,
    _: ncclTeam_t,
    _: *mut ncclCftLeId,
    _: *mut usize,
) -> ncclResult_t {
    guard(|| no_endpoint(window))
}

pub(super) unsafe extern "C" fn ncclGetPeerDeviceLeInfo(
    window: ncclWindow_t,
    _: usize,
    _: c_int,
    _: *mut ncclCftLeId,
    _: *mut usize,
) -> ncclResult_t {
    guard(|| no_endpoint(window))
}

/// Returns the address of `offset` bytes into the part of a rank of the LSA team. It is the caller's until that is deregistered.
fn address(window: &Window, context: CallContext<'_>, peer: usize, offset: usize) -> Result<*mut c_void> {
    let CallContext { state, rank, .. } = context;
    let _access = state.begin_access(rank)?;
    window.check_open(state, peer)?;
    let address = window.address(peer, offset).ok_or_else(|| {
        let length = window.part(peer).length();
        Error::argument(format!("invalid offset {offset}: the window of rank {peer} has {length} bytes"))
    })?;
    Ok(ptr::with_exposed_provenance_mut(address))
}

fn no_endpoint(window: ncclWindow_t) -> Result {
    handle::with_window(window)?;
    Err(Error::argument(
        "logical endpoints are for kernels, and the CPU implementation runs none: see cftSupport of ncclCommProperties_t, which \
         is false",
    ))
}
