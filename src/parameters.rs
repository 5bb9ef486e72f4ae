#![allow(unsafe_code)] // Calls into NCCL.

use std::ffi::{CStr, CString, c_char, c_int};

use crate::backend::call;
use crate::{Error, Nccl, Result, ResultCode, sys};

/// The library's parameters (`NCCL_DEBUG`, ...) as it has read them from the environment, from its configuration
/// file, or by default. Since NCCL 2.30.4.
///
/// Few are there so far: 7 in NCCL 2.32.3, and 10 with `NCCL_PARAM_DUMP_ALL=true` in the environment.
///
/// ```
/// # fn main() -> libnccl::Result<()> {
/// let nccl = libnccl_cpu::nccl();
/// let parameters = nccl.parameters()?;
/// for key in parameters.keys()? {
///     println!("{key} = {}", parameters.get::<String>(&key)?.unwrap_or_default());
/// }
/// assert_eq!(parameters.get::<String>("NCCL_NO_SUCH_PARAMETER")?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Parameters {
    nccl: Nccl,
}

/// What [`Parameters::get`] can answer.
///
/// | type | of which parameters |
/// |---|---|
/// | [`String`] | all: the value as NCCL writes it (`TRUE`, `WARN,ATTN`) |
/// | [`CString`] | those that are text |
/// | [`i8`] to [`i64`], [`u8`] to [`u64`] | those that are of exactly this type; booleans and enums are of none |
/// | [`Vec<u8>`] | all: the bytes that NCCL keeps, a text with its final zero |
///
/// Sealed: these are the types that NCCL has functions for.
///
/// ```
/// # fn main() -> libnccl::Result<()> {
/// let parameters = libnccl_cpu::nccl().parameters()?;
/// let text = parameters.get::<String>("NCCL_DEBUG")?;
/// let bytes = parameters.get::<Vec<u8>>("NCCL_DEBUG")?;
/// # Ok(())
/// # }
/// ```
pub trait ParameterValue: sealed::Read {}

impl Nccl {
    /// The library's parameters. Since NCCL 2.30.4.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// let parameters = libnccl_cpu::nccl().parameters()?;
    /// let debug: Option<String> = parameters.get("NCCL_DEBUG")?;
    /// println!("NCCL_DEBUG is {}", debug.as_deref().unwrap_or("unknown here"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] by an older library.
    pub fn parameters(&self) -> Result<Parameters> {
        self.library.function("ncclParamGetParameter", self.library.functions.ncclParamGetParameter)?;
        Ok(Parameters { nccl: self.clone() })
    }
}

impl Parameters {
    /// The keys of all parameters. Since NCCL 2.30.4.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// let keys = libnccl_cpu::nccl().parameters()?.keys()?;
    /// println!("{}", keys.join(", "));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Nccl`] if NCCL cannot list them.
    #[doc(alias = "ncclParamGetAllParameterKeys")]
    pub fn keys(&self) -> Result<Vec<String>> {
        let (mut table, mut length) = (std::ptr::null_mut(), 0);
        // SAFETY: the places where NCCL writes a pointer and a number.
        unsafe { call!(self.nccl.library, ncclParamGetAllParameterKeys(&raw mut table, &raw mut length)) }?;
        if table.is_null() {
            return Ok(Vec::new());
        }
        // SAFETY: an array of so many C strings, all valid until this thread asks for parameters again, which
        // is after they have been copied.
        let keys = (0..length_of(length)).map(|index| unsafe { copy(*table.add(index)) });
        Ok(keys.map(lossy).collect())
    }

    /// The value of a parameter; `None` if NCCL knows no such key. Since NCCL 2.30.4.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// # let parameters = libnccl_cpu::nccl().parameters()?;
    /// let memory: Option<String> = parameters.get("LIBNCCL_MEMORY_SPACE")?;
    /// assert_eq!(memory.as_deref(), Some("host"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Nccl`] with [`ResultCode::INVALID_ARGUMENT`] if the parameter is not of the type `T`, see
    /// [`ParameterValue`]; [`Error::InvalidArgument`] if there is a zero byte in the key.
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
        let key = CString::new(key).map_err(|problem| {
            let position = problem.nul_position();
            Error::argument("get", format!("the key {key:?} has a zero byte, at {position}"))
        })?;
        T::read(&self.nccl, &key)
    }

    /// Has NCCL print all parameters, which it always does to this process's standard output. Since
    /// NCCL 2.30.4.
    ///
    /// C's buffer it is that the text goes through: what Rust prints around it may come out earlier or later.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// libnccl_cpu::nccl().parameters()?.dump()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the library lacks the function.
    #[doc(alias = "ncclParamDumpAll")]
    pub fn dump(&self) -> Result<()> {
        let library = &self.nccl.library;
        let dump = library.function("ncclParamDumpAll", library.functions.ncclParamDumpAll)?;
        // SAFETY: takes nothing.
        unsafe { dump() };
        Ok(())
    }
}

mod sealed {
    use super::{CStr, Nccl, Result};

    pub trait Read: Sized {
        /// `None` if NCCL knows no such key.
        fn read(nccl: &Nccl, key: &CStr) -> Result<Option<Self>>;
    }
}

impl ParameterValue for String {}

/// By `ncclParamGetParameter`.
impl sealed::Read for String {
    fn read(nccl: &Nccl, key: &CStr) -> Result<Option<Self>> {
        let (mut value, mut length) = (std::ptr::null(), 0);
        let found = unsafe {
            // SAFETY: a C string, and the places where NCCL writes a pointer and a number.
            call!(nccl.library, ncclParamGetParameter(key.as_ptr(), &raw mut value, &raw mut length))
        };
        // SAFETY: null or a C string that is valid until this thread asks for parameters again.
        Ok(known(found)?.map(|_| lossy(unsafe { copy(value) })))
    }
}

impl ParameterValue for CString {}

/// By `ncclParamGetStr`.
impl sealed::Read for CString {
    fn read(nccl: &Nccl, key: &CStr) -> Result<Option<Self>> {
        let Some(handle) = bind(nccl, key)? else { return Ok(None) };
        let mut value = std::ptr::null();
        // SAFETY: NCCL's own handle, and the place where it writes a pointer.
        unsafe { call!(nccl.library, ncclParamGetStr(handle, &raw mut value)) }?;
        // SAFETY: null or a C string that is valid until this thread asks for parameters again.
        Ok(Some(unsafe { copy(value) }))
    }
}

impl ParameterValue for Vec<u8> {}

/// By `ncclParamGet`.
impl sealed::Read for Vec<u8> {
    fn read(nccl: &Nccl, key: &CStr) -> Result<Option<Self>> {
        /// More than the 128 KiB to which Linux limits a variable of the environment.
        const MOST: usize = 1 << 18;
        let Some(handle) = bind(nccl, key)? else { return Ok(None) };
        let mut room = 64;
        loop {
            let (mut bytes, mut length) = (vec![0; room], 0);
            // SAFETY: NCCL's own handle, `room` bytes of space, and the place where NCCL writes a number.
            let read = unsafe {
                call!(
                    nccl.library,
                    ncclParamGet(handle, bytes.as_mut_ptr().cast(), room as c_int, &raw mut length)
                )
            };
            match read {
                // All it says about too little room; how much it takes it keeps to itself.
                Err(error) if error.code() == Some(ResultCode::INVALID_ARGUMENT) && room < MOST => room *= 8,
                Err(error) => return Err(error),
                Ok(_) => {
                    bytes.truncate(length_of(length));
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

macro_rules! integers {
    ($($type:ident by $function:ident),* $(,)?) => {$(
        impl ParameterValue for $type {}

        #[doc = concat!("By `", stringify!($function), "`.")]
        impl sealed::Read for $type {
            fn read(nccl: &Nccl, key: &CStr) -> Result<Option<Self>> {
                let Some(handle) = bind(nccl, key)? else { return Ok(None) };
                let mut value = 0;
                // SAFETY: NCCL's own handle, and the place where it writes an integer of this size.
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

/// NCCL's handle of a parameter, which lasts as long as the library.
fn bind(nccl: &Nccl, key: &CStr) -> Result<Option<sys::ncclParamHandle_t>> {
    let mut handle = std::ptr::null_mut();
    // SAFETY: the place where NCCL writes a pointer, and a C string.
    let found = unsafe { call!(nccl.library, ncclParamBind(&raw mut handle, key.as_ptr())) };
    Ok(known(found)?.map(|_| handle).filter(|handle| !handle.is_null()))
}

/// A lookup by key answers an invalid argument where there is no such key.
fn known(found: Result<ResultCode>) -> Result<Option<ResultCode>> {
    match found {
        Err(error) if error.code() == Some(ResultCode::INVALID_ARGUMENT) => Ok(None),
        found => found.map(Some),
    }
}

/// # Safety
/// `text` is null or a C string.
unsafe fn copy(text: *const c_char) -> CString {
    if text.is_null() {
        return CString::default();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_owned()
}

fn lossy(text: CString) -> String {
    text.to_string_lossy().into_owned()
}

/// A length that NCCL has told.
fn length_of(length: c_int) -> usize {
    usize::try_from(length).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, CString, c_char, c_int, c_void};
    use std::ptr::{self, null_mut};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::sys::{Functions, ncclParamHandle_t, ncclResult_t};
    use super::{ParameterValue, Parameters};
    use crate::{Error, Nccl, ResultCode, Version};

    const OK: ncclResult_t = ncclResult_t::ncclSuccess;
    const WRONG: ncclResult_t = ncclResult_t::ncclInvalidArgument;

    unsafe extern "C" fn version(out: *mut c_int) -> ncclResult_t {
        // SAFETY: the facade's own int.
        unsafe { *out = 23_203 };
        OK
    }

    /// Two keys, and between them what should not be there.
    unsafe extern "C" fn keys(table: *mut *mut *const c_char, length: *mut c_int) -> ncclResult_t {
        let keys = [c"NUMBER".as_ptr(), ptr::null(), c"NOT UTF-8 \xff".as_ptr()];
        // SAFETY: the facade's own places; the array is leaked.
        unsafe { (*table, *length) = (Box::leak(Box::new(keys)).as_mut_ptr(), 3) };
        OK
    }

    unsafe extern "C" fn parameter(
        key: *const c_char,
        value: *mut *const c_char,
        length: *mut c_int,
    ) -> ncclResult_t {
        // SAFETY: the facade's C string.
        let text = match unsafe { CStr::from_ptr(key) }.to_bytes() {
            b"NUMBER" => c"  7 ".as_ptr(),
            b"NULL" => ptr::null(),
            b"FAILS" => return ncclResult_t::ncclInternalError,
            b"UNHEARD OF" => return ncclResult_t(77),
            _ => return WRONG,
        };
        // SAFETY: the facade's own places.
        unsafe { (*value, *length) = (text, -3) };
        OK
    }

    /// The handle of a parameter is its number.
    unsafe extern "C" fn bind(out: *mut ncclParamHandle_t, key: *const c_char) -> ncclResult_t {
        // SAFETY: the facade's C string.
        let number = match unsafe { CStr::from_ptr(key) }.to_bytes() {
            b"NULL" => 0,
            b"NUMBER" => 1,
            b"TEXT" => 2,
            b"TEXT OF NULL" => 3,
            b"ENDLESS" => 4,
            b"NEGATIVE" => 5,
            _ => return WRONG,
        };
        // SAFETY: the facade's own place.
        unsafe { *out = ptr::without_provenance_mut(number) };
        OK
    }

    unsafe extern "C" fn signed(handle: ncclParamHandle_t, out: *mut i16) -> ncclResult_t {
        assert_eq!(handle.addr(), 1);
        // SAFETY: the facade's own place.
        unsafe { *out = -1234 };
        OK
    }

    unsafe extern "C" fn unsigned(_: ncclParamHandle_t, _: *mut u64) -> ncclResult_t {
        WRONG
    }

    unsafe extern "C" fn text(handle: ncclParamHandle_t, out: *mut *const c_char) -> ncclResult_t {
        let text = match handle.addr() {
            2 => c"eager".as_ptr(),
            3 => ptr::null(),
            _ => return WRONG,
        };
        // SAFETY: the facade's own place.
        unsafe { *out = text };
        OK
    }

    unsafe extern "C" fn bytes(
        handle: ncclParamHandle_t,
        out: *mut c_void,
        room: c_int,
        length: *mut c_int,
    ) -> ncclResult_t {
        let needed = match handle.addr() {
            1 => 2,
            2 => 1000,
            5 => -1,
            _ => c_int::MAX,
        };
        if needed > room {
            return WRONG;
        }
        // SAFETY: the facade's own places, of which the first has `room` bytes.
        unsafe {
            ptr::write_bytes(out.cast::<u8>(), 0xa5, usize::try_from(needed).unwrap_or(0));
            *length = needed;
        }
        OK
    }

    static DUMPED: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn dump() {
        DUMPED.fetch_add(1, Ordering::Relaxed);
    }

    const TABLE: Functions = Functions {
        ncclGetVersion: Some(version),
        ncclParamGetAllParameterKeys: Some(keys),
        ncclParamGetParameter: Some(parameter),
        ncclParamBind: Some(bind),
        ncclParamGetI16: Some(signed),
        ncclParamGetU64: Some(unsigned),
        ncclParamGetStr: Some(text),
        ncclParamGet: Some(bytes),
        ncclParamDumpAll: Some(dump),
        ..Functions::EMPTY
    };

    fn nccl(functions: Functions) -> Nccl {
        // SAFETY: the functions above do what NCCL's documentation says, as far as they are called.
        unsafe { Nccl::from_table("test", functions) }.unwrap()
    }

    fn parameters() -> Parameters {
        nccl(TABLE).parameters().unwrap()
    }

    #[track_caller]
    fn code<T: ParameterValue + std::fmt::Debug>(key: &str) -> (&'static str, u32) {
        match parameters().get::<T>(key) {
            Err(Error::Nccl { call, code, .. }) => (call, code.as_raw().0),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn keys_are_copied_whatever_they_are() {
        assert_eq!(parameters().keys().unwrap(), ["NUMBER", "", "NOT UTF-8 \u{fffd}"]);
        for (table, length) in [(null_mut(), 5), (null_mut(), -1), (ptr::dangling_mut(), -1)] {
            assert_eq!(keys_answering(table, length), Vec::<String>::new());
        }
    }

    fn keys_answering(table: *mut *const c_char, length: c_int) -> Vec<String> {
        use std::sync::Mutex;
        static ANSWER: Mutex<(usize, c_int)> = Mutex::new((0, 0));
        unsafe extern "C" fn answer(table: *mut *mut *const c_char, length: *mut c_int) -> ncclResult_t {
            let (address, count) = *ANSWER.lock().unwrap();
            // SAFETY: the facade's own places.
            unsafe { (*table, *length) = (ptr::without_provenance_mut(address), count) };
            OK
        }
        *ANSWER.lock().unwrap() = (table.addr(), length);
        let functions = Functions { ncclParamGetAllParameterKeys: Some(answer), ..TABLE };
        nccl(functions).parameters().unwrap().keys().unwrap()
    }

    #[test]
    fn text_of_any_parameter() {
        let get = |key| parameters().get::<String>(key).unwrap();
        assert_eq!(get("NUMBER").as_deref(), Some("  7 "));
        assert_eq!(get("NULL").as_deref(), Some(""));
        assert_eq!(get("UNKNOWN"), None);
        assert_eq!(get(""), None);
        assert_eq!(code::<String>("FAILS"), ("ncclParamGetParameter", 3));
        assert_eq!(code::<String>("UNHEARD OF"), ("ncclParamGetParameter", 77));
    }

    #[test]
    fn integers_of_exactly_their_type() {
        assert_eq!(parameters().get("NUMBER").unwrap(), Some(-1234_i16));
        assert_eq!(code::<u64>("NUMBER"), ("ncclParamGetU64", 4));
        assert_eq!(parameters().get::<u64>("UNKNOWN").unwrap(), None);
        assert_eq!(parameters().get::<u64>("NULL").unwrap(), None, "a handle that is null");
    }

    #[test]
    fn text_of_a_parameter_that_is_text() {
        let get = |key| parameters().get::<CString>(key).unwrap();
        assert_eq!(get("TEXT").as_deref(), Some(c"eager"));
        assert_eq!(get("TEXT OF NULL").as_deref(), Some(c""));
        assert_eq!(get("UNKNOWN"), None);
        assert_eq!(code::<CString>("NUMBER"), ("ncclParamGetStr", 4));
    }

    #[test]
    fn bytes_of_any_length() {
        let get = |key| parameters().get::<Vec<u8>>(key).unwrap();
        assert_eq!(get("NUMBER"), Some(vec![0xa5; 2]));
        assert_eq!(get("TEXT"), Some(vec![0xa5; 1000]));
        assert_eq!(get("NEGATIVE"), Some(Vec::new()));
        assert_eq!(get("UNKNOWN"), None);
        assert_eq!(code::<Vec<u8>>("ENDLESS"), ("ncclParamGet", 4));
    }

    #[test]
    fn a_key_with_a_zero_byte_is_refused() {
        let error = parameters().get::<u32>("NCCL\0DEBUG").unwrap_err();
        assert_eq!(error.to_string(), r#"get: the key "NCCL\0DEBUG" has a zero byte, at 4"#);
        assert!(matches!(error, Error::InvalidArgument { .. }));
    }

    #[test]
    fn dumping_calls_nccl_once() {
        parameters().dump().unwrap();
        assert_eq!(DUMPED.load(Ordering::Relaxed), 1);
    }

    // Regression: cudarc panics when the library lacks a function.
    #[test]
    fn functions_that_the_library_lacks() {
        let bare = Functions { ncclGetVersion: Some(version), ..Functions::EMPTY };
        let error = nccl(bare).parameters().unwrap_err();
        let Error::Unsupported { function, since, .. } = error else { panic!("{error}") };
        assert_eq!((function, since), ("ncclParamGetParameter", Version::new(2, 30, 4)));

        let few = Functions { ncclParamGetParameter: Some(parameter), ..bare };
        let parameters = nccl(few).parameters().unwrap();
        for (failed, expected) in [
            (parameters.keys().map(drop), "ncclParamGetAllParameterKeys"),
            (parameters.get::<i8>("X").map(drop), "ncclParamBind"),
            (parameters.dump(), "ncclParamDumpAll"),
        ] {
            let error = failed.unwrap_err();
            assert!(matches!(error, Error::Unsupported { function, .. } if function == expected), "{error}");
            assert_eq!(error.code(), None::<ResultCode>);
        }
    }
}
