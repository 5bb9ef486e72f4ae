//! cuBLAS.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::handles::Handles;

/// The release that has the functions exported here: major, minor, patch.
const RELEASE: [c_int; 3] = if cfg!(feature = "cublas-13") { [13, 2, 0] } else { [12, 9, 0] };

const SUCCESS: c_int = 0;
const NOT_INITIALIZED: c_int = 1;
const INVALID_VALUE: c_int = 7;
const NOT_SUPPORTED: c_int = 15;

/// The settings of a handle.
#[derive(Debug, Default)]
struct Context {
    /// The address of the stream.
    stream: usize,
    pointer_mode: c_int,
    math_mode: c_int,
    atomics_mode: c_int,
    sm_count_target: c_int,
}

static CONTEXTS: Handles<Context> = Handles::new();

/// Stores an answer where the program wants it.
///
/// # Safety
///
/// `out` is null, which is an error, or valid for a write.
unsafe fn put<T>(out: *mut T, value: T) -> c_int {
    if out.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller promises that it is valid.
    unsafe { out.write(value) };
    SUCCESS
}

/// Uses the settings of a handle.
fn with(handle: *mut c_void, work: impl FnOnce(&mut Context) -> c_int) -> c_int {
    CONTEXTS.with(handle, work).unwrap_or(NOT_INITIALIZED)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasCreate_v2(out: *mut *mut c_void) -> c_int {
    if out.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: cuBLAS's contract: valid for a write.
    unsafe { put(out, CONTEXTS.create(Context::default())) }
}

#[unsafe(no_mangle)]
extern "C" fn cublasDestroy_v2(handle: *mut c_void) -> c_int {
    CONTEXTS.destroy(handle).map_or(NOT_INITIALIZED, |_| SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetStream_v2(handle: *mut c_void, stream: *mut c_void) -> c_int {
    with(handle, |context| {
        context.stream = stream.addr();
        SUCCESS
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasGetStream_v2(handle: *mut c_void, stream: *mut *mut c_void) -> c_int {
    // SAFETY: cuBLAS's contract: valid for a write.
    with(handle, |context| unsafe { put(stream, std::ptr::without_provenance_mut(context.stream)) })
}

// Nothing is ever put there.
#[unsafe(no_mangle)]
extern "C" fn cublasSetWorkspace_v2(handle: *mut c_void, _memory: *mut c_void, _length: usize) -> c_int {
    with(handle, |_| SUCCESS)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasGetVersion_v2(_handle: *mut c_void, version: *mut c_int) -> c_int {
    // SAFETY: cuBLAS's contract: valid for a write.
    unsafe { put(version, RELEASE[0] * 10000 + RELEASE[1] * 100 + RELEASE[2]) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasGetProperty(which: c_uint, value: *mut c_int) -> c_int {
    // SAFETY: cuBLAS's contract: valid for a write.
    RELEASE.get(which as usize).map_or(INVALID_VALUE, |number| unsafe { put(value, *number) })
}

/// Returns the name of a code, in this library's and as a text.
fn name(code: c_int) -> &'static CStr {
    match code {
        SUCCESS => c"CUBLAS_STATUS_SUCCESS",
        NOT_INITIALIZED => c"CUBLAS_STATUS_NOT_INITIALIZED",
        INVALID_VALUE => c"CUBLAS_STATUS_INVALID_VALUE",
        NOT_SUPPORTED => c"CUBLAS_STATUS_NOT_SUPPORTED",
        _ => c"a code that the CPU stand-in for cuBLAS does not return",
    }
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetStatusName(code: c_int) -> *const c_char {
    name(code).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetStatusString(code: c_int) -> *const c_char {
    name(code).as_ptr()
}

/// Exports the functions that change and tell a setting.
macro_rules! settings {
    ($($set:ident $get:ident $setting:ident;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $set(handle: *mut c_void, value: c_int) -> c_int {
            with(handle, |context| {
                context.$setting = value;
                SUCCESS
            })
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $get(handle: *mut c_void, value: *mut c_int) -> c_int {
            // SAFETY: cuBLAS's contract: valid for a write.
            with(handle, |context| unsafe { put(value, context.$setting) })
        }
    )*};
}

settings! {
    cublasSetPointerMode_v2 cublasGetPointerMode_v2 pointer_mode;
    cublasSetMathMode cublasGetMathMode math_mode;
    cublasSetAtomicsMode cublasGetAtomicsMode atomics_mode;
    cublasSetSmCountTarget cublasGetSmCountTarget sm_count_target;
}

// In both libraries.
unsupported! { "cublas" NOT_SUPPORTED:
    [""] {
        Alloc Cbdmm CgelsBatched CgeqrfBatched CgetrfBatched CgetriBatched CgetrsBatched CmatinvBatched Ctpttr
        Ctrttp Dbdmm DgelsBatched DgeqrfBatched DgetrfBatched DgetriBatched DgetrsBatched DmatinvBatched Dtpttr
        Dtrttp Free GetBackdoor GetCudartVersion GetError GetLoggerCallback GetVersion Init LoggerConfigure
        RotgEx RotmgEx Sbdmm SetBackdoor SetBackdoorEx SetKernelStream SetLoggerCallback SgelsBatched
        SgeqrfBatched SgetrfBatched SgetriBatched SgetrsBatched Shutdown SmatinvBatched Stpttr Strttp
        Uint8gemmBias Xerbla XtCgemm XtChemm XtCher2k XtCherk XtCherkx XtCreate XtCspmm XtCsymm XtCsyr2k XtCsyrk
        XtCsyrkx XtCtrmm XtCtrsm XtDestroy XtDeviceSelect XtDgemm XtDspmm XtDsymm XtDsyr2k XtDsyrk XtDsyrkx
        XtDtrmm XtDtrsm XtGetBlockDim XtGetNumBoards XtGetPinningMemMode XtMaxBoards XtSetBlockDim XtSetCpuRatio
        XtSetCpuRoutine XtSetPinningMemMode XtSgemm XtSspmm XtSsymm XtSsyr2k XtSsyrk XtSsyrkx XtStrmm XtStrsm
        XtZgemm XtZhemm XtZher2k XtZherk XtZherkx XtZspmm XtZsymm XtZsyr2k XtZsyrk XtZsyrkx XtZtrmm XtZtrsm
        Zbdmm ZgelsBatched ZgeqrfBatched ZgetrfBatched ZgetriBatched ZgetrsBatched ZmatinvBatched Ztpttr Ztrttp
    }
    ["" "_64"] {
        AsumEx AxpyEx Cdgmm Cgeam Cgemm3m Cgemm3mBatched Cgemm3mEx Cgemm3mStridedBatched CgemmBatched CgemmEx
        CgemmStridedBatched CgemvBatched CgemvStridedBatched Cherk3mEx CherkEx Cherkx CopyEx Csyrk3mEx CsyrkEx
        Csyrkx CtrsmBatched Ddgmm Dgeam DgemmBatched DgemmGroupedBatched DgemmStridedBatched DgemvBatched
        DgemvStridedBatched DotEx DotcEx Dsyrkx DtrsmBatched GemmBatchedEx GemmEx GemmGroupedBatchedEx
        GemmStridedBatchedEx GetMatrix GetMatrixAsync GetVector GetVectorAsync HSHgemvBatched
        HSHgemvStridedBatched HSSgemvBatched HSSgemvStridedBatched Hgemm HgemmBatched HgemmStridedBatched
        IamaxEx IaminEx Nrm2Ex RotEx RotmEx ScalEx Sdgmm SetMatrix SetMatrixAsync SetVector SetVectorAsync Sgeam
        SgemmBatched SgemmEx SgemmGroupedBatched SgemmStridedBatched SgemvBatched SgemvStridedBatched Ssyrkx
        StrsmBatched SwapEx TSSgemvBatched TSSgemvStridedBatched TSTgemvBatched TSTgemvStridedBatched Zdgmm
        Zgeam Zgemm3m ZgemmBatched ZgemmStridedBatched ZgemvBatched ZgemvStridedBatched Zherkx Zsyrkx
        ZtrsmBatched
    }
    ["" "_v2"] {
        Crotg Drotg Drotmg Srotg Srotmg Zrotg
    }
    ["" "_v2" "_v2_64"] {
        Caxpy Ccopy Cdotc Cdotu Cgbmv Cgemm Cgemv Cgerc Cgeru Chbmv Chemm Chemv Cher Cher2 Cher2k Cherk Chpmv
        Chpr Chpr2 Crot Cscal Csrot Csscal Cswap Csymm Csyr2k Csyrk Ctbmv Ctbsv Ctpmv Ctpsv Ctrmm Ctrmv Ctrsm
        Ctrsv Dasum Daxpy Dcopy Ddot Dgbmv Dgemm Dgemv Dger Dnrm2 Drot Drotm Dsbmv Dscal Dspmv Dspr Dspr2 Dswap
        Dsymm Dsymv Dsyr Dsyr2 Dsyr2k Dsyrk Dtbmv Dtbsv Dtpmv Dtpsv Dtrmm Dtrmv Dtrsm Dtrsv Dzasum Dznrm2 Icamax
        Icamin Idamax Idamin Isamax Isamin Izamax Izamin Sasum Saxpy Scasum Scnrm2 Scopy Sdot Sgbmv Sgemm Sgemv
        Sger Snrm2 Srot Srotm Ssbmv Sscal Sspmv Sspr Sspr2 Sswap Ssymm Ssymv Ssyr Ssyr2 Ssyr2k Ssyrk Stbmv Stbsv
        Stpmv Stpsv Strmm Strmv Strsm Strsv Zaxpy Zcopy Zdotc Zdotu Zdrot Zdscal Zgbmv Zgemm Zgemv Zgerc Zgeru
        Zhbmv Zhemm Zhemv Zher Zher2 Zher2k Zherk Zhpmv Zhpr Zhpr2 Zrot Zscal Zswap Zsymm Zsyr2k Zsyrk Ztbmv
        Ztbsv Ztpmv Ztpsv Ztrmm Ztrmv Ztrsm Ztrsv
    }
    ["_v2" "_v2_64"] {
        Csymv Csyr Csyr2 Zsymv Zsyr Zsyr2
    }
}

#[cfg(feature = "cublas-13")]
unsupported! { "cublas" NOT_SUPPORTED:
    [""] {
        GetEmulationSpecialValuesSupport GetEmulationStrategy GetEnvironmentMode
        GetFixedPointEmulationMantissaBitCountPointer GetFixedPointEmulationMantissaBitOffset
        GetFixedPointEmulationMantissaControl GetFixedPointEmulationMaxMantissaBitCount
        SetEmulationSpecialValuesSupport SetEmulationStrategy SetEnvironmentMode
        SetFixedPointEmulationMantissaBitCountPointer SetFixedPointEmulationMantissaBitOffset
        SetFixedPointEmulationMantissaControl SetFixedPointEmulationMaxMantissaBitCount
    }
}
