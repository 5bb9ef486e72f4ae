//! cuRAND.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use crate::handles::Handles;

/// The release that has the functions exported here: major, minor, patch.
const RELEASE: [c_int; 3] = [10, 3, 0];

const SUCCESS: c_int = 0;
const NOT_INITIALIZED: c_int = 101;
const TYPE_ERROR: c_int = 103;
const OUT_OF_RANGE: c_int = 104;
/// There is no code for what is not supported; these are errors of the kernels that do not run.
const LAUNCH_FAILURE: c_int = 201;

static GENERATORS: Handles<()> = Handles::new();

/// Answers for a generator that nothing is kept of, as it generates nothing.
fn check(generator: *mut c_void) -> c_int {
    GENERATORS.with(generator, |()| SUCCESS).unwrap_or(NOT_INITIALIZED)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn curandCreateGenerator(out: *mut *mut c_void, kind: c_uint) -> c_int {
    const KINDS: [c_uint; 11] = [100, 101, 121, 141, 142, 161, 200, 201, 202, 203, 204];
    if !KINDS.contains(&kind) {
        return TYPE_ERROR;
    }
    // SAFETY: cuRAND's contract: null, which is an error, or valid for a write.
    match unsafe { out.as_mut() } {
        Some(out) => {
            *out = GENERATORS.create(());
            SUCCESS
        }
        None => NOT_INITIALIZED,
    }
}

#[unsafe(no_mangle)]
extern "C" fn curandDestroyGenerator(generator: *mut c_void) -> c_int {
    GENERATORS.destroy(generator).map_or(NOT_INITIALIZED, |()| SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn curandSetStream(generator: *mut c_void, _stream: *mut c_void) -> c_int {
    check(generator)
}

#[unsafe(no_mangle)]
extern "C" fn curandSetPseudoRandomGeneratorSeed(generator: *mut c_void, _seed: c_ulonglong) -> c_int {
    check(generator)
}

#[unsafe(no_mangle)]
extern "C" fn curandSetGeneratorOffset(generator: *mut c_void, _offset: c_ulonglong) -> c_int {
    check(generator)
}

#[unsafe(no_mangle)]
extern "C" fn curandSetGeneratorOrdering(generator: *mut c_void, _order: c_uint) -> c_int {
    check(generator)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn curandGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: cuRAND's contract: null, which is an error, or valid for a write.
    unsafe { version.as_mut() }.map_or(NOT_INITIALIZED, |version| {
        *version = RELEASE[0] * 1000 + RELEASE[1] * 100 + RELEASE[2];
        SUCCESS
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn curandGetProperty(which: c_uint, value: *mut c_int) -> c_int {
    // SAFETY: cuRAND's contract: null, which is an error, or valid for a write.
    match (RELEASE.get(which as usize), unsafe { value.as_mut() }) {
        (Some(number), Some(value)) => {
            *value = *number;
            SUCCESS
        }
        _ => OUT_OF_RANGE,
    }
}

unsupported! { "curand" LAUNCH_FAILURE:
    [""] {
        CreateGeneratorHost CreatePoissonDistribution DestroyDistribution Generate GenerateLogNormal
        GenerateLogNormalDouble GenerateLongLong GenerateNormal GenerateNormalDouble GeneratePoisson
        GeneratePoissonMethod GenerateSeeds GenerateUniform GenerateUniformDouble GetDirectionVectors32
        GetDirectionVectors64 GetScrambleConstants32 GetScrambleConstants64 SetQuasiRandomGeneratorDimensions
    }
}
