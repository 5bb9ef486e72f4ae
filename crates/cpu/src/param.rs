//! Parameters: constants that say what this implementation is.

use std::ffi::{CStr, c_char};
use std::sync::atomic::AtomicPtr;

/// Keys and values. By the first one a caller tells this from an implementation whose memory is a GPU's.
pub(crate) const PARAMETERS: [(&CStr, &CStr); 1] = [(c"LIBNCCL_MEMORY_SPACE", c"host")];

/// The keys as C wants them: an array of pointers that is not constant.
static KEYS: [AtomicPtr<c_char>; PARAMETERS.len()] = {
    let [(key, _)] = PARAMETERS;
    [AtomicPtr::new(key.as_ptr().cast_mut())]
};

pub(crate) fn keys() -> *mut *const c_char {
    KEYS.as_ptr().cast_mut().cast()
}

pub(crate) fn value(key: &CStr) -> Option<&'static CStr> {
    PARAMETERS.iter().find(|(known, _)| *known == key).map(|(_, value)| *value)
}
