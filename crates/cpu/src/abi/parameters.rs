//! Parameters.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write;
use std::ptr;

use libnccl::sys::{ncclParamHandle_t, ncclResult_t};

use super::ffi_guard::{check_not_null, guard, write_out};
use super::param_registry::{self as param, Parameter};
use crate::diag::error::{Error, Result};

/// Returns the parameter of a key.
///
/// # Safety
///
/// `key` is NULL or a terminated string.
unsafe fn find(key: *const c_char) -> Result<&'static Parameter> {
    check_not_null(key, "the key")?;
    // SAFETY: not NULL, so a terminated string by the caller's contract.
    param::find(unsafe { CStr::from_ptr(key) })
}

pub(super) unsafe extern "C" fn ncclParamBind(
    out: *mut ncclParamHandle_t,
    key: *const c_char,
) -> ncclResult_t {
    // SAFETY: the C declaration's contract.
    guard(|| unsafe { write_out(out, param::handle(find(key)?)) })
}

macro_rules! define_getters {
    ($($name:ident: $type:ident),* $(,)?) => {$(
        pub(super) unsafe extern "C" fn $name(h: ncclParamHandle_t, out: *mut $type) -> ncclResult_t {
            guard(|| {
                let parameter = param::get(h)?;
                parameter.check_kind(stringify!($type))?;
                let bytes = parameter.bytes().try_into().map_err(|_| Error::internal("a number's size"))?;
                // SAFETY: the C declaration's contract.
                unsafe { write_out(out, $type::from_ne_bytes(bytes)) }
            })
        }
    )*};
}

define_getters! {
    ncclParamGetI8: i8,
    ncclParamGetI16: i16,
    ncclParamGetI32: i32,
    ncclParamGetI64: i64,
    ncclParamGetU8: u8,
    ncclParamGetU16: u16,
    ncclParamGetU32: u32,
    ncclParamGetU64: u64,
}

pub(super) unsafe extern "C" fn ncclParamGetStr(
    h: ncclParamHandle_t,
    out: *mut *const c_char,
) -> ncclResult_t {
    guard(|| {
        let parameter = param::get(h)?;
        parameter.check_kind(param::TEXT)?;
        // SAFETY: the C declaration's contract.
        unsafe { write_out(out, parameter.text().as_ptr()) }
    })
}

pub(super) unsafe extern "C" fn ncclParamGet(
    h: ncclParamHandle_t,
    out: *mut c_void,
    maxLen: c_int,
    len: *mut c_int,
) -> ncclResult_t {
    guard(|| {
        let (key, bytes) = param::get(h).map(|parameter| (parameter.key, parameter.bytes()))?;
        check_not_null(out, "the value")?;
        check_not_null(len, "the length")?;
        let room = usize::try_from(maxLen)
            .map_err(|_| Error::argument(format!("invalid room for a value: {maxLen} bytes")))?;
        if room < bytes.len() {
            let (key, needed) = (key.to_string_lossy(), bytes.len());
            return Err(Error::argument(format!(
                "the value of {key} has {needed} bytes, there is room for {room}"
            )));
        }
        // SAFETY: `out` has room for as many bytes, the C declaration's contract.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), bytes.len()) };
        // SAFETY: the C declaration's contract.
        unsafe { write_out(len, bytes.len() as c_int) }
    })
}

pub(super) unsafe extern "C" fn ncclParamGetParameter(
    key: *const c_char,
    value: *mut *const c_char,
    valueLen: *mut c_int,
) -> ncclResult_t {
    guard(|| {
        check_not_null(value, "the value")?;
        check_not_null(valueLen, "the length")?;
        // SAFETY: the C declaration's contract.
        let found = unsafe { find(key) };
        // Also on an error, as in NCCL, so that the caller sees no stale text.
        let text = found.as_ref().ok().map(|parameter| parameter.text());
        // SAFETY: the C declaration's contract.
        unsafe {
            write_out(valueLen, text.map_or(0, CStr::count_bytes) as c_int)?;
            write_out(value, text.map_or(ptr::null(), CStr::as_ptr))?;
        }
        found.map(|_| ())
    })
}

pub(super) unsafe extern "C" fn ncclParamGetAllParameterKeys(
    table: *mut *mut *const c_char,
    tableLen: *mut c_int,
) -> ncclResult_t {
    guard(|| {
        check_not_null(table, "the table")?;
        // SAFETY: the C declaration's contract.
        unsafe {
            write_out(tableLen, param::all().len() as c_int)?;
            write_out(table, param::keys())
        }
    })
}

pub(super) unsafe extern "C" fn ncclParamDumpAll() {
    let mut lines = String::from("=== ncclParam Registry Dump ===\n");
    for parameter in param::all() {
        let Parameter { key, about, kind, .. } = parameter;
        let (key, value) = (key.to_string_lossy(), parameter.text().to_string_lossy());
        lines += &format!("{key} ({kind}) {about}\n    Current value={value}\n\n");
    }
    let mut output = std::io::stdout().lock();
    // A failure cannot be reported: the function returns nothing.
    let _ = output.write_all(lines.as_bytes()).and_then(|()| output.flush());
}
