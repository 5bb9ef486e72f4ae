//! Parameters.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{CStr, c_char, c_int};

use libnccl::sys::ncclResult_t;

use super::{answer, check, put};
use crate::failure::Failure;
use crate::param;

pub(crate) unsafe extern "C" fn ncclParamGetParameter(
    key: *const c_char,
    value: *mut *const c_char,
    valueLen: *mut c_int,
) -> ncclResult_t {
    answer(|| {
        check(key, "the key")?;
        check(value, "the value")?;
        // SAFETY: the C declaration's contract: a string that ends.
        let key = unsafe { CStr::from_ptr(key) };
        let found = param::value(key)
            .ok_or_else(|| Failure::argument(format!("there is no parameter {}", key.to_string_lossy())))?;
        // SAFETY: the C declaration's contract.
        unsafe {
            put(valueLen, found.count_bytes() as c_int)?;
            put(value, found.as_ptr())
        }
    })
}

pub(crate) unsafe extern "C" fn ncclParamGetAllParameterKeys(
    table: *mut *mut *const c_char,
    tableLen: *mut c_int,
) -> ncclResult_t {
    answer(|| {
        check(table, "the table")?;
        // SAFETY: the C declaration's contract.
        unsafe {
            put(tableLen, param::PARAMETERS.len() as c_int)?;
            put(table, param::keys())
        }
    })
}

pub(crate) unsafe extern "C" fn ncclParamDumpAll() {
    for (key, value) in param::PARAMETERS {
        println!("{}={}", key.to_string_lossy(), value.to_string_lossy());
    }
}
