//! Queries of the library and of a communicator, and parameters: the `NCCL_` variables that `ncclParam*` reads.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Write;
use std::ptr;
use std::sync::LazyLock;
use std::sync::atomic::AtomicPtr;

use libnccl::sys::{NCCL_VERSION_CODE, ncclComm_t, ncclParamHandle, ncclParamHandle_t, ncclResult_t};

use super::guard::{check_not_null, code, guard, guard_comm, write_out};
use crate::comm::{group, handle};
use crate::cuda::driver;
use crate::diag::debug;
use crate::diag::error::{self, Error, Result};
use crate::shm::layout::MAX_RANKS;

pub(super) unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> ncclResult_t {
    // SAFETY: the C declaration's contract.
    guard(|| unsafe { write_out(version, NCCL_VERSION_CODE as c_int) })
}

pub(super) unsafe extern "C" fn ncclGetErrorString(result: ncclResult_t) -> *const c_char {
    let text = match result {
        ncclResult_t::ncclSuccess => c"no error",
        ncclResult_t::ncclUnhandledCudaError => c"a CUDA call failed",
        ncclResult_t::ncclSystemError => c"a system call failed",
        ncclResult_t::ncclInternalError => c"internal error, a bug in the library",
        ncclResult_t::ncclInvalidArgument => c"invalid argument",
        ncclResult_t::ncclInvalidUsage => c"invalid usage",
        ncclResult_t::ncclRemoteError => c"another rank failed or exited",
        ncclResult_t::ncclInProgress => c"operation in progress",
        ncclResult_t::ncclTimeout => c"timeout",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

pub(super) unsafe extern "C" fn ncclGetLastError(comm: ncclComm_t) -> *const c_char {
    // NCCL ignores the communicator. Here, the text for a communicator in progress lists the ranks that it waits for. The text has a
    // different address than the last error, so that the caller can distinguish the two.
    let mut wait = None;
    guard(|| {
        if !comm.is_null() {
            wait = handle::with(comm, |comm| Ok(comm.describe_wait()))?;
        }
        Ok(())
    });
    wait.map_or_else(error::last_pointer, |text| error::wait_pointer(&text))
}

/// Reads `NCCL_DEBUG` and the related variables again. NCCL's header does not declare this function, so it is not in the function
/// table. NCCL's library exports it, and programs look it up by its name.
pub extern "C" fn ncclResetDebugInit() {
    guard(|| -> Result {
        debug::reset();
        Ok(())
    });
}

pub(super) unsafe extern "C" fn ncclCommGetAsyncError(
    comm: ncclComm_t,
    asyncError: *mut ncclResult_t,
) -> ncclResult_t {
    guard(|| {
        let code = match handle::with(comm, |communicator| Ok(communicator.async_state()))? {
            Ok(progress) => code(progress),
            Err(error) => {
                // The error of another thread, which is now reported to this thread.
                error::record_last(&error.text);
                error.code
            }
        };
        // SAFETY: the C declaration's contract.
        unsafe { write_out(asyncError, code) }
    })
}

pub(super) unsafe extern "C" fn ncclCommCount(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t {
    // SAFETY: the C declaration's contract.
    guard_comm(comm, |comm| unsafe { write_out(count, comm.check_ready()?.state.ranks() as c_int) })
}

pub(super) unsafe extern "C" fn ncclCommCuDevice(comm: ncclComm_t, device: *mut c_int) -> ncclResult_t {
    guard_comm(comm, |communicator| {
        communicator.check_ready()?;
        // SAFETY: the C declaration's contract.
        unsafe { write_out(device, communicator.device) }
    })
}

pub(super) unsafe extern "C" fn ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t {
    // SAFETY: the C declaration's contract.
    guard_comm(comm, |comm| unsafe { write_out(rank, comm.check_ready()?.rank as c_int) })
}

/// Returns the parameter with this key.
///
/// # Safety
/// `key` must be NULL or a terminated string.
unsafe fn find(key: *const c_char) -> Result<&'static Parameter> {
    check_not_null(key, "the key")?;
    // SAFETY: the pointer is not NULL, so by the caller's contract it is a terminated string.
    let key = unsafe { CStr::from_ptr(key) };
    PARAMETERS
        .iter()
        .find(|parameter| parameter.key == key)
        .ok_or_else(|| Error::argument(format!("there is no parameter {key:?}")))
}

pub(super) unsafe extern "C" fn ncclParamBind(
    out: *mut ncclParamHandle_t,
    key: *const c_char,
) -> ncclResult_t {
    // SAFETY: the C declaration's contract.
    guard(|| unsafe { write_out(out, handle_of(find(key)?)) })
}

macro_rules! define_getters {
    ($($name:ident: $type:ident),* $(,)?) => {$(
        pub(super) unsafe extern "C" fn $name(h: ncclParamHandle_t, out: *mut $type) -> ncclResult_t {
            guard(|| {
                let parameter = get(h)?;
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
        let parameter = get(h)?;
        parameter.check_kind(TEXT)?;
        // SAFETY: the C declaration's contract.
        unsafe { write_out(out, (parameter.text)().as_ptr()) }
    })
}

pub(super) unsafe extern "C" fn ncclParamGet(
    h: ncclParamHandle_t,
    out: *mut c_void,
    maxLen: c_int,
    len: *mut c_int,
) -> ncclResult_t {
    guard(|| {
        let (key, bytes) = get(h).map(|parameter| (parameter.key, parameter.bytes()))?;
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
        // SAFETY: by the C declaration's contract, `out` has space for this many bytes.
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
        // Written on an error too, as in NCCL, so that the caller sees no stale text.
        let text = found.as_ref().ok().map(|parameter| (parameter.text)());
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
            write_out(tableLen, PARAMETERS.len() as c_int)?;
            write_out(table, KEYS.as_ptr().cast_mut().cast())
        }
    })
}

pub(super) unsafe extern "C" fn ncclParamDumpAll() {
    let mut lines = String::from("=== ncclParam Registry Dump ===\n");
    for parameter in &PARAMETERS {
        let Parameter { key, about, kind, .. } = parameter;
        let (key, value) = (key.to_string_lossy(), (parameter.text)().to_string_lossy());
        lines += &format!("{key} ({kind}) {about}\n    Current value={value}\n\n");
    }
    let mut output = std::io::stdout().lock();
    // A failure cannot be reported: the function returns nothing.
    let _ = output.write_all(lines.as_bytes()).and_then(|()| output.flush());
}

/// The type of a parameter that is not a number.
const TEXT: &str = "text";

struct Parameter {
    key: &'static CStr,
    about: &'static str,
    /// [`TEXT`], or the Rust name of a number type.
    kind: &'static str,
    /// Returns the value as text, which lives as long as the process.
    text: fn() -> &'static CStr,
}

static PARAMETERS: [Parameter; 4] = [
    // The facade detects an implementation on host memory by this parameter.
    Parameter::new(c"LIBNCCL_MEMORY_SPACE", "Memory space of buffers", TEXT, memory_space),
    // The facade checks this in debug builds: inside a group opened by other code, its calls return before they run.
    Parameter::new(
        c"LIBNCCL_OPEN_GROUPS",
        "Number of groups that are open on the calling thread; at most 9 are counted",
        TEXT,
        open_groups,
    ),
    Parameter::new(c"LIBNCCL_MAX_RANKS", "Maximum number of ranks of a communicator", "i64", max_ranks),
    Parameter::new(c"NCCL_DEBUG", "Level of the lines that are printed", TEXT, || debug::settings().level),
];

/// The keys as a mutable array of pointers, as the C function requires.
static KEYS: LazyLock<Vec<AtomicPtr<c_char>>> = LazyLock::new(|| {
    PARAMETERS.iter().map(|parameter| AtomicPtr::new(parameter.key.as_ptr().cast_mut())).collect()
});

/// Returns the memory space of buffers, which is decided when a program first queries it: device memory if the process has the CUDA
/// emulation, and host memory otherwise.
fn memory_space() -> &'static CStr {
    if driver().is_some() { c"device" } else { c"host" }
}

fn open_groups() -> &'static CStr {
    const COUNTS: [&CStr; 10] = [c"0", c"1", c"2", c"3", c"4", c"5", c"6", c"7", c"8", c"9"];
    COUNTS[(group::depth() as usize).min(COUNTS.len() - 1)]
}

fn max_ranks() -> &'static CStr {
    static TEXT: LazyLock<CString> =
        LazyLock::new(|| CString::new(MAX_RANKS.to_string()).unwrap_or_default());
    &TEXT
}

impl Parameter {
    const fn new(
        key: &'static CStr,
        about: &'static str,
        kind: &'static str,
        text: fn() -> &'static CStr,
    ) -> Self {
        Self { key, about, kind, text }
    }

    /// Returns the bytes of the value in memory. A text includes its terminating zero byte.
    fn bytes(&self) -> Vec<u8> {
        let text = (self.text)();
        if self.kind == TEXT {
            return text.to_bytes_with_nul().to_vec();
        }
        let number: i64 = text.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or_default();
        number.to_ne_bytes().to_vec()
    }

    fn check_kind(&self, kind: &str) -> Result {
        if self.kind == kind {
            return Ok(());
        }
        let key = self.key.to_string_lossy();
        Err(Error::argument(format!("the parameter {key} has type {}, not {kind}", self.kind)))
    }
}

/// Returns the handle of a parameter: a number that is neither an address nor a communicator handle.
fn handle_of(parameter: &Parameter) -> ncclParamHandle_t {
    let index = PARAMETERS.iter().position(|other| ptr::eq(other, parameter)).map_or(0, |index| index + 1);
    ptr::without_provenance_mut::<ncclParamHandle>(index << 4 | 8)
}

fn get(handle: ncclParamHandle_t) -> Result<&'static Parameter> {
    PARAMETERS
        .iter()
        .find(|parameter| handle_of(parameter) == handle)
        .ok_or_else(|| Error::argument(format!("{handle:p} is not a parameter handle of ncclParamBind")))
}
