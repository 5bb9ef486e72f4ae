//! Values and their texts: types, reductions, operations, versions, ids, errors and codes.

use libnccl::error::{LoadError, ResultCode};
use libnccl::observer::Operation;
use libnccl::sys::{ncclDataType_t, ncclRedOp_t, ncclResult_t};
use libnccl::{DataType, Error, ReduceOp, UniqueId, Version};

// Regression: cudarc lets safe code make any type an element, such as char.
#[test]
fn all_lists_every_value_of_nccl_in_order() {
    for (value, data_type) in DataType::ALL.iter().enumerate() {
        assert_eq!(data_type.as_raw().0 as usize, value);
    }
    assert_eq!(DataType::ALL.len(), ncclDataType_t::ncclNumTypes.0 as usize);
    for (value, op) in ReduceOp::ALL.iter().enumerate() {
        assert_eq!(op.as_raw().0 as usize, value);
    }
    assert_eq!(ReduceOp::ALL.len(), ncclRedOp_t::ncclNumOps.0 as usize);
}

#[test]
fn names_round_trip() {
    let names = ["i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"];
    for (&data_type, name) in DataType::ALL.iter().zip(names) {
        let text = data_type.to_string();
        for name in [name, &text, &text.to_uppercase()] {
            assert_eq!(name.parse(), Ok(data_type));
        }
    }
    for &op in ReduceOp::ALL {
        assert_eq!(op.to_string().parse(), Ok(op));
        assert_eq!(format!("{op:?}").parse(), Ok(op));
    }
}

#[test]
fn error_for_an_unknown_name_lists_the_names() {
    for text in ["", "float3", " f32", "bool"] {
        assert_eq!(
            text.parse::<DataType>().unwrap_err().to_string(),
            format!(
                "{text:?} is not a data type of NCCL; expected int8 (i8), uint8 (u8), int32 (i32), uint32 (u32), \
                 int64 (i64), uint64 (u64), half (f16), float (f32), double (f64), bfloat16 (bf16), f8e4m3, f8e5m2"
            )
        );
    }
    assert_eq!(
        "mean".parse::<ReduceOp>().unwrap_err().to_string(),
        r#""mean" is not an operation of NCCL; expected sum, prod, max, min, avg"#
    );
}

#[test]
fn names_differ_and_point_to_point_operations_come_last() {
    for (number, operation) in Operation::ALL.iter().enumerate() {
        assert_eq!(Operation::of(operation.name).number(), number, "{}", operation.name);
    }
    assert!(Operation::ALL.is_sorted_by_key(Operation::is_point_to_point));
}

#[test]
fn operation_of_a_function_is_found_by_its_c_name() {
    let name = |function| Operation::of_function(function).map(|operation| operation.name);
    assert_eq!(name("ncclAllReduceConfig"), Some("all_reduce"));
    assert_eq!(name("ncclBcast"), Some("broadcast_in_place"));
    assert_eq!(name("ncclGroupStart"), None);
}

#[test]
fn operation_is_followed_by_its_form_in_place() {
    for operation in Operation::ALL {
        let by_name = |form: &&Operation| form.name.strip_suffix("_in_place") == Some(operation.name);
        let [found, named] = [operation.in_place_form(), Operation::ALL.iter().find(by_name)];
        assert_eq!(found.map(|form| form.name), named.map(|form| form.name), "{}", operation.name);
    }
}

#[test]
fn version_code_round_trips_before_and_after_2_9() {
    for (code, text) in [(2_804, "2.8.4"), (21_304, "2.13.4"), (22_707, "2.27.7"), (23_203, "2.32.3")] {
        let version = Version::from_code(code);
        assert_eq!(version.to_string(), text);
        assert_eq!(version.code(), code);
        assert_eq!(text.parse(), Ok(version));
    }
    assert!(Version::new(2, 9, 0) > Version::new(2, 8, 99));
}

#[test]
fn version_code_beyond_u32_is_its_maximum() {
    for (major, minor, patch) in [(u32::MAX, 0, 0), (2, u32::MAX, 0), (2, 32, u32::MAX)] {
        assert_eq!(Version::new(major, minor, patch).code(), u32::MAX);
    }
}

#[test]
fn invalid_version_is_an_error() {
    for text in ["", "2", "2.32", "2.32.3.1", "2.x.3", "-2.0.0"] {
        let error = text.parse::<Version>().unwrap_err().to_string();
        assert!(error.contains("major.minor.patch") && error.contains(text), "{error}");
    }
}

// Regression: ferrotorch cannot make an id from its bytes.
// Regression: cubecl, candle and mistral.rs exchange ids manually.
#[test]
fn bytes_text_and_c_form_of_an_id_round_trip() {
    let bytes: [u8; 128] = std::array::from_fn(|i| (i * 37 + 200) as u8);
    let id = UniqueId::from_bytes(bytes);
    assert_eq!(id.as_bytes(), &bytes);
    assert_eq!(id.to_string().len(), 256);
    assert_eq!(id.to_string().parse(), Ok(id));
    assert_eq!(id.to_string().to_uppercase().parse(), Ok(id));
    assert_eq!(UniqueId::from_c_chars(id.to_c_chars()), id);
    assert_eq!(UniqueId::try_from(&bytes[..]), Ok(id));
    assert_eq!((UniqueId::from(bytes), id.as_ref()), (id, &bytes[..]));
}

#[test]
fn id_with_wrong_length_or_digit_is_an_error() {
    let error = |text: &str| text.parse::<UniqueId>().unwrap_err().to_string();
    for length in [0, 127, 129] {
        let expected = format!("a unique id has 128 bytes; {length} were given");
        assert_eq!(UniqueId::try_from(&vec![0; length][..]).unwrap_err().to_string(), expected);
    }
    let digits = "a unique id is written in 256 hexadecimal digits";
    for length in [0, 255, 257, 258] {
        assert_eq!(error(&"0".repeat(length)), format!("{digits}; {length} were given"));
    }
    let wrong_tenth = format!("{}g{}", "0".repeat(9), "0".repeat(246));
    assert_eq!(error(&wrong_tenth), format!("{digits}; character 9 is 'g'"));
    assert_eq!(error(&"é".repeat(256)), format!("{digits}; character 0 is 'é'"));
}

#[test]
fn debug_text_of_an_id_hides_the_secret() {
    assert_eq!(format!("{:?}", UniqueId::from_bytes([0xab; 128])), "UniqueId(abab..)");
}

#[test]
fn error_has_at_most_72_bytes() {
    assert!(size_of::<Error>() <= 72, "{}", size_of::<Error>());
}

// Regression: cudarc's error does not implement std::error::Error, and has no text.
#[test]
fn error_text_names_the_call_and_the_values() {
    let failed = |detail: &str| Error::Nccl {
        call: "ncclCommInitRank",
        code: ResultCode::UNHANDLED_CUDA_ERROR,
        message: "unhandled cuda error".into(),
        detail: detail.into(),
    };
    let text = "ncclCommInitRank failed: unhandled cuda error (code 1)";
    assert_eq!(failed("").to_string(), text);
    assert_eq!(failed("Cuda failure 'no device'").to_string(), format!("{text}: Cuda failure 'no device'"));

    let unsupported = |found| Error::Unsupported {
        function: "ncclCommShrink",
        since: Version::new(2, 27, 3),
        found,
        library: "/opt/libnccl.so.2".into(),
    };
    assert_eq!(
        unsupported(Version::new(2, 22, 3)).to_string(),
        "ncclCommShrink needs NCCL 2.27.3 or newer; the loaded library is 2.22.3 (/opt/libnccl.so.2)"
    );
    for found in [Version::new(2, 27, 3), Version::new(2, 27, 7)] {
        let expected = format!(
            "ncclCommShrink, in NCCL since 2.27.3, is missing from the loaded library, {found} (/opt/libnccl.so.2)"
        );
        assert_eq!(unsupported(found).to_string(), expected);
    }
    assert_eq!(
        LoadError::UnsupportedPlatform { system: "macos" }.to_string(),
        "there is no NCCL for macos: NVIDIA's NCCL and AMD's RCCL are libraries for Linux"
    );
}

// Regression: cudarc takes an unknown result code for success, or is undefined.
// Regression: ferrotorch's result codes are a closed enum.
#[test]
fn unknown_code_keeps_its_number() {
    assert_eq!(ResultCode::TIMEOUT.to_string(), "ncclTimeout (8)");
    for number in 0..ncclResult_t::ncclNumResults.0 {
        assert!(ResultCode::from_raw(ncclResult_t(number)).name().is_some(), "{number}");
    }
    let unknown = ResultCode::from_raw(ncclResult_t(77));
    assert_eq!((unknown.name(), unknown.as_raw().0), (None, 77));
    assert_eq!(format!("{unknown:?}"), "a code unknown to this crate (77)");
}

/// A unique id in the formats of the crate serde: its text.
#[cfg(feature = "serde")]
mod serialized_ids {
    use std::fmt;

    use libnccl::UniqueId;
    use serde::de::value::{Error, StrDeserializer, U8Deserializer};
    use serde::de::{Deserialize, IntoDeserializer};
    use serde::ser::Serialize;

    /// Serializes a value into a formatter, which serde supports for text.
    struct Serialized<T>(T);

    impl<T: Serialize> fmt::Display for Serialized<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.serialize(f)
        }
    }

    #[test]
    fn serialized_id_is_its_text_and_is_read_back() {
        let id = UniqueId::from_bytes(std::array::from_fn(|index| index as u8 + 100));
        let text = Serialized(id).to_string();
        assert_eq!(text, id.to_string());
        let deserializer: StrDeserializer<'_, Error> = text.as_str().into_deserializer();
        assert_eq!(UniqueId::deserialize(deserializer), Ok(id));
    }

    #[test]
    fn other_text_or_type_error_names_the_expected_form() {
        let short: StrDeserializer<'_, Error> = "ab".into_deserializer();
        let error = UniqueId::deserialize(short).unwrap_err();
        assert_eq!(error.to_string(), "a unique id is written in 256 hexadecimal digits; 2 were given");
        let number: U8Deserializer<Error> = 7_u8.into_deserializer();
        let error = UniqueId::deserialize(number).unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid type: integer `7`, expected a unique id of 256 hexadecimal digits"
        );
    }
}

/// The structs of the device API.
#[cfg(feature = "device-api")]
mod device {
    use libnccl::sys::device::*;
    use libnccl::sys::{NCCL_API_MAGIC, NCCL_VERSION_CODE, since};

    #[test]
    fn initializer_version_is_capped_by_library_and_header() {
        for (library, expected) in
            [(22_907, 22_907), (NCCL_VERSION_CODE, NCCL_VERSION_CODE), (u32::MAX, NCCL_VERSION_CODE)]
        {
            let properties = ncclCommProperties_t::initializer(library);
            assert_eq!((properties.version, properties.size), (expected, 152));
            assert_eq!(properties.magic, NCCL_API_MAGIC);
            let requirements = ncclDevCommRequirements_t::initializer(library);
            assert_eq!((requirements.version, requirements.size), (expected, 120));
        }
    }

    #[test]
    fn every_function_has_a_version_from_2_28_3_on() {
        assert_eq!(DeviceFunctions::NAMES.len(), 21);
        assert!(DeviceFunctions::NAMES.iter().all(|name| since(name).is_some_and(|code| code >= 22_803)));
        assert_eq!(since("ncclCommQueryProperties"), Some(22_902));
        assert_eq!(since("ncclCommProperties.ginType"), Some(LAYOUT_SINCE));
        assert!(DeviceFunctions::EMPTY.present().all(|(_, present)| !present));
    }
}
