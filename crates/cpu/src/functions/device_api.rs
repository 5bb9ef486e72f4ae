//! The host functions of the device API. No kernels run here, so there are no device communicators. Sizes, teams and addresses are computed
//! as in NCCL.
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

use super::guard::{check_not_null, check_rank, guard, guard_of_all, write_out};
use crate::comm::communicator::{Communicator, RankInfo};
use crate::comm::handle;
use crate::comm::window::Window;
use crate::diag::error::{Error, Result};
use crate::shm::call_context::CallContext;

/// The versions that added fields.
const FIRST: u32 = 22_902;
const COMM_HASH_SINCE: u32 = 23_102;
const CFT_SINCE: u32 = 23_203;

/// Fills in the properties: no kernel support, and no network that a GPU could use.
pub(super) unsafe extern "C" fn ncclCommQueryProperties(
    comm: ncclComm_t,
    props: *mut ncclCommProperties_t,
) -> ncclResult_t {
    guard(|| {
        let communicator = handle::get(comm)?;
        let context = communicator.check_ready()?;
        let RankInfo { state, rank, id } = communicator.rank_info()?;
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
            (*props).nLsaTeams = ranks / lsa(&communicator, context).nRanks;
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
    of_communicator(comm, |communicator, context| outer(world(context), lsa(communicator, context).nRanks))
}

/// Returns a team of the caller alone, or its outer team: there are no logical endpoints.
pub(super) unsafe extern "C" fn ncclTeamCft(comm: ncclComm_t, mode: ncclCftTeamMode_t) -> ncclTeam_t {
    of_communicator(comm, |communicator, context| match mode {
        ncclCftTeamMode_t::NCCL_CFT_TEAM_FLAT => ALONE,
        ncclCftTeamMode_t::NCCL_CFT_TEAM_HIER_MULTIMEM => outer(ALONE, ALONE.nRanks),
        ncclCftTeamMode_t::NCCL_CFT_TEAM_HIER_LSA => outer(ALONE, lsa(communicator, context).nRanks),
        _ => NONE,
    })
}

pub(super) unsafe extern "C" fn ncclTeamCftMultimem(comm: ncclComm_t) -> ncclTeam_t {
    of_communicator(comm, |_, _| ALONE)
}

pub(super) unsafe extern "C" fn ncclTeamRankToWorld(
    comm: ncclComm_t,
    team: ncclTeam_t,
    rank: c_int,
) -> c_int {
    number_in(of_communicator(comm, |_, context| world(context)), team, rank)
}

pub(super) unsafe extern "C" fn ncclTeamRankToLsa(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> c_int {
    number_in(of_communicator(comm, lsa), team, rank)
}

/// The team returned without a valid communicator, as in NCCL on failure.
const NONE: ncclTeam_t = ncclTeam_t { nRanks: 0, rank: 0, stride: 0 };

const ALONE: ncclTeam_t = ncclTeam_t { nRanks: 1, rank: 0, stride: 1 };

fn of_communicator(
    comm: ncclComm_t,
    find: impl Fn(&Communicator, CallContext<'_>) -> ncclTeam_t,
) -> ncclTeam_t {
    let mut team = NONE;
    guard(|| -> Result {
        let communicator = handle::get(comm)?;
        team = find(&communicator, communicator.check_ready()?);
        Ok(())
    });
    team
}

fn world(CallContext { state, rank, .. }: CallContext<'_>) -> ncclTeam_t {
    ncclTeam_t { nRanks: state.ranks() as c_int, rank: rank as c_int, stride: 1 }
}

fn lsa(communicator: &Communicator, context: CallContext<'_>) -> ncclTeam_t {
    let state = context.state;
    let size = if communicator.driver().is_none() || state.is_one_process() {
        state.ranks()
    } else {
        let processes: Vec<_> = (0..state.ranks()).map(|rank| state.process(rank)).collect();
        common_length(&processes)
    };
    ncclTeam_t { nRanks: size as c_int, rank: (context.rank % size) as c_int, stride: 1 }
}

/// Returns the greatest length that divides all runs of equal neighbors.
fn common_length<T: PartialEq>(all: &[T]) -> usize {
    all.chunk_by(PartialEq::eq).map(<[T]>::len).fold(0, greatest_common_divisor)
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Divides `team` into parts of `size` ranks, and returns the ranks at the caller's position in each part.
fn outer(team: ncclTeam_t, size: c_int) -> ncclTeam_t {
    ncclTeam_t { nRanks: team.nRanks / size, rank: team.rank / size, stride: team.stride * size }
}

/// Converts rank `rank` of `team` to its rank in `own`. The caller is a member of both teams. As in NCCL, the numbers are not checked.
/// Returns -1 without a communicator.
fn number_in(own: ncclTeam_t, team: ncclTeam_t, rank: c_int) -> c_int {
    let distance = rank.wrapping_sub(team.rank).wrapping_mul(team.stride);
    if own == NONE { -1 } else { own.rank.wrapping_add(distance) }
}

/// Bytes of a barrier's word, and of an all-to-all's slot.
const WORD: usize = 4;
const SLOT: usize = 16;

/// Words of a barrier in addition to one per rank.
const BARRIER_WORDS: usize = 3;

/// Bytes of an element in an all-to-all's slot.
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
            "a device communicator is for kernels, and the CPU backend runs none: see deviceApiSupport of \
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
            "there is no device communicator to destroy: the CPU backend runs no kernels, and ncclDevCommCreate \
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
        let bufferSize = product([BARRIER_WORDS + ranks, barriers, WORD])?;
        // SAFETY: the C declaration's contract: the pointer is not NULL, so it can be written.
        let outBufferHandle = unsafe {
            (*outHandle).nBarriers = nBarriers;
            &raw mut (*outHandle).bufHandle
        };
        let bufferAlign = WORD;
        let requirements =
            ncclDevResourceRequirements_t { bufferSize, bufferAlign, outBufferHandle, ..Default::default() };
        // SAFETY: the C declaration's contract.
        unsafe { write_out(outReq, requirements) }
    })
}

/// Fills in the requirements. As in NCCL, they depend only on the team, and the communicator may be NULL.
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
            // SAFETY: the C declaration's contract: the pointer is not NULL, so it points to a handle.
            outGinSignalStart: unsafe { &raw mut (*outHandle).signal0 },
            ..Default::default()
        };
        // SAFETY: the C declaration's contract.
        unsafe { write_out(outReq, requirements) }
    })
}

/// Returns the number of slots. As in NCCL, the arguments are not checked.
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
        // A block has two sets of slots, which alternate, and one slot for its state.
        let bufferSize = product([blocks, 1 + 2 * slots, SLOT])?;
        // SAFETY: the C declaration's contract: the pointer is not NULL, so it can be written.
        let outBufferHandle = unsafe {
            (*outHandle).nSlots = slots as u32;
            &raw mut (*outHandle).bufHandle
        };
        let bufferAlign = SLOT;
        let requirements =
            ncclDevResourceRequirements_t { bufferSize, bufferAlign, outBufferHandle, ..Default::default() };
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
        let lsa = lsa(&communicator, context);
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
        let lsa = lsa(&communicator, context);
        let peer = context.rank - lsa.rank as usize + check_rank(lsaRank, lsa.nRanks as usize, "lsaRank")?;
        let address = address(&window, context, peer, offset)?;
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

/// Stores NULL, as NCCL does on a system without multicast.
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

/// Returns the address of byte `offset` in the part of a rank of the LSA team. The caller may use it until the part is deregistered.
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
        "logical endpoints are for kernels, and the CPU backend runs none: see cftSupport of ncclCommProperties_t, which \
         is false",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lsa_team_of_processes_is_of_one_size_and_in_one_process() {
        for (processes, expected) in [
            ("aaaa", 4),
            ("aabb", 2),
            ("aaaabb", 2),
            ("aaabb", 1),
            ("abab", 1),
            ("aabbaa", 2),
            ("aaaaaabbbbbbcccccc", 6),
            ("aaaaaabbbcccccccccccc", 3),
        ] {
            assert_eq!(common_length(processes.as_bytes()), expected, "{processes}");
        }
    }
}
