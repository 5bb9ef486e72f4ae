//! The host functions of the device API, in the raw layer.
#![cfg(feature = "device-api")]

use libnccl::buffer::MemorySpace;
use libnccl::error::ResultCode;
use libnccl::sys::device::{
    DeviceFunctions, ncclCommProperties_t, ncclDevComm_t, ncclDevCommRequirements_t,
    ncclDevResourceRequirements_t, ncclLsaBarrierHandle_t, ncclTeam_t,
};
use libnccl::{Backend, Nccl, sys};

use super::common::{Case, cases, on_threads};

cases! {
    device_functions_present_match_their_version,
    null_communicator_in_device_api_is_invalid_argument,
    requirements_match_nccl,
}

/// The cases that need communicators of host memory.
pub(crate) const ON_HOST_MEMORY: &[Case] =
    &[("properties_match_the_communicator", properties_match_the_communicator)];

/// The CPU backend has no device functions, but its shared object has.
fn device_functions_present_match_their_version(nccl: &Nccl) {
    let names = nccl.as_raw_device().present().map(|(name, _)| name);
    assert!(names.eq(DeviceFunctions::NAMES.iter().copied()));
    for (name, present) in nccl.as_raw_device().present() {
        let since = sys::since(name).unwrap();
        let expected = match nccl.memory_space() {
            MemorySpace::Device => since <= nccl.version().code(),
            _ => !matches!(nccl.backend(), Backend::InProcess { .. }),
        };
        assert_eq!(present, expected, "{name}, since {since}, in {}", nccl.version());
    }
}

fn properties_match_the_communicator(nccl: &Nccl) {
    if nccl.as_raw_device().ncclCommQueryProperties.is_none() {
        return;
    }
    let all = on_threads(nccl, 3, |comm| (comm.rank(), comm.device(), comm.properties().unwrap()));
    for (rank, device, found) in all {
        assert_eq!((found.rank, found.size, found.cuda_device), (rank, 3, device), "{found:?}");
        let kernels = (found.device_api, found.multimem);
        assert_eq!((kernels, found.host_rma), ((false, false), Some(true)), "{found:?}");
    }
}

fn null_communicator_in_device_api_is_invalid_argument(nccl: &Nccl) {
    let functions = nccl.as_raw_device();
    let version = nccl.version().code();
    let null = std::ptr::null_mut();
    let mut properties = ncclCommProperties_t::initializer(version);
    if let Some(query) = functions.ncclCommQueryProperties {
        // SAFETY: NCCL checks the communicator for null; the struct has its layout.
        assert_eq!(unsafe { query(null, &raw mut properties) }, ResultCode::INVALID_ARGUMENT.as_raw());
        assert_eq!(properties, ncclCommProperties_t::initializer(version));
    }
    // Earlier releases crash.
    if version >= sys::device::LAYOUT_SINCE
        && let Some(create) = functions.ncclDevCommCreate
    {
        let requirements = ncclDevCommRequirements_t::initializer(version);
        let mut made = ncclDevComm_t::default();
        // SAFETY: as above.
        let code = unsafe { create(null, &raw const requirements, &raw mut made) };
        assert_eq!(code, ResultCode::INVALID_ARGUMENT.as_raw());
    }
}

/// The CPU backend refuses this function, which only kernels need.
fn requirements_match_nccl(nccl: &Nccl) {
    let space = nccl.parameters().and_then(|parameters| parameters.get::<String>("LIBNCCL_MEMORY_SPACE"));
    if matches!(space, Ok(Some(_))) {
        return;
    }
    let Some(create) = nccl.as_raw_device().ncclLsaBarrierCreateRequirement else { return };
    for (ranks, barriers, bytes) in [(1, 1, 16), (3, 13, 312), (8, 39, 1716), (3, 0, 0)] {
        let (mut handle, none) =
            (ncclLsaBarrierHandle_t::default(), ncclDevResourceRequirements_t::default());
        let mut made = none;
        let team = ncclTeam_t { nRanks: ranks, rank: 0, stride: 1 };
        // SAFETY: writes to the two structs.
        let code = unsafe { create(team, barriers, &raw mut handle, &raw mut made) };
        let handle_place = &raw mut handle.bufHandle;
        let expected = ncclDevResourceRequirements_t {
            bufferSize: bytes,
            bufferAlign: 4,
            outBufferHandle: handle_place,
            ..none
        };
        assert_eq!((code, made), (ResultCode::SUCCESS.as_raw(), expected), "{barriers} barriers");
        assert_eq!(handle.nBarriers, barriers);
    }
}
