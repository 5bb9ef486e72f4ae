//! The properties that the device API's host functions return. `crates/cpu-so/tests/c/device_api.c` has the other functions.

use std::mem::offset_of;
use std::ptr;

use libnccl::sys::device::ncclCommProperties_t;
use libnccl::sys::{NCCL_API_MAGIC, NCCL_VERSION_CODE, ncclResult_t};

use crate::common::{ARGUMENT, Comm, Mode, OK, USAGE, init};

fn query(comm: Comm, props: *mut ncclCommProperties_t) -> ncclResult_t {
    let function = libnccl_cpu::DEVICE_TABLE.ncclCommQueryProperties.unwrap();
    // SAFETY: NULL, or memory with the size and alignment of the struct.
    unsafe { function(comm.0, props) }
}

#[test]
fn older_version_gets_only_its_fields() {
    const LENGTH: usize = size_of::<ncclCommProperties_t>();
    let comm = init(Mode::Group, 1)[0];
    for (version, end) in [
        (22_902, offset_of!(ncclCommProperties_t, multimemSupport) + 2),
        (22_907, offset_of!(ncclCommProperties_t, commHash)),
        (23_003, offset_of!(ncclCommProperties_t, commHash)),
        (23_102, offset_of!(ncclCommProperties_t, cftSupport)),
        (23_203, LENGTH),
    ] {
        let mut memory = [u64::MAX; LENGTH / 8];
        let props: *mut ncclCommProperties_t = memory.as_mut_ptr().cast();
        // SAFETY: the memory has the size and alignment of the struct.
        unsafe {
            ((*props).magic, (*props).version) = (NCCL_API_MAGIC, version);
            assert_eq!(query(comm, props), OK);
            assert_eq!(((*props).rank, (*props).nRanks), (0, 1));
        }
        let bytes: Vec<u8> = memory.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert!(bytes[end..].iter().all(|byte| *byte == 0xff), "{version}: {bytes:x?}");
        assert_eq!(bytes[offset_of!(ncclCommProperties_t, multimemSupport)], 0);
    }
    comm.destroy();
}

#[test]
fn properties_of_unknown_versions_are_refused() {
    let comm = init(Mode::Group, 1)[0];
    let full = ncclCommProperties_t::initializer(NCCL_VERSION_CODE);
    for (magic, version, expected) in [
        (0, NCCL_VERSION_CODE, USAGE),
        (NCCL_API_MAGIC, NCCL_VERSION_CODE + 1, USAGE),
        (NCCL_API_MAGIC, 0, USAGE),
    ] {
        let given = ncclCommProperties_t { magic, version, ..full };
        let mut props = given;
        assert_eq!(query(comm, &raw mut props), expected);
        assert_eq!(props, given);
    }
    assert_eq!(query(comm, ptr::null_mut()), ARGUMENT);
    comm.destroy();
}
