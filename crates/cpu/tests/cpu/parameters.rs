//! Parameters: their values, types and handles.

use std::ffi::{CStr, c_int};
use std::ptr;

use crate::common::processes::{self, RankProcess};
use crate::common::{ARGUMENT, OK, alone, init, last_error};
use libnccl::sys::{ncclParamHandle_t, ncclResult_t};

const KEYS: [&str; 4] = ["LIBNCCL_MEMORY_SPACE", "LIBNCCL_OPEN_GROUPS", "LIBNCCL_MAX_RANKS", "NCCL_DEBUG"];

fn bind(key: &CStr) -> ncclParamHandle_t {
    let mut handle = ptr::null_mut();
    assert_eq!(nccl!(ncclParamBind(&mut handle, key.as_ptr())), OK);
    handle
}

/// Calls the getters of I8 to U64 and of strings, and returns their results.
fn getters(handle: ncclParamHandle_t) -> [ncclResult_t; 9] {
    let mut text = ptr::null();
    [
        nccl!(ncclParamGetI8(handle, &mut 0)),
        nccl!(ncclParamGetI16(handle, &mut 0)),
        nccl!(ncclParamGetI32(handle, &mut 0)),
        nccl!(ncclParamGetI64(handle, &mut 0)),
        nccl!(ncclParamGetU8(handle, &mut 0)),
        nccl!(ncclParamGetU16(handle, &mut 0)),
        nccl!(ncclParamGetU32(handle, &mut 0)),
        nccl!(ncclParamGetU64(handle, &mut 0)),
        nccl!(ncclParamGetStr(handle, &mut text)),
    ]
}

#[test]
fn getter_of_another_type_error_names_both_types() {
    let (_alone, mut value) = (alone(), 77);
    assert_eq!((nccl!(ncclParamGetU64(bind(c"LIBNCCL_MAX_RANKS"), &mut value)), value), (ARGUMENT, 77));
    assert_eq!(last_error(), "the parameter LIBNCCL_MAX_RANKS has type i64, not u64");
}

#[test]
fn param_get_copies_bytes_and_checks_size() {
    let _alone = alone();
    let get = |key, room| {
        let (mut bytes, mut length) = ([b'-'; 10], -1);
        let code = nccl!(ncclParamGet(bind(key), bytes.as_mut_ptr().cast(), room, &mut length));
        (code, length, bytes)
    };
    // The terminating NUL counts.
    assert_eq!(get(c"LIBNCCL_MEMORY_SPACE", 5), (OK, 5, *b"host\0-----"));
    let (code, length, bytes) = get(c"LIBNCCL_MAX_RANKS", 8);
    assert_eq!((code, length, &bytes[..8]), (OK, 8, &1024_i64.to_ne_bytes()[..]));
    for room in [4, 0, -1, c_int::MIN] {
        assert_eq!(get(c"LIBNCCL_MEMORY_SPACE", room), (ARGUMENT, -1, [b'-'; 10]), "{room}");
    }
    assert_eq!(get(c"LIBNCCL_MAX_RANKS", 7).0, ARGUMENT);
    assert_eq!(last_error(), "the value of LIBNCCL_MAX_RANKS has 8 bytes, there is room for 7");
}

#[test]
fn unknown_parameter_key_or_handle_is_invalid_argument() {
    let _alone = alone();
    for key in [c"NCCL_NO", c"nccl_debug", c""] {
        let mut handle = ptr::without_provenance_mut(7);
        assert_eq!((nccl!(ncclParamBind(&mut handle, key.as_ptr())), handle.addr()), (ARGUMENT, 7));
        assert_eq!(last_error(), format!("there is no parameter {key:?}"));
        let (mut value, mut length) = (c"stale".as_ptr(), -1);
        assert_eq!(nccl!(ncclParamGetParameter(key.as_ptr(), &mut value, &mut length)), ARGUMENT);
        assert_eq!((value, length), (ptr::null(), 0));
    }
    let (comm, local, last) = (init(1)[0], 0_u64, KEYS.len() << 4 | 8);
    assert_eq!(bind(c"NCCL_DEBUG").addr(), last);
    for address in
        [0, 1, 8, 16, 25, last + 16, usize::MAX, usize::MAX << 3, (&raw const local).addr(), comm.0.addr()]
    {
        let handle = ptr::without_provenance_mut(address);
        assert_eq!(getters(handle), [ARGUMENT; 9], "{address:#x}");
        let mut value = [0_u8; 8];
        assert_eq!(nccl!(ncclParamGet(handle, value.as_mut_ptr().cast(), 8, &mut 0)), ARGUMENT);
        assert_eq!(last_error(), format!("{handle:p} is not a parameter handle of ncclParamBind"));
    }
    comm.destroy();
}

rank_tasks!(dump_parameters);

fn dump_parameters(_: &RankProcess) {
    println!("\n<<<");
    nccl!(ncclParamDumpAll());
    println!(">>>");
}

/// Returns the parameters, and their values, that a process with this environment dumps.
fn dump(environment: &[(&str, &str)]) -> Vec<(String, String)> {
    let text = processes::run("dump_parameters", [[0]], environment).concat();
    let text = text.split_once("<<<\n").unwrap().1.split_once(">>>\n").unwrap().0;
    let entries = text.strip_prefix("=== ncclParam Registry Dump ===\n").unwrap().split_terminator("\n\n");
    let entry = |entry: &str| {
        let (head, value) = entry.split_once("\n    Current value=").unwrap();
        (head.split_once(" (").unwrap().0.to_owned(), value.to_owned())
    };
    entries.map(entry).collect()
}

#[test]
fn dump_shows_interpreted_environment() {
    for (level, expected) in [
        ("", "<unknown>"),
        ("INF0", "<unknown>"),
        ("version", "VERSION"),
        (" Warn ", "WARN"),
        ("ATTN", "WARN"),
        ("INFO", "INFO"),
        ("TRACE", "INFO"),
        ("ABORT", "INFO"),
    ] {
        let environment = [
            ("LIBNCCL_MEMORY_SPACE", "device"),
            ("LIBNCCL_MAX_RANKS", "1"),
            ("NCCL_DEBUG", level),
            ("NCCL_DEBUG_FILE", "/dev/null"),
        ];
        let (keys, values): (Vec<_>, Vec<_>) = dump(&environment).into_iter().unzip();
        assert_eq!(keys, KEYS);
        assert_eq!(values, ["host", "0", "1024", expected], "{level:?}");
    }
}
