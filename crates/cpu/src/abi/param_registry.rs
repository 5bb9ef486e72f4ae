//! The registry of parameters: properties of this implementation, and what it has read from the environment.

use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::sync::LazyLock;
use std::sync::atomic::AtomicPtr;

use libnccl::sys::{ncclParamHandle, ncclParamHandle_t};

use crate::comm::group;
use crate::cuda::driver::driver;
use crate::diag::debug;
use crate::diag::error::{Error, Result};
use crate::shm::layout::MAX_RANKS;

/// The type of a parameter that is not a number.
pub(crate) const TEXT: &str = "text";

#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) key: &'static CStr,
    pub(crate) about: &'static str,
    /// [`TEXT`], or a number's type as Rust calls it.
    pub(crate) kind: &'static str,
    value: Value,
}

/// The value of a parameter: its bytes in memory, and its text.
#[derive(Debug)]
enum Value {
    Known(Vec<u8>, CString),
    /// The memory space, which is decided when a program first asks for it.
    MemorySpace,
    /// The number of groups that are open on the calling thread.
    OpenGroups,
}

/// All parameters, which live as long as the process, so that pointers given to C stay valid.
static PARAMETERS: LazyLock<Vec<Parameter>> = LazyLock::new(|| {
    let debug = debug::settings();
    vec![
        // The facade recognises an implementation on host memory by this one.
        Parameter {
            key: c"LIBNCCL_MEMORY_SPACE",
            about: "Memory space of buffers",
            kind: TEXT,
            value: Value::MemorySpace,
        },
        // The facade checks this in debug builds: in a group of other code, its calls return before they run.
        Parameter {
            key: c"LIBNCCL_OPEN_GROUPS",
            about: "Number of groups that are open on the calling thread; at most 9 are counted",
            kind: TEXT,
            value: Value::OpenGroups,
        },
        number(c"LIBNCCL_MAX_RANKS", "Maximum number of ranks of a communicator", MAX_RANKS as i64),
        text(c"NCCL_DEBUG", "Level of the lines that are printed", debug.level),
        text(
            c"NCCL_DEBUG_FILE",
            "File to print to, with %h for the host and %p for the pid",
            &debug.file_name,
        ),
        text(c"NCCL_DEBUG_SUBSYS", "Subsystems of INFO lines", debug.subsystems()),
    ]
});

/// The keys as a mutable array of pointers, which C asks for.
static KEYS: LazyLock<Vec<AtomicPtr<c_char>>> = LazyLock::new(|| {
    PARAMETERS.iter().map(|parameter| AtomicPtr::new(parameter.key.as_ptr().cast_mut())).collect()
});

fn text(key: &'static CStr, about: &'static str, value: impl AsRef<[u8]>) -> Parameter {
    // The values come from the environment or from this file, so none has a zero byte.
    let text = CString::new(value.as_ref()).unwrap_or_default();
    Parameter { key, about, kind: TEXT, value: Value::Known(text.as_bytes_with_nul().to_vec(), text) }
}

fn number(key: &'static CStr, about: &'static str, value: i64) -> Parameter {
    let text = CString::new(value.to_string()).unwrap_or_default();
    Parameter { key, about, kind: "i64", value: Value::Known(value.to_ne_bytes().to_vec(), text) }
}

/// Returns the memory space of buffers: that of devices if the process has the stand-in for CUDA.
fn memory_space() -> &'static CStr {
    if driver().is_some() { c"device" } else { c"host" }
}

/// Returns the number of open groups as text, which lives as long as the process.
fn open_groups() -> &'static CStr {
    const COUNTS: [&CStr; 10] = [c"0", c"1", c"2", c"3", c"4", c"5", c"6", c"7", c"8", c"9"];
    COUNTS[(group::depth() as usize).min(COUNTS.len() - 1)]
}

impl Parameter {
    /// Returns the value as text, whatever its type.
    pub(crate) fn text(&self) -> &CStr {
        match &self.value {
            Value::Known(_, text) => text,
            Value::MemorySpace => memory_space(),
            Value::OpenGroups => open_groups(),
        }
    }

    /// Returns the value as bytes in memory; a text with its terminating zero byte.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.value {
            Value::Known(bytes, _) => bytes,
            Value::MemorySpace => memory_space().to_bytes_with_nul(),
            Value::OpenGroups => open_groups().to_bytes_with_nul(),
        }
    }

    /// Checks that the value is of exactly this type.
    pub(crate) fn check_kind(&self, kind: &str) -> Result {
        if self.kind == kind {
            return Ok(());
        }
        let key = self.key.to_string_lossy();
        Err(Error::argument(format!("the parameter {key} has type {}, not {kind}", self.kind)))
    }
}

pub(crate) fn all() -> &'static [Parameter] {
    &PARAMETERS
}

pub(crate) fn keys() -> *mut *const c_char {
    KEYS.as_ptr().cast_mut().cast()
}

pub(crate) fn find(key: &CStr) -> Result<&'static Parameter> {
    all()
        .iter()
        .find(|parameter| parameter.key == key)
        .ok_or_else(|| Error::argument(format!("there is no parameter {key:?}")))
}

/// Returns the handle of a parameter: a number that is not an address and not a communicator's handle.
pub(crate) fn handle(parameter: &Parameter) -> ncclParamHandle_t {
    let index = all().iter().position(|other| ptr::eq(other, parameter)).map_or(0, |index| index + 1);
    ptr::without_provenance_mut::<ncclParamHandle>(index << 4 | 8)
}

pub(crate) fn get(handle: ncclParamHandle_t) -> Result<&'static Parameter> {
    all()
        .iter()
        .find(|parameter| self::handle(parameter) == handle)
        .ok_or_else(|| Error::argument(format!("{handle:p} is not a parameter handle of ncclParamBind")))
}
