//! The library's parameters, and the encryption of its connections.

use std::ffi::CString;

use libnccl::buffer::MemorySpace;
use libnccl::config::Encryption;
use libnccl::{Error, Nccl};

use super::common::cases;

cases! {
    parameters_are_listed_and_readable,
    unknown_parameter_is_none_and_a_zero_byte_an_error,
    encryption_is_set_or_unsupported,
}

/// Returns the parameters, or `None` after checking the error if the library is too old to have them.
fn parameters(nccl: &Nccl) -> Option<libnccl::Parameters> {
    let found = nccl.parameters();
    match nccl.require("ncclParamGetParameter") {
        Ok(()) => Some(found.unwrap()),
        Err(_) => {
            let error = found.unwrap_err();
            assert!(matches!(error, Error::Unsupported { function: "ncclParamGetParameter", .. }), "{error}");
            None
        }
    }
}

fn parameters_are_listed_and_readable(nccl: &Nccl) {
    let Some(parameters) = parameters(nccl) else { return };
    let keys = parameters.keys().unwrap();
    for key in &keys {
        assert!(parameters.get::<String>(key).unwrap().is_some(), "{key}");
    }
    match nccl.memory_space() {
        MemorySpace::Host => {
            assert!(keys.contains(&"LIBNCCL_MEMORY_SPACE".into()), "{keys:?}");
            assert_eq!(parameters.get::<String>("LIBNCCL_MEMORY_SPACE").unwrap().as_deref(), Some("host"));
            assert!(parameters.get::<i64>("LIBNCCL_MAX_RANKS").unwrap().is_some_and(|ranks| ranks >= 1));
        }
        _ if nccl.version() >= libnccl::Version::new(2, 30, 7) => {
            assert!(keys.contains(&"NCCL_DEBUG".into()), "{keys:?}");
        }
        _ => {}
    }
}

fn unknown_parameter_is_none_and_a_zero_byte_an_error(nccl: &Nccl) {
    let Some(parameters) = parameters(nccl) else { return };
    for key in ["", "NCCL_FROBNICATE", "nccl_debug"] {
        assert_eq!(parameters.get::<String>(key).unwrap(), None, "{key}");
    }
    assert_eq!(parameters.get::<u32>("NCCL_FROBNICATE").unwrap(), None);
    assert_eq!(parameters.get::<CString>("NCCL_FROBNICATE").unwrap(), None);
    assert_eq!(parameters.get::<Vec<u8>>("NCCL_FROBNICATE").unwrap(), None);
    let error = parameters.get::<u32>("NCCL_DEBUG\0").unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { call: "get", .. }), "{error}");
}

/// Uses only settings that leave the connections of other cases unchanged.
fn encryption_is_set_or_unsupported(nccl: &Nccl) {
    let key = Encryption::PreSharedKey(b"short");
    assert_eq!(format!("{key:?}, {:?}", Encryption::None), "PreSharedKey(..), None", "logs are public");
    let mut zero_inside = [0xfe; 32];
    zero_inside[31] = 0;
    for (wrong, problem) in [
        (&[][..], "the key has 0 bytes, and needs at least 32"),
        (&[1; 31], "the key has 31 bytes, and needs at least 32"),
        (&zero_inside, "byte 31 of the key is zero, which would end it there"),
    ] {
        let error = nccl.set_encryption(Encryption::PreSharedKey(wrong)).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        assert_eq!(error.to_string(), format!("set_encryption: {problem}"));
    }
    let set = nccl.set_encryption(Encryption::None);
    match nccl.require("ncclSetEncryption") {
        Ok(()) => set.unwrap(),
        Err(_) => assert!(matches!(set, Err(Error::Unsupported { .. })), "{set:?}"),
    }
}
