//! cuRAND.

use std::ffi::{c_int, c_uint, c_void};

use crate::shared::Handles;
use cuda_common::report_unsupported;

/// The version that has the functions exported here: major, minor, patch.
const VERSION: [c_int; 3] = [10, 3, 0];

type Status = c_int;

const SUCCESS: Status = 0;
const NOT_INITIALIZED: Status = 101;
const TYPE_ERROR: Status = 103;
const OUT_OF_RANGE: Status = 104;
/// cuRAND has no code for unsupported functions. This is its code for a kernel that cannot be launched.
const LAUNCH_FAILURE: Status = 201;

static GENERATORS: Handles<()> = Handles::new();

fn not_supported(function: &'static str) -> Status {
    report_unsupported(function);
    LAUNCH_FAILURE
}

// The unsupported functions of curand.txt.
include!(concat!(env!("OUT_DIR"), "/stubs.rs"));

#[unsafe(no_mangle)]
unsafe extern "C" fn curandCreateGenerator(out: *mut *mut c_void, kind: c_uint) -> Status {
    const KINDS: [c_uint; 11] = [100, 101, 121, 141, 142, 161, 200, 201, 202, 203, 204];
    if !KINDS.contains(&kind) {
        return TYPE_ERROR;
    }
    // SAFETY: cuRAND's contract: null, which is an error, or valid for a write.
    let Some(out) = (unsafe { out.as_mut() }) else { return NOT_INITIALIZED };
    *out = GENERATORS.create(());
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn curandDestroyGenerator(generator: *mut c_void) -> Status {
    GENERATORS.destroy(generator).map_or(NOT_INITIALIZED, |()| SUCCESS)
}

/// Exports functions that only check the generator: their other argument has no effect.
macro_rules! settings {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(generator: *mut c_void) -> Status {
            GENERATORS.with(generator, |()| SUCCESS).unwrap_or(NOT_INITIALIZED)
        }
    )*};
}

settings! {
    curandSetGeneratorOffset curandSetGeneratorOrdering curandSetPseudoRandomGeneratorSeed curandSetStream
}

#[unsafe(no_mangle)]
unsafe extern "C" fn curandGetVersion(version: *mut c_int) -> Status {
    // SAFETY: cuRAND's contract: null, which is an error, or valid for a write.
    let Some(version) = (unsafe { version.as_mut() }) else { return NOT_INITIALIZED };
    *version = VERSION[0] * 1000 + VERSION[1] * 100 + VERSION[2];
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn curandGetProperty(which: c_uint, value: *mut c_int) -> Status {
    // SAFETY: cuRAND's contract: null, which is an error, or valid for a write.
    let (Some(number), Some(value)) = (VERSION.get(which as usize), unsafe { value.as_mut() }) else {
        return OUT_OF_RANGE;
    };
    *value = *number;
    SUCCESS
}
