#![allow(unsafe_code)] // Calls into NCCL.

use std::ffi::{CStr, CString, c_char, c_int};

use crate::backend::{ParameterGuard, call, lock_parameters};
use crate::error::{Error, InvalidArgumentKind, Result, ResultCode};
use crate::nccl::Nccl;
use crate::sys;

/// The parameters of an NCCL library, such as `NCCL_DEBUG`. A value comes from the environment, the configuration file, or NCCL's
/// defaults. Since NCCL 2.30.4.
///
/// NCCL 2.32.3 exposes 7 parameters, or 10 if `NCCL_PARAM_DUMP_ALL=true` is in the environment.
///
/// ```
/// let nccl = libnccl_cpu::nccl();
/// let parameters = nccl.parameters()?;
/// for key in parameters.keys()? {
///     println!("{key} = {}", parameters.get::<String>(&key)?.unwrap_or_default());
/// }
/// assert_eq!(parameters.get::<String>("NCCL_NO_SUCH_PARAMETER")?, None);
/// # Ok::<(), libnccl::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Parameters {
    nccl: Nccl,
}

/// A type that [`Parameters::get`] can return.
///
/// | type | parameters |
/// |---|---|
/// | [`String`] | all, as the text that NCCL prints (`TRUE`, `WARN,ATTN`) |
/// | [`CString`] | text |
/// | [`i8`] to [`i64`], [`u8`] to [`u64`] | integers of exactly this type, but not booleans and enums |
/// | [`Vec<u8>`] | all, as the bytes that NCCL stores; a text ends with a zero byte |
///
/// The trait is sealed: NCCL has functions for these types only.
pub trait ParameterValue: sealed::Read {}

impl<T: sealed::Read> ParameterValue for T {}

impl Nccl {
    /// Returns the parameters of the NCCL library; for an example, see [`Parameters`]. Since NCCL 2.30.4.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the library is older than NCCL 2.30.4.
    pub fn parameters(&self) -> Result<Parameters> {
        self.library.function("ncclParamGetParameter", self.library.functions.ncclParamGetParameter)?;
        Ok(Parameters { nccl: self.clone() })
    }
}

impl Parameters {
    /// Returns the keys of all exposed parameters. Since NCCL 2.30.4.
    ///
    /// # Errors
    /// [`Error::Nccl`] if NCCL cannot list the keys.
    #[doc(alias = "ncclParamGetAllParameterKeys")]
    pub fn keys(&self) -> Result<Vec<String>> {
        let (library, _one_at_a_time) = (&self.nccl.library, self.lock());
        let (mut table, mut length) = (std::ptr::null_mut(), 0);
        // SAFETY: two valid out-parameters.
        unsafe { call!(library, ncclParamGetAllParameterKeys(&raw mut table, &raw mut length)) }?;
        if table.is_null() {
            return Ok(Vec::new());
        }
        // SAFETY: an array of `length` C strings, all valid until this thread queries parameters again, which is after
        // they have been copied.
        let keys = (0..length.max(0) as usize).map(|index| unsafe { copy(*table.add(index)) });
        Ok(keys.map(|key| key.to_string_lossy().into_owned()).collect())
    }

    /// Returns the value of a parameter; `None` if NCCL has no such key. For an example, see [`Parameters`]. Since NCCL
    /// 2.30.4.
    ///
    /// # Errors
    /// [`Error::Nccl`] with [`ResultCode::INVALID_ARGUMENT`] if the parameter is not of the type `T` (see [`ParameterValue`]);
    /// [`Error::InvalidArgument`] if the key contains a zero byte.
    #[doc(alias = "ncclParamGetParameter")]
    #[doc(alias = "ncclParamBind")]
    #[doc(alias = "ncclParamGet")]
    #[doc(alias = "ncclParamGetStr")]
    #[doc(alias = "ncclParamGetI8")]
    #[doc(alias = "ncclParamGetI16")]
    #[doc(alias = "ncclParamGetI32")]
    #[doc(alias = "ncclParamGetI64")]
    #[doc(alias = "ncclParamGetU8")]
    #[doc(alias = "ncclParamGetU16")]
    #[doc(alias = "ncclParamGetU32")]
    #[doc(alias = "ncclParamGetU64")]
    pub fn get<T: ParameterValue>(&self, key: &str) -> Result<Option<T>> {
        let key = CString::new(key).map_err(|error| {
            let problem = format!("the key {key:?} has a zero byte, at {}", error.nul_position());
            Error::argument("get", InvalidArgumentKind::Value, problem)
        })?;
        let _one_at_a_time = self.lock();
        T::read(&self.nccl, &key)
    }

    /// Makes NCCL print all exposed parameters to standard output. Since NCCL 2.30.4.
    ///
    /// The text goes through C's output buffer, so its order relative to Rust's output is undefined.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the library lacks `ncclParamDumpAll`.
    #[doc(alias = "ncclParamDumpAll")]
    pub fn dump(&self) -> Result<()> {
        let (library, _one_at_a_time) = (&self.nccl.library, self.lock());
        let dump = library.function("ncclParamDumpAll", library.functions.ncclParamDumpAll)?;
        // SAFETY: has no arguments.
        unsafe { dump() };
        Ok(())
    }

    fn lock(&self) -> ParameterGuard {
        lock_parameters(&self.nccl.library.functions)
    }
}

mod sealed {
    use super::{CStr, Nccl, Result};

    pub trait Read: Sized {
        /// Reads the value of the parameter `key`; `None` if NCCL has no such key. The caller must hold the lock of the
        /// parameters.
        fn read(nccl: &Nccl, key: &CStr) -> Result<Option<Self>>;
    }
}

impl sealed::Read for String {
    fn read(nccl: &Nccl, key: &CStr) -> Result<Option<Self>> {
        let (mut value, mut length) = (std::ptr::null(), 0);
        let found = unsafe {
            // SAFETY: a C string and two valid out-parameters.
            call!(nccl.library, ncclParamGetParameter(key.as_ptr(), &raw mut value, &raw mut length))
        };
        // SAFETY: null or a C string that is valid until this thread queries parameters again.
        Ok(none_if_unknown(found)?.map(|_| unsafe { copy(value) }.to_string_lossy().into_owned()))
    }
}

impl sealed::Read for CString {
    fn read(nccl: &Nccl, key: &CStr) -> Result<Option<Self>> {
        let Some(handle) = bind(nccl, key)? else { return Ok(None) };
        let mut value = std::ptr::null();
        // SAFETY: a handle of NCCL and a valid out-parameter.
        unsafe { call!(nccl.library, ncclParamGetStr(handle, &raw mut value)) }?;
        // SAFETY: null or a C string that is valid until this thread queries parameters again.
        Ok(Some(unsafe { copy(value) }))
    }
}

impl sealed::Read for Vec<u8> {
    fn read(nccl: &Nccl, key: &CStr) -> Result<Option<Self>> {
        /// The maximum buffer size, above the 128 KiB to which Linux limits an environment variable.
        const MAX_CAPACITY: usize = 1 << 18;
        let Some(handle) = bind(nccl, key)? else { return Ok(None) };
        let mut capacity = 64;
        loop {
            let (mut bytes, mut length) = (vec![0; capacity], 0);
            // SAFETY: a handle of NCCL, `capacity` bytes to write, and a valid out-parameter.
            let read = unsafe {
                call!(
                    nccl.library,
                    ncclParamGet(handle, bytes.as_mut_ptr().cast(), capacity as c_int, &raw mut length)
                )
            };
            match read {
                // NCCL's error for a buffer that is too short; it does not return the required size.
                Err(error)
                    if error.code() == Some(ResultCode::INVALID_ARGUMENT) && capacity < MAX_CAPACITY =>
                {
                    capacity *= 8;
                }
                Err(error) => return Err(error),
                Ok(_) => {
                    bytes.truncate(length.max(0) as usize);
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

macro_rules! integers {
    ($($type:ident by $function:ident),* $(,)?) => {$(
        impl sealed::Read for $type {
            fn read(nccl: &Nccl, key: &CStr) -> Result<Option<Self>> {
                let Some(handle) = bind(nccl, key)? else { return Ok(None) };
                let mut value = 0;
                // SAFETY: a handle of NCCL and a valid out-parameter of this size.
                unsafe { call!(nccl.library, $function(handle, &raw mut value)) }?;
                Ok(Some(value))
            }
        }
    )*};
}

integers! {
    i8 by ncclParamGetI8,
    i16 by ncclParamGetI16,
    i32 by ncclParamGetI32,
    i64 by ncclParamGetI64,
    u8 by ncclParamGetU8,
    u16 by ncclParamGetU16,
    u32 by ncclParamGetU32,
    u64 by ncclParamGetU64,
}

/// Returns NCCL's handle of a parameter, which lives as long as the library; `None` if NCCL has no such key.
fn bind(nccl: &Nccl, key: &CStr) -> Result<Option<sys::ncclParamHandle_t>> {
    let mut handle = std::ptr::null_mut();
    // SAFETY: a valid out-parameter and a C string.
    let found = unsafe { call!(nccl.library, ncclParamBind(&raw mut handle, key.as_ptr())) };
    Ok(none_if_unknown(found)?.map(|_| handle).filter(|handle| !handle.is_null()))
}

/// Returns `None` if there is no such key, which NCCL reports as an invalid argument.
fn none_if_unknown(found: Result<ResultCode>) -> Result<Option<ResultCode>> {
    match found {
        Err(error) if error.code() == Some(ResultCode::INVALID_ARGUMENT) => Ok(None),
        found => found.map(Some),
    }
}

/// Copies a C string; null becomes an empty one.
///
/// # Safety
/// `text` must be null or a C string.
unsafe fn copy(text: *const c_char) -> CString {
    if text.is_null() {
        return CString::default();
    }
    // SAFETY: the caller guarantees that it is a C string.
    unsafe { CStr::from_ptr(text) }.to_owned()
}
