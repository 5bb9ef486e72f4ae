//! The properties of a communicator.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::c_int;

use libnccl::sys::device::{LAYOUT_SINCE, ncclCommProperties_t, ncclGinConnectionType_t, ncclGinType_t};
use libnccl::sys::{NCCL_API_MAGIC, NCCL_VERSION_CODE, ncclComm_t, ncclResult_t};

use super::ffi_guard::{check_not_null, guard};
use super::team;
use crate::comm::communicator::RankInfo;
use crate::comm::handle;
use crate::diag::error::{Error, Result};

/// The releases that added fields.
const FIRST: u32 = 22_902;
const COMM_HASH_SINCE: u32 = 23_102;
const CFT_SINCE: u32 = 23_203;

/// Fills in the properties. There is nothing for kernels, and no network that a GPU could use.
pub(super) unsafe extern "C" fn ncclCommQueryProperties(
    comm: ncclComm_t,
    props: *mut ncclCommProperties_t,
) -> ncclResult_t {
    guard(|| {
        let communicator = handle::get(comm)?;
        let context = communicator.check_ready()?;
        let RankInfo { state, rank, id } = communicator.rank_info()?;
        check_not_null(props, "the properties")?;
        // SAFETY: the C declaration's contract: the first fields are those of any release.
        let (magic, version) = unsafe { ((*props).magic, (*props).version) };
        check(magic, version)?;
        let (ranks, device) = (state.ranks() as c_int, communicator.device());
        // NVML lists all devices in the order of their buses, which begin with 1.
        let nvml_device =
            communicator.known_driver().map_or(Ok(device), |driver| Ok(driver.bus(device)? - 1))?;
        // SAFETY: the C declaration's contract: it has the fields of the release that it names.
        unsafe {
            (*props).rank = *rank as c_int;
            (*props).nRanks = ranks;
            (*props).cudaDev = device;
            (*props).nvmlDev = nvml_device;
            (*props).deviceApiSupport = false;
            (*props).multimemSupport = false;
            if version < LAYOUT_SINCE {
                // The type of one byte that these releases have here.
                (&raw mut (*props).multimemSupport).cast::<u8>().add(1).write(0);
                return Ok(());
            }
            (*props).ginType = ncclGinType_t::NCCL_GIN_TYPE_NONE;
            (*props).nLsaTeams = ranks / team::lsa(&communicator, context).nRanks;
            (*props).hostRmaSupport = true;
            (*props).railedGinType = ncclGinType_t::NCCL_GIN_TYPE_NONE;
            if version >= COMM_HASH_SINCE {
                (*props).commHash = id.short_number();
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

/// Checks what the caller has put into the struct.
fn check(magic: u32, version: u32) -> Result {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::TABLE;
    use std::mem::offset_of;
    use std::ptr;

    /// Calls `act` with a communicator of one rank.
    fn with_communicator(act: impl FnOnce(ncclComm_t)) {
        let mut comm = ptr::null_mut();
        let (init, destroy) = (TABLE.ncclCommInitAll.unwrap(), TABLE.ncclCommDestroy.unwrap());
        // SAFETY: room for one handle, and no list of devices.
        assert_eq!(unsafe { init(&raw mut comm, 1, ptr::null()) }, ncclResult_t::ncclSuccess);
        act(comm);
        // SAFETY: the communicator, which is not used any more.
        assert_eq!(unsafe { destroy(comm) }, ncclResult_t::ncclSuccess);
    }

    #[test]
    fn older_release_gets_its_fields_alone() {
        const LENGTH: usize = size_of::<ncclCommProperties_t>();
        with_communicator(|comm| {
            for (version, end) in [
                (22_902, offset_of!(ncclCommProperties_t, multimemSupport) + 2),
                (22_907, offset_of!(ncclCommProperties_t, commHash)),
                (23_003, offset_of!(ncclCommProperties_t, commHash)),
                (23_102, offset_of!(ncclCommProperties_t, cftSupport)),
                (23_203, LENGTH),
            ] {
                let mut memory = [u64::MAX; LENGTH / 8];
                let props: *mut ncclCommProperties_t = memory.as_mut_ptr().cast();
                // SAFETY: the memory has room for the struct and its alignment.
                unsafe {
                    ((*props).magic, (*props).version) = (NCCL_API_MAGIC, version);
                    assert_eq!(ncclCommQueryProperties(comm, props), ncclResult_t::ncclSuccess);
                    assert_eq!(((*props).rank, (*props).nRanks), (0, 1));
                }
                let bytes: Vec<u8> = memory.iter().flat_map(|word| word.to_ne_bytes()).collect();
                assert!(bytes[end..].iter().all(|byte| *byte == 0xff), "{version}: {bytes:x?}");
                assert_eq!(bytes[offset_of!(ncclCommProperties_t, multimemSupport)], 0);
            }
        });
    }

    #[test]
    fn properties_of_no_release_are_refused() {
        with_communicator(|comm| {
            let full = ncclCommProperties_t::initializer(NCCL_VERSION_CODE);
            for (magic, version, expected) in [
                (0, NCCL_VERSION_CODE, ncclResult_t::ncclInvalidUsage),
                (NCCL_API_MAGIC, NCCL_VERSION_CODE + 1, ncclResult_t::ncclInvalidUsage),
                (NCCL_API_MAGIC, 0, ncclResult_t::ncclInvalidUsage),
            ] {
                let given = ncclCommProperties_t { magic, version, ..full };
                let mut props = given;
                // SAFETY: a whole struct.
                assert_eq!(unsafe { ncclCommQueryProperties(comm, &raw mut props) }, expected);
                assert_eq!(props, given);
            }
            // SAFETY: NULL is checked.
            let code = unsafe { ncclCommQueryProperties(comm, ptr::null_mut()) };
            assert_eq!(code, ncclResult_t::ncclInvalidArgument);
        });
    }
}
