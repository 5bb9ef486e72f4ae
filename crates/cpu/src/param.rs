//! Parameters: what this implementation is, and what it has read from the environment.

use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::sync::LazyLock;
use std::sync::atomic::AtomicPtr;

use libnccl::sys::{ncclParamHandle, ncclParamHandle_t};

use crate::debug;
use crate::failure::{Failure, Result};
use crate::world::MAX_RANKS;

/// The type of a parameter that is no number.
pub(crate) const TEXT: &str = "text";

#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) key: &'static CStr,
    pub(crate) about: &'static str,
    /// [`TEXT`], or a number's type as Rust calls it.
    pub(crate) kind: &'static str,
    bytes: Vec<u8>,
    text: CString,
}

/// All of them, for the rest of the process: what C has been given stays valid.
static PARAMETERS: LazyLock<Vec<Parameter>> = LazyLock::new(|| {
    let debug = debug::settings();
    vec![
        // By this one a caller tells this from an implementation whose memory is a GPU's.
        text(c"LIBNCCL_MEMORY_SPACE", "Where buffers are", "host"),
        number(c"LIBNCCL_MAX_RANKS", "The most ranks of a communicator", MAX_RANKS as i64),
        text(c"NCCL_DEBUG", "The most verbose lines that are printed", debug.level()),
        text(
            c"NCCL_DEBUG_FILE",
            "Where to, %h for the host and %p for the process",
            debug.file_name().as_encoded_bytes(),
        ),
        text(c"NCCL_DEBUG_SUBSYS", "What INFO lines are about", debug.subsystems()),
        text(c"NCCL_DEBUG_TIMESTAMP_FORMAT", "The time, as strftime formats it", debug.stamp().to_bytes()),
        text(c"NCCL_DEBUG_TIMESTAMP_LEVELS", "The levels whose lines start with the time", debug.stamped()),
    ]
});

/// The keys as C wants them: an array of pointers that is not constant.
static KEYS: LazyLock<Vec<AtomicPtr<c_char>>> = LazyLock::new(|| {
    PARAMETERS.iter().map(|parameter| AtomicPtr::new(parameter.key.as_ptr().cast_mut())).collect()
});

fn text(key: &'static CStr, about: &'static str, value: impl AsRef<[u8]>) -> Parameter {
    // The values are a C program's environment or this file's: none has a zero byte.
    let text = CString::new(value.as_ref()).unwrap_or_default();
    Parameter { key, about, kind: TEXT, bytes: text.as_bytes_with_nul().to_vec(), text }
}

fn number(key: &'static CStr, about: &'static str, value: i64) -> Parameter {
    let text = CString::new(value.to_string()).unwrap_or_default();
    Parameter { key, about, kind: "i64", bytes: value.to_ne_bytes().to_vec(), text }
}

impl Parameter {
    /// The value as text, whatever its type.
    pub(crate) fn text(&self) -> &CStr {
        &self.text
    }

    /// The value as it lies in memory; text with the zero byte that ends it.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether the value is of a type, which it has to be exactly.
    pub(crate) fn check_kind(&self, kind: &str) -> Result {
        if self.kind == kind {
            return Ok(());
        }
        let key = self.key.to_string_lossy();
        Err(Failure::argument(format!("the parameter {key} is {} and was asked for as {kind}", self.kind)))
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
        .ok_or_else(|| Failure::argument(format!("there is no parameter {key:?}")))
}

/// A number and no address, and none that a communicator has.
pub(crate) fn handle(parameter: &Parameter) -> ncclParamHandle_t {
    let index = all().iter().position(|other| ptr::eq(other, parameter)).map_or(0, |index| index + 1);
    ptr::without_provenance_mut::<ncclParamHandle>(index << 4 | 8)
}

pub(crate) fn get(handle: ncclParamHandle_t) -> Result<&'static Parameter> {
    all()
        .iter()
        .find(|parameter| self::handle(parameter) == handle)
        .ok_or_else(|| Failure::argument(format!("{handle:p} is no parameter: ncclParamBind gives them")))
}
