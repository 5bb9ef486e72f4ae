//! The private tables of functions that NVIDIA's libraries ask the driver for.

use std::ffi::c_void;
use std::mem;

use cudarc::driver::sys::CUresult;

use super::{nvidias_runtime, put, unsupported};

/// The table without which CUPTI fails before anything else.
const OF_CUPTI: [u8; 16] =
    [0x7c, 0xb6, 0x3f, 0x9b, 0x9c, 0xa4, 0x8e, 0x42, 0xa4, 0x84, 0xbe, 0xb6, 0x6e, 0x6a, 0xed, 0x7f];

/// A table, as far as is known: its length in bytes, this number included, and functions.
#[repr(C)]
struct Table {
    length: usize,
    functions: [extern "C" fn() -> CUresult; 511],
}

/// A table that says that it has no functions.
///
/// CUPTI 13.2 looks at the length, and is happy; where there is no table, its search for a text for the error begins with the
/// search for the table, until the stack overflows. CUPTI 12 does not look, and calls a function. Both find other tables
/// missing then, and end with an error.
static EMPTY: Table = Table { length: mem::size_of::<usize>(), functions: [refuse; 511] };

extern "C" fn refuse() -> CUresult {
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}

api! {
    fn cuGetExportTable(out: *mut *const c_void, id: *const [u8; 16]) {
        let id = id.as_ref().ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if *id == OF_CUPTI {
            return put(out, (&raw const EMPTY).cast());
        }
        if !nvidias_runtime::is_known() {
            unsupported::say(
                "cuGetExportTable, of which NVIDIA's libraries, such as CUPTI, need private functions",
            );
        }
        Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    }
}
