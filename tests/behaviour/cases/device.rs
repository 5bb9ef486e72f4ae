//! The host functions of the device API, in the raw layer.
#![cfg(feature = "device-api")]

use libnccl::buffer::MemorySpace;
use libnccl::error::ResultCode;
use libnccl::sys::device::{
    DeviceFunctions, ncclCommProperties_t, ncclDevComm_t, ncclDevCommRequirements_t,
    ncclDevResourceRequirements_t, ncclGinBarrierHandle_t, ncclLLA2AHandle_t, ncclLsaBarrierHandle_t,
    ncclTeam_t,
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

/// The CPU backend refuses these functions, which only kernels need.
fn requirements_match_nccl(nccl: &Nccl) {
    let space = nccl.parameters().and_then(|parameters| parameters.get::<String>("LIBNCCL_MEMORY_SPACE"));
    if matches!(space, Ok(Some(_))) {
        return;
    }
    let functions = nccl.as_raw_device();
    let none = ncclDevResourceRequirements_t::default();
    let team = |ranks| ncclTeam_t { nRanks: ranks, rank: 0, stride: 1 };
    let check = |code, made, expected: ncclDevResourceRequirements_t, what: &str| {
        assert_eq!((code, made), (ResultCode::SUCCESS.as_raw(), expected), "{what}");
    };
    if let Some(slots) = functions.ncclLLA2ACalcSlots {
        for (elements, bytes, expected) in
            [(16, 4, 16), (7, 8, 7), (7, 9, 14), (17, 24, 51), (0, 8, 0), (9, 0, 0), (9, -8, 0), (-1, 17, -3)]
        {
            // SAFETY: takes and returns numbers.
            assert_eq!(unsafe { slots(elements, bytes) }, expected, "{elements} of {bytes} bytes");
        }
    }
    if let Some(create) = functions.ncclLsaBarrierCreateRequirement {
        for (ranks, barriers, bytes) in [(1, 1, 16), (3, 13, 312), (8, 39, 1716), (3, 0, 0)] {
            let (mut handle, mut made) = (ncclLsaBarrierHandle_t::default(), none);
            // SAFETY: writes to the two structs.
            let code = unsafe { create(team(ranks), barriers, &raw mut handle, &raw mut made) };
            let offset = &raw mut handle.bufHandle;
            let buffer = ncclDevResourceRequirements_t { bufferSize: bytes, bufferAlign: 4, ..none };
            check(
                code,
                made,
                ncclDevResourceRequirements_t { outBufferHandle: offset, ..buffer },
                "barriers",
            );
            assert_eq!(handle.nBarriers, barriers);
        }
    }
    if let Some(create) = functions.ncclLLA2ACreateRequirement {
        for (blocks, slots, bytes) in [(1, 13, 432), (3, 26, 2544), (2, 0, 32), (0, 5, 0)] {
            let (mut handle, mut made) = (ncclLLA2AHandle_t::default(), none);
            // SAFETY: writes to the two structs.
            let code = unsafe { create(blocks, slots, &raw mut handle, &raw mut made) };
            let offset = &raw mut handle.bufHandle;
            let buffer = ncclDevResourceRequirements_t { bufferSize: bytes, bufferAlign: 16, ..none };
            check(code, made, ncclDevResourceRequirements_t { outBufferHandle: offset, ..buffer }, "slots");
            assert_eq!(handle.nSlots, slots as u32);
        }
    }
    // Earlier versions need a buffer.
    if nccl.version().code() >= sys::device::LAYOUT_SINCE
        && let Some(create) = functions.ncclGinBarrierCreateRequirement
    {
        for (ranks, barriers, signals) in [(1, 1, 1), (4, 13, 52), (7, 39, 273), (7, 0, 0)] {
            let (mut handle, mut made) = (ncclGinBarrierHandle_t::default(), none);
            let null = std::ptr::null_mut();
            // SAFETY: writes to the two structs, and ignores the communicator.
            let code = unsafe { create(null, team(ranks), barriers, &raw mut handle, &raw mut made) };
            let first = &raw mut handle.signal0;
            let expected =
                ncclDevResourceRequirements_t { ginSignalCount: signals, outGinSignalStart: first, ..none };
            check(code, made, expected, "signals");
        }
    }
}
