//! Cases that need no communicator, and so no GPU.

#[cfg(feature = "device-api")]
use libnccl::buffer::MemorySpace;
use libnccl::{Error, Nccl, UniqueId, Version, sys};

use super::common::cases;

cases! {
    version_matches_ncclgetversion,
    functions_present_match_their_version,
    #[cfg(feature = "device-api")]
    device_functions_present_match_their_version,
    group_is_closed_after_any_result_of_its_closure,
    invalid_size_or_rank_is_an_error_before_nccl,
}

fn version_matches_ncclgetversion(nccl: &Nccl) {
    let mut code = 0;
    let get_version = nccl.as_raw().ncclGetVersion.unwrap();
    // SAFETY: `code` is where NCCL writes an int.
    assert_eq!(unsafe { get_version(&raw mut code) }, sys::ncclResult_t::ncclSuccess);
    assert_eq!(nccl.version(), Version::from_code(code as u32));
    assert!(nccl.version() >= Version::new(2, 13, 4), "{}", nccl.version());
}

/// Proves each function's `since`: a version has exactly the functions that were introduced in it or before.
fn functions_present_match_their_version(nccl: &Nccl) {
    let (version, backend) = (nccl.version(), nccl.backend().to_string());
    assert!(nccl.functions().map(|function| function.name).eq(sys::Functions::NAMES.iter().copied()));
    for function in nccl.functions() {
        // nccl.h has the parameter functions since 2.30.4; 2.30.3 already exports them.
        let early = function.name.starts_with("ncclParam") && version == Version::new(2, 30, 3);
        assert_eq!(function.present, function.since <= version || early, "{function:?} in {version}");
        match nccl.require(function.name) {
            Ok(()) => assert!(function.present, "{function:?}"),
            Err(Error::Unsupported { function: name, since, found, library }) => {
                assert!(!function.present, "{function:?}");
                assert_eq!((name, since, found), (function.name, function.since, version));
                assert_eq!(*library, *backend);
            }
            Err(other) => panic!("{other}"),
        }
    }
    let unknown = nccl.require("ncclFrobnicate").unwrap_err().to_string();
    assert_eq!(unknown, format!("require: nccl.h of {} has no ncclFrobnicate", Version::HEADER));
}

/// The CPU backend has no device functions, but its shared object has.
#[cfg(feature = "device-api")]
fn device_functions_present_match_their_version(nccl: &Nccl) {
    let names = nccl.as_raw_device().present().map(|(name, _)| name);
    assert!(names.eq(sys::device::DeviceFunctions::NAMES.iter().copied()));
    for (name, present) in nccl.as_raw_device().present() {
        let since = sys::since(name).unwrap();
        let expected = match nccl.memory_space() {
            MemorySpace::Device => since <= nccl.version().code(),
            _ => !matches!(nccl.backend(), libnccl::Backend::InProcess { .. }),
        };
        assert_eq!(present, expected, "{name}, since {since}, in {}", nccl.version());
    }
}

fn group_is_closed_after_any_result_of_its_closure(nccl: &Nccl) {
    assert_eq!(nccl.group(|_| Ok(7)).unwrap(), 7);
    assert_outside_a_group(nccl);
    let failed = nccl.group(|_| nccl.require("ncclFrobnicate")).unwrap_err();
    assert!(matches!(failed, Error::InvalidArgument { .. }), "{failed}");
    assert_outside_a_group(nccl);
    let nested = nccl.group(|_| nccl.group(|_| Ok(()))).unwrap_err();
    assert!(matches!(nested, Error::InvalidUsage { call: "group", .. }), "{nested}");
    assert_outside_a_group(nccl);
    let panicked = std::panic::catch_unwind(|| {
        nccl.group(|_| -> libnccl::Result<()> { std::panic::resume_unwind(Box::new(7)) })
    });
    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&7));
    assert_outside_a_group(nccl);
}

/// Asserts that no group is open: NCCL returns invalid usage for a group end without a start.
fn assert_outside_a_group(nccl: &Nccl) {
    let end = nccl.as_raw().ncclGroupEnd.unwrap();
    // SAFETY: takes nothing.
    assert_eq!(unsafe { end() }, sys::ncclResult_t::ncclInvalidUsage, "the thread is inside a group");
}

fn invalid_size_or_rank_is_an_error_before_nccl(nccl: &Nccl) {
    let id = UniqueId::from_bytes([0; 128]);
    let beyond = usize::try_from(i32::MAX).unwrap() + 1;
    for (size, rank, expected) in [
        (0, 0, "init: rank 0 is not below the size 0"),
        (4, 4, "init: rank 4 is not below the size 4"),
        (2, 9, "init: rank 9 is not below the size 2"),
        (beyond, 0, "init: size 2147483648 or rank 0 is beyond 2147483647"),
    ] {
        assert_eq!(nccl.communicator(size, rank, &id).init().unwrap_err().to_string(), expected);
    }
    assert_eq!(
        nccl.init_all(&[]).unwrap_err().to_string(),
        "init_all: no devices; expected one for each rank"
    );
    let inside = nccl.group(|_| nccl.init_all(&[0])).unwrap_err();
    assert!(matches!(inside, Error::InvalidUsage { call: "init_all", .. }), "{inside}");
}
