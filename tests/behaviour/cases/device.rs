//! The host functions of the device API, in the raw layer.
#![cfg(feature = "device-api")]

use libnccl::sys::device::{DeviceFunctions, ncclCommProperties_t, ncclDevComm_t, ncclDevCommRequirements_t};
use libnccl::{Backend, MemorySpace, Nccl, ResultCode, sys};

use super::common::{Case, cases, on_threads};

cases! {
    device_functions_present_match_their_release,
    null_communicator_in_device_api_is_invalid_argument,
}

/// The cases that need communicators of host memory.
pub(crate) const ON_HOST_MEMORY: &[Case] =
    &[("properties_match_the_communicator", properties_match_the_communicator)];

/// The CPU implementation has no device functions, but its shared object the one that is not for kernels.
fn device_functions_present_match_their_release(nccl: &Nccl) {
    let names = nccl.as_raw_device().present().map(|(name, _)| name);
    assert!(names.eq(DeviceFunctions::NAMES.iter().copied()));
    for (name, present) in nccl.as_raw_device().present() {
        let since = sys::since(name).unwrap();
        let expected = match nccl.memory_space() {
            MemorySpace::Device => since <= nccl.version().code(),
            _ => name == "ncclCommQueryProperties" && !matches!(nccl.backend(), Backend::InProcess { .. }),
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
    if let Some(slots) = functions.ncclLLA2ACalcSlots {
        // SAFETY: takes and answers numbers.
        assert!(unsafe { slots(16, 4) } > 0);
    }
}
