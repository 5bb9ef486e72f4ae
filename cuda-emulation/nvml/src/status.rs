//! Result codes.

use std::ffi::{CStr, c_char};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Status(u32);

pub(crate) type Result<T> = std::result::Result<T, Status>;

macro_rules! codes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl Status {
            $(pub(crate) const $name: Self = Self($code);)*
        }

        #[unsafe(no_mangle)]
        extern "C" fn nvmlErrorString(code: u32) -> *const c_char {
            let text: &CStr = match code {
                $($code => $text,)*
                _ => c"a code that the emulated NVML does not return",
            };
            text.as_ptr()
        }
    };
}

codes! {
    SUCCESS = 0, c"Success";
    UNINITIALIZED = 1, c"Uninitialized";
    INVALID_ARGUMENT = 2, c"Invalid Argument";
    NOT_SUPPORTED = 3, c"Not Supported";
    NOT_FOUND = 6, c"Not Found";
    INSUFFICIENT_SIZE = 7, c"Insufficient Size";
    DRIVER_NOT_LOADED = 9, c"Driver Not Loaded";
    ARGUMENT_VERSION_MISMATCH = 25, c"Argument Version Mismatch";
    GPU_NOT_FOUND = 28, c"No GPUs were found";
    UNKNOWN = 999, c"Unknown Error";
}
