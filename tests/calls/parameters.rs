//! The parameter functions, with a library that returns null pointers, invalid lengths and any bytes.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use libnccl::buffer::MemorySpace;
use libnccl::error::ResultCode;
use libnccl::internal::interposer::{lock_parameters, memory_space};
use libnccl::sys::{Functions, NCCL_VERSION_CODE, ncclParamHandle_t, ncclResult_t};
use libnccl::{Nccl, Parameters};

const OK: ncclResult_t = ncclResult_t::ncclSuccess;
const WRONG: ncclResult_t = ncclResult_t::ncclInvalidArgument;

static INSIDE: AtomicUsize = AtomicUsize::new(0);
static COLLISIONS: AtomicUsize = AtomicUsize::new(0);

/// Counts the calls made while another thread is in a parameter function, which crashes NCCL.
fn enter_alone() {
    COLLISIONS.fetch_add(INSIDE.fetch_add(1, Ordering::SeqCst).min(1), Ordering::SeqCst);
    std::thread::sleep(std::time::Duration::from_millis(2));
    INSIDE.fetch_sub(1, Ordering::SeqCst);
}

unsafe extern "C" fn dump() {
    enter_alone();
}

/// Returns two keys, with a null pointer between them.
unsafe extern "C" fn keys(table: *mut *mut *const c_char, length: *mut c_int) -> ncclResult_t {
    enter_alone();
    let keys = [c"NUMBER".as_ptr(), ptr::null(), c"NOT UTF-8 \xff".as_ptr()];
    // SAFETY: out-parameters of the facade; the array is leaked.
    unsafe { (*table, *length) = (Box::leak(Box::new(keys)).as_mut_ptr(), 3) };
    OK
}

unsafe extern "C" fn parameter(
    key: *const c_char,
    value: *mut *const c_char,
    length: *mut c_int,
) -> ncclResult_t {
    enter_alone();
    // SAFETY: a C string of the facade.
    let text = match unsafe { CStr::from_ptr(key) }.to_bytes() {
        b"NUMBER" => c"  7 ".as_ptr(),
        b"NULL" => ptr::null(),
        _ => return WRONG,
    };
    // SAFETY: out-parameters of the facade.
    unsafe { (*value, *length) = (text, -3) };
    OK
}

/// Returns the number of a parameter as its handle.
unsafe extern "C" fn bind(out: *mut ncclParamHandle_t, key: *const c_char) -> ncclResult_t {
    enter_alone();
    // SAFETY: a C string of the facade.
    let number = match unsafe { CStr::from_ptr(key) }.to_bytes() {
        b"NULL" => 0,
        b"NUMBER" => 1,
        b"TEXT" => 2,
        b"ENDLESS" => 3,
        b"NEGATIVE" => 4,
        _ => return WRONG,
    };
    // SAFETY: an out-parameter of the facade.
    unsafe { *out = ptr::without_provenance_mut(number) };
    OK
}

unsafe extern "C" fn bytes(
    handle: ncclParamHandle_t,
    out: *mut c_void,
    capacity: c_int,
    length: *mut c_int,
) -> ncclResult_t {
    enter_alone();
    let needed = match handle.addr() {
        1 => 2,
        2 => 1000,
        4 => -1,
        _ => c_int::MAX,
    };
    if needed > capacity {
        return WRONG;
    }
    // SAFETY: out-parameters of the facade; the first has `capacity` bytes.
    unsafe {
        ptr::write_bytes(out.cast::<u8>(), 0xa5, usize::try_from(needed).unwrap_or(0));
        *length = needed;
    }
    OK
}

unsafe extern "C" fn version(out: *mut c_int) -> ncclResult_t {
    // SAFETY: an out-parameter of the facade.
    unsafe { *out = NCCL_VERSION_CODE.cast_signed() };
    OK
}

const TABLE: Functions = Functions {
    ncclGetVersion: Some(version),
    ncclParamGetAllParameterKeys: Some(keys),
    ncclParamGetParameter: Some(parameter),
    ncclParamBind: Some(bind),
    ncclParamDumpAll: Some(dump),
    ncclParamGet: Some(bytes),
    ..Functions::EMPTY
};

fn nccl(functions: Functions) -> Nccl {
    // SAFETY: the functions behave as NCCL's documentation says.
    unsafe { Nccl::from_table("parameters", functions) }.unwrap()
}

fn parameters() -> Parameters {
    nccl(TABLE).parameters().unwrap()
}

#[test]
fn null_and_invalid_utf8_are_text() {
    assert_eq!(parameters().keys().unwrap(), ["NUMBER", "", "NOT UTF-8 \u{fffd}"]);
    let get = |key| parameters().get::<String>(key).unwrap();
    assert_eq!((get("NUMBER").as_deref(), get("NULL").as_deref()), (Some("  7 "), Some("")));
}

#[test]
fn get_bytes_grows_its_buffer() {
    let get = |key| parameters().get::<Vec<u8>>(key).unwrap();
    assert_eq!(get("NUMBER"), Some(vec![0xa5; 2]));
    assert_eq!(get("TEXT"), Some(vec![0xa5; 1000]));
    assert_eq!(get("NEGATIVE"), Some(Vec::new()));
    assert_eq!(get("NULL"), None, "a handle that is null");
    let endless = parameters().get::<Vec<u8>>("ENDLESS").unwrap_err();
    assert_eq!(endless.code(), Some(ResultCode::INVALID_ARGUMENT));
}

// Threads crashed in NCCL 2.32.3. The memory space is read through a parameter too.
#[test]
fn threads_call_the_parameter_functions_of_one_library_in_turn() {
    let calls: [fn(Nccl); 6] = [
        |nccl| assert_eq!(nccl.parameters().unwrap().get("NUMBER").unwrap(), Some("  7 ".to_owned())),
        |nccl| assert_eq!(nccl.parameters().unwrap().get("NUMBER").unwrap(), Some(vec![0xa5; 2])),
        |nccl| assert_eq!(nccl.parameters().unwrap().keys().unwrap().len(), 3),
        |nccl| nccl.parameters().unwrap().dump().unwrap(),
        |nccl| assert_eq!(nccl.memory_space(), MemorySpace::Device),
        |nccl| assert!(!format!("{nccl:?}").is_empty()),
    ];
    std::thread::scope(|scope| {
        for call in calls {
            // Each opens the library, as it stores the memory space.
            scope.spawn(move || (0..20).for_each(|_| call(nccl(TABLE))));
        }
        scope.spawn(|| {
            for _ in 0..20 {
                let _locked = lock_parameters(&TABLE);
                enter_alone();
                // The library may call a parameter function by name, and thereby an interposer, which locks again.
                // SAFETY: as for `nccl`.
                let _ = unsafe { memory_space(&TABLE) };
            }
        });
    });
    assert_eq!(COLLISIONS.load(Ordering::SeqCst), 0);
}
