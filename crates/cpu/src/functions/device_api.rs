//! The host functions of the device API. No kernels run here, so there are no device communicators, and the functions that
//! only prepare kernels return an error. Properties, teams of ranks and addresses are the same as in NCCL.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{c_int, c_void};
use std::ptr;

use libnccl::sys::device::{
    LAYOUT_SINCE, ncclCftLeId, ncclCftTeamMode_t, ncclCommProperties_t, ncclDevComm_t,
    ncclDevCommRequirements_t, ncclDevResourceRequirements_t, ncclGinBarrierHandle_t,
    ncclGinConnectionType_t, ncclGinType_t, ncclLLA2AHandle_t, ncclLsaBarrierHandle_t, ncclMultimemHandle_t,
    ncclTeam_t,
};
use libnccl::sys::{NCCL_API_MAGIC, NCCL_VERSION_CODE, ncclComm_t, ncclResult_t, ncclWindow_t};

use super::guard::{check_not_null, check_rank, guard, guard_comm, guard_of_all, write_out};
use crate::comm::communicator::{Communicator, RankInfo};
use crate::comm::handle;
use crate::diag::error::{Error, Result};
use crate::shm::call_context::CallContext;

/// The first version. Each of the following versions added fields.
const FIRST: u32 = 22_902;
const COMM_HASH_SINCE: u32 = 23_102;
const CFT_SINCE: u32 = 23_203;

/// Fills in the properties: no kernel support, and no network that a GPU could use.
pub(super) unsafe extern "C" fn ncclCommQueryProperties(
    comm: ncclComm_t,
    props: *mut ncclCommProperties_t,
) -> ncclResult_t {
    guard_comm(comm, |communicator| {
        let context = communicator.check_ready()?;
        let RankInfo { state, rank, id, .. } = communicator.rank_info()?;
        check_not_null(props, "the properties")?;
        // SAFETY: the C declaration's contract: the first fields exist in every version.
        let (magic, version) = unsafe { ((*props).magic, (*props).version) };
        check_header(magic, version)?;
        let (ranks, device) = (state.ranks() as c_int, communicator.device);
        // NVML lists all devices in the order of their buses, which start at 1.
        let nvml_device =
            communicator.known_driver().map_or(Ok(device), |driver| Ok(driver.bus(device)? - 1))?;
        // SAFETY: the C declaration's contract: the struct has the fields of the version that it specifies.
        unsafe {
            (*props).rank = *rank as c_int;
            (*props).nRanks = ranks;
            (*props).cudaDev = device;
            (*props).nvmlDev = nvml_device;
            (*props).deviceApiSupport = false;
            (*props).multimemSupport = false;
            if version < LAYOUT_SINCE {
                // These versions store a one-byte type here.
                (&raw mut (*props).multimemSupport).cast::<u8>().add(1).write(0);
                return Ok(());
            }
            (*props).ginType = ncclGinType_t::NCCL_GIN_TYPE_NONE;
            (*props).nLsaTeams = ranks / lsa(communicator, context).nRanks;
            (*props).hostRmaSupport = true;
            (*props).railedGinType = ncclGinType_t::NCCL_GIN_TYPE_NONE;
            if version >= COMM_HASH_SINCE {
                (*props).commHash = id.hash.get();
                (*props).ginMinStride = 0;
                (*props).ginConnectionType = ncclGinConnectionType_t::NCCL_GIN_CONNECTION_NONE;
                (*props).ginSupport = [false; 64];
                (*props).devCommRuntimeVersionSize = 0;
            }
            if version >= CFT_SINCE {
                (*props).cftSupport = false;
                (*props).cftMulticastSupport = false;
                (*props).cftCountedSupport = false;
            }
        }
        Ok(())
    })
}

/// Checks the struct's header, which the caller initialized.
fn check_header(magic: u32, version: u32) -> Result {
    if magic != NCCL_API_MAGIC {
        return Err(Error::usage(format!(
            "invalid magic {magic:#x} of the properties: start from NCCL_COMM_PROPERTIES_INITIALIZER"
        )));
    }
    if !(FIRST..=NCCL_VERSION_CODE).contains(&version) {
        return Err(Error::usage(format!(
            "invalid version {version} of the properties: expected {FIRST} to {NCCL_VERSION_CODE}"
        )));
    }
    Ok(())
}

pub(super) unsafe extern "C" fn ncclTeamWorld(comm: ncclComm_t) -> ncclTeam_t {
    of_communicator(comm, |_, context| world(context))
}

pub(super) unsafe extern "C" fn ncclTeamLsa(comm: ncclComm_t) -> ncclTeam_t {
    of_communicator(comm, lsa)
}

pub(super) unsafe extern "C" fn ncclTeamRail(comm: ncclComm_t) -> ncclTeam_t {
    of_communicator(comm, |communicator, context| {
        let (world, size) = (world(context), lsa(communicator, context).nRanks);
        ncclTeam_t { nRanks: world.nRanks / size, rank: world.rank / size, stride: size }
    })
}

/// The team returned without a valid communicator, as in NCCL on failure.
const NONE: ncclTeam_t = ncclTeam_t { nRanks: 0, rank: 0, stride: 0 };

fn of_communicator(
    comm: ncclComm_t,
    find: impl Fn(&Communicator, CallContext<'_>) -> ncclTeam_t,
) -> ncclTeam_t {
    let mut team = NONE;
    guard_comm(comm, |communicator| -> Result {
        team = find(communicator, communicator.check_ready()?);
        Ok(())
    });
    team
}

fn world(CallContext { state, rank, .. }: CallContext<'_>) -> ncclTeam_t {
    ncclTeam_t { nRanks: state.ranks() as c_int, rank: rank as c_int, stride: 1 }
}

/// Returns the team of the ranks whose memory this process can address. It cannot address device memory of other processes.
fn lsa(communicator: &Communicator, context: CallContext<'_>) -> ncclTeam_t {
    if communicator.known_driver().is_none() || context.state.is_one_process() {
        return world(context);
    }
    ncclTeam_t { nRanks: 1, rank: 0, stride: 1 }
}

pub(super) unsafe extern "C" fn ncclDevCommCreate(
    comm: ncclComm_t,
    reqs: *const ncclDevCommRequirements_t,
    outDevComm: *mut ncclDevComm_t,
) -> ncclResult_t {
    guard_of_all("ncclDevCommCreate", comm, |communicator| -> Result {
        communicator.check_ready()?;
        check_not_null(reqs, "the requirements")?;
        check_not_null(outDevComm, "the device communicator")?;
        Err(Error::usage(
            "a device communicator is for kernels, and the CPU backend runs none: see deviceApiSupport of \
             ncclCommProperties_t, which is false",
        ))
    })
}

pub(super) unsafe extern "C" fn ncclDevCommDestroy(
    comm: ncclComm_t,
    devComm: *const ncclDevComm_t,
) -> ncclResult_t {
    guard_comm(comm, |communicator| -> Result {
        communicator.check_ready()?;
        check_not_null(devComm, "the device communicator")?;
        Err(Error::usage(
            "there is no device communicator to destroy: the CPU backend runs no kernels, and ncclDevCommCreate \
             makes none",
        ))
    })
}

/// Stores the address of a byte in a rank's part, or NULL, as in NCCL, if the rank is not in the caller's LSA team. The caller may use the
/// address until the part is deregistered.
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
        let mut address = ptr::null_mut();
        if peer == context.rank || lsa(&communicator, context) == world(context) {
            let _access = context.state.begin_access(context.rank)?;
            window.check_open(context.state, peer)?;
            let found = window.address(peer, offset).ok_or_else(|| {
                let length = window.part(peer).length();
                Error::argument(format!(
                    "invalid offset {offset}: the window of rank {peer} has {length} bytes"
                ))
            })?;
            address = ptr::with_exposed_provenance_mut(found);
        }
        // SAFETY: the C declaration's contract.
        unsafe { write_out(outPtr, address) }
    })
}

/// Stores NULL, as NCCL does on a system without multicast.
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

/// Defines functions that only prepare kernels. They fail with a last error and return a value that NCCL returns on failure.
macro_rules! define_refused {
    ($($name:ident($($argument:ty),*) -> $returned:ty = $failure:expr;)*) => {$(
        pub(super) unsafe extern "C" fn $name($(_: $argument),*) -> $returned {
            guard(|| -> Result {
                Err(Error::argument(concat!(
                    stringify!($name),
                    " is for kernels, and the CPU backend runs none: see deviceApiSupport of ncclCommProperties_t, which is false",
                )))
            });
            $failure
        }
    )*};
}

const REFUSED: ncclResult_t = ncclResult_t::ncclInvalidArgument;

define_refused! {
    ncclTeamCft(ncclComm_t, ncclCftTeamMode_t) -> ncclTeam_t = NONE;
    ncclTeamCftMultimem(ncclComm_t) -> ncclTeam_t = NONE;
    ncclTeamRankToWorld(ncclComm_t, ncclTeam_t, c_int) -> c_int = -1;
    ncclTeamRankToLsa(ncclComm_t, ncclTeam_t, c_int) -> c_int = -1;
    ncclLsaBarrierCreateRequirement(
        ncclTeam_t, c_int, *mut ncclLsaBarrierHandle_t, *mut ncclDevResourceRequirements_t
    ) -> ncclResult_t = REFUSED;
    ncclGinBarrierCreateRequirement(
        ncclComm_t, ncclTeam_t, c_int, *mut ncclGinBarrierHandle_t, *mut ncclDevResourceRequirements_t
    ) -> ncclResult_t = REFUSED;
    ncclLLA2ACalcSlots(c_int, c_int) -> c_int = -1;
    ncclLLA2ACreateRequirement(
        c_int, c_int, *mut ncclLLA2AHandle_t, *mut ncclDevResourceRequirements_t
    ) -> ncclResult_t = REFUSED;
    ncclGetLsaDevicePointer(ncclWindow_t, usize, c_int, *mut *mut c_void) -> ncclResult_t = REFUSED;
    ncclGetMultimemDevicePointer(
        ncclWindow_t, usize, ncclMultimemHandle_t, *mut *mut c_void
    ) -> ncclResult_t = REFUSED;
    ncclGetMultimemDeviceLeInfo(ncclWindow_t, usize, *mut ncclCftLeId, *mut usize) -> ncclResult_t = REFUSED;
    ncclGetCftDeviceLeInfo(
        ncclWindow_t, usize, c_int, ncclTeam_t, *mut ncclCftLeId, *mut usize
    ) -> ncclResult_t = REFUSED;
    ncclGetPeerDeviceLeInfo(
        ncclWindow_t, usize, c_int, *mut ncclCftLeId, *mut usize
    ) -> ncclResult_t = REFUSED;
}
