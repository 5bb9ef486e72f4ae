pub const NCCL_MAJOR: u32 = 2;
pub const NCCL_MINOR: u32 = 32;
pub const NCCL_PATCH: u32 = 3;
pub const NCCL_SUFFIX: &[u8; 1] = b"\0";
pub const NCCL_VERSION_CODE: u32 = 23203;
pub const NCCL_UNIQUE_ID_BYTES: u32 = 128;
pub const NCCL_CONFIG_UNDEF_INT: i32 = -2147483648;
pub const NCCL_SPLIT_NOCOLOR: i32 = -1;
pub const NCCL_UNDEF_FLOAT: f64 = -1.0;
pub const NCCL_API_MAGIC: u32 = 3405692655;
pub const NCCL_WIN_DEFAULT: u32 = 0;
pub const NCCL_WIN_COLL_SYMMETRIC: u32 = 1;
pub const NCCL_WIN_STRICT_ORDERING: u32 = 2;
pub const NCCL_WIN_GIN_ONLY: u32 = 4;
pub const NCCL_WIN_CFT_COUNTED: u32 = 8;
pub const NCCL_WIN_REQUIRED_ALIGNMENT: u32 = 4096;
pub const NCCL_CTA_POLICY_DEFAULT: u32 = 0;
pub const NCCL_CTA_POLICY_EFFICIENCY: u32 = 1;
pub const NCCL_CTA_POLICY_ZERO: u32 = 2;
pub const NCCL_SHRINK_DEFAULT: u32 = 0;
pub const NCCL_SHRINK_ABORT: u32 = 1;
pub const NCCL_REVOKE_DEFAULT: u32 = 0;
pub const NCCL_SUSPEND_MEM: u32 = 1;
#[repr(C)]
#[derive(Debug)]
pub struct CUstream_st {
    _unused: [u8; 0],
}
pub type cudaStream_t = *mut CUstream_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUevent_st {
    _unused: [u8; 0],
}
pub type cudaEvent_t = *mut CUevent_st;
#[repr(C)]
#[derive(Debug)]
pub struct ncclComm {
    _unused: [u8; 0],
}
/** A rank's handle to a communicator; the struct behind it is private to NCCL.

 Not thread-safe: one thread at a time may use it. `ncclCommDestroy` and `ncclCommAbort` free the communicator; any
 later use is a use after free.
 Since NCCL 2.13.4.*/
pub type ncclComm_t = *mut ncclComm;
#[repr(C)]
#[derive(Debug)]
pub struct ncclWindow_vidmem {
    _unused: [u8; 0],
}
/** A rank's handle to a window: a buffer that `ncclCommWindowRegister` has registered.

 `NULL` is valid: registration succeeded, but this system does not support windows.
 Since NCCL 2.27.3.*/
pub type ncclWindow_t = *mut ncclWindow_vidmem;
/** The id with which ranks find each other: created once, sent to every rank, passed by value to the init calls.

 128 opaque bytes, which can be copied and sent. All ranks must use the same NCCL version.
 Since NCCL 2.13.4.*/
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclUniqueId {
    /// The bytes. NCCL 2.16.5 to 2.22.3 fill only the first 40: zero all of them beforehand. Since NCCL 2.13.4.
    pub internal: [::core::ffi::c_char; 128usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclUniqueId"][::core::mem::size_of::<ncclUniqueId>() - 128usize];
    ["Alignment of ncclUniqueId"][::core::mem::align_of::<ncclUniqueId>() - 1usize];
    [
        "Offset of field: ncclUniqueId::internal",
    ][::core::mem::offset_of!(ncclUniqueId, internal) - 0usize];
};
impl Default for ncclUniqueId {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ncclResult_t {
    /// Done, or enqueued. Since NCCL 2.13.4.
    pub const ncclSuccess: ncclResult_t = ncclResult_t(0);
    /// A CUDA call failed, or there is no driver or no GPU. Since NCCL 2.13.4.
    pub const ncclUnhandledCudaError: ncclResult_t = ncclResult_t(1);
    /// A system call failed: a socket, a file, shared memory. Since NCCL 2.13.4.
    pub const ncclSystemError: ncclResult_t = ncclResult_t(2);
    /// An internal check failed: a bug in NCCL, or memory corruption. Since NCCL 2.13.4.
    pub const ncclInternalError: ncclResult_t = ncclResult_t(3);
    /// An argument is invalid: null, out of range, wrong magic. Since NCCL 2.13.4.
    pub const ncclInvalidArgument: ncclResult_t = ncclResult_t(4);
    /// The call is invalid in this state: unmatched group end, ranks with different versions. Since NCCL 2.13.4.
    pub const ncclInvalidUsage: ncclResult_t = ncclResult_t(5);
    /// Another process has exited, or its network has failed. Abort the communicator. Since NCCL 2.13.4.
    pub const ncclRemoteError: ncclResult_t = ncclResult_t(6);
    /// No failure: the call on a nonblocking communicator is still in progress. Since NCCL 2.14.3.
    pub const ncclInProgress: ncclResult_t = ncclResult_t(7);
    /// A wait exceeded its time limit. Since NCCL 2.30.3.
    pub const ncclTimeout: ncclResult_t = ncclResult_t(8);
    /// The number of codes in this version; it grows with each new code. Since NCCL 2.13.4.
    pub const ncclNumResults: ncclResult_t = ncclResult_t(9);
}
#[repr(transparent)]
/** The result of nearly every function.

 Newer libraries may return codes that this header does not define. With `NCCL_DEBUG=WARN` in the environment,
 NCCL prints the reason for most failures to standard output.
 Since NCCL 2.13.4.*/
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclResult_t(pub ::core::ffi::c_uint);
impl ncclHostCftMode_t {
    /// The library's choice; `ncclHostCftDisable` in 2.32.3. Since NCCL 2.31.2.
    pub const ncclHostCftDefault: ncclHostCftMode_t = ncclHostCftMode_t(-2147483648);
    /// Create the endpoints when the first window is registered; a failure is an error. Since NCCL 2.31.2.
    pub const ncclHostCftEnable: ncclHostCftMode_t = ncclHostCftMode_t(1);
    /// Do not create endpoints. Since NCCL 2.31.2.
    pub const ncclHostCftDisable: ncclHostCftMode_t = ncclHostCftMode_t(2);
    /// Try to create the endpoints; a failure is no error. Since NCCL 2.31.2.
    pub const ncclHostCftFallback: ncclHostCftMode_t = ncclHostCftMode_t(3);
}
#[repr(transparent)]
/** Values of `hostCftMode` in `ncclConfig_t`: whether NCCL creates endpoints of the compute fabric transport (CFT),
 which the host can query.

 Since NCCL 2.31.2.*/
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclHostCftMode_t(pub ::core::ffi::c_int);
impl ncclNvlsHostMode_t {
    /// The library's choice; in 2.32.3, `ncclNvlsHostModeEnable`. Since NCCL 2.32.3.
    pub const ncclNvlsHostModeDefault: ncclNvlsHostMode_t = ncclNvlsHostMode_t(
        -2147483648,
    );
    /// Disable nothing. Since NCCL 2.32.3.
    pub const ncclNvlsHostModeEnable: ncclNvlsHostMode_t = ncclNvlsHostMode_t(0);
    /// Disable the NVLS algorithms, with their optimization for registered buffers. Since NCCL 2.32.3.
    pub const ncclNvlsHostModeDisableTransport: ncclNvlsHostMode_t = ncclNvlsHostMode_t(
        1,
    );
    /// Disable multicast addresses in symmetric kernels and in copies by copy engines. Since NCCL 2.32.3.
    pub const ncclNvlsHostModeDisableSymmetricMultimem: ncclNvlsHostMode_t = ncclNvlsHostMode_t(
        2,
    );
    /// Disable all uses, including uses that later versions add. Since NCCL 2.32.3.
    pub const ncclNvlsHostModeDisable: ncclNvlsHostMode_t = ncclNvlsHostMode_t(
        2147483647,
    );
}
#[repr(transparent)]
/** Values of `nvlsHostMode` in `ncclConfig_t`: the uses of NVLink SHARP (NVLS) that a communicator disables.

 `ncclNvlsHostModeDisableTransport` and `ncclNvlsHostModeDisableSymmetricMultimem` are bits that can be combined.
 Since NCCL 2.32.3.*/
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclNvlsHostMode_t(pub ::core::ffi::c_int);
/** Options of one communicator, read during the call that creates it.

 Start from `NCCL_CONFIG_INITIALIZER`, then set fields. New versions only append fields. The library copies `size`
 bytes, but not more than its own struct has, so a library older than the header silently ignores the fields that it
 lacks. Fields newer than the struct's `version` have their defaults. Zero the padding too, because later versions may
 put fields there, as they did with `trafficClass` and `graphStreamOrdering`. An invalid value causes
 `ncclInvalidArgument`. The `NCCL_*` environment variables take precedence over the fields.
 Since NCCL 2.14.3.*/
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclConfig_v23100 {
    /// The size of this struct in bytes; 120 in this version. Since NCCL 2.14.3.
    pub size: usize,
    /// `NCCL_API_MAGIC`; any other value causes `ncclInvalidArgument`. Since NCCL 2.14.3.
    pub magic: ::core::ffi::c_uint,
    /// `NCCL_VERSION_CODE` of the header that `size` comes from. Since NCCL 2.14.3.
    pub version: ::core::ffi::c_uint,
    /** 1: calls wait (default). 0: calls may return `ncclInProgress`. NCCL before 2.17 has no default.
 Since NCCL 2.14.3.*/
    pub blocking: ::core::ffi::c_int,
    /// The number of thread blocks per cluster, 0 to 8; default 4 on Hopper and newer GPUs. Since NCCL 2.17.1.
    pub cgaClusterSize: ::core::ffi::c_int,
    /// The minimum number of thread blocks of a kernel; default 1. Since NCCL 2.17.1.
    pub minCTAs: ::core::ffi::c_int,
    /// The maximum number of thread blocks of a kernel, at least `minCTAs`. Since NCCL 2.17.1.
    pub maxCTAs: ::core::ffi::c_int,
    /// The network to use ("IB", "Socket" or a plugin's name), copied during the call. Since NCCL 2.17.1.
    pub netName: *const ::core::ffi::c_char,
    /// 1: children created by `ncclCommSplit` share this communicator's resources; default 0. Since NCCL 2.18.1.
    pub splitShare: ::core::ffi::c_int,
    /// The service level (InfiniBand) or type of service (RoCE) of the traffic, 0 or more. Since NCCL 2.26.2.
    pub trafficClass: ::core::ffi::c_int,
    /// The name for logs and profilers; must outlive the communicator and its children. Since NCCL 2.27.3.
    pub commName: *const ::core::ffi::c_char,
    /// 1: reduce inside InfiniBand switches (SHARP); default 0. Since NCCL 2.27.3.
    pub collnetEnable: ::core::ffi::c_int,
    /// Bits of `NCCL_CTA_POLICY_*`: the trade-off between speed and GPU resources. Since NCCL 2.27.3.
    pub CTAPolicy: ::core::ffi::c_int,
    /// 1: children created by `ncclCommShrink` share this communicator's resources; default 0. Since NCCL 2.27.3.
    pub shrinkShare: ::core::ffi::c_int,
    /// The number of thread blocks that use NVLink SHARP; the default depends on the topology. Since NCCL 2.27.3.
    pub nvlsCTAs: ::core::ffi::c_int,
    /// The number of network channels between two ranks, rounded up to a power of two. Since NCCL 2.28.3.
    pub nChannelsPerNetPeer: ::core::ffi::c_int,
    /// 1: optimize the schedule for NVLink; default 0. Since NCCL 2.28.3.
    pub nvlinkCentricSched: ::core::ffi::c_int,
    /** CUDA graphs with this communicator. 0: none. 1: one. 2 (default): several, or also operations outside graphs.
 Since NCCL 2.29.2.*/
    pub graphUsageMode: ::core::ffi::c_int,
    /// The number of contexts of one-sided operations; `ctx` must be lower. Default 1. Since NCCL 2.29.2.
    pub numRmaCtx: ::core::ffi::c_int,
    /// The maximum number of peers in a rank's simultaneous sends and receives; default all. Since NCCL 2.30.3.
    pub maxP2pPeers: ::core::ffi::c_int,
    /** 1 (default): NCCL orders captured kernels. 0: the program orders them; requires `graphUsageMode` 0 or 1.
 Since NCCL 2.30.7.*/
    pub graphStreamOrdering: ::core::ffi::c_int,
    /// 1: operations of several communicators start in the order of their calls; default 0. Since NCCL 2.31.2.
    pub launchOrderImplicit: ::core::ffi::c_int,
    /// The number of signals of each context; `sigIdx` must be lower. Default 1. Since NCCL 2.31.2.
    pub numRmaSig: ::core::ffi::c_int,
    /// 1: prepare signals at init, not with the first window. Required for signals without windows. Since NCCL 2.31.2.
    pub rmaEagerInit: ::core::ffi::c_int,
    /// A value of `ncclHostCftMode_t`. Since NCCL 2.31.2.
    pub hostCftMode: ::core::ffi::c_int,
    /// A value of `ncclNvlsHostMode_t`, or a bitwise or of values. Four bytes of padding follow. Since NCCL 2.32.3.
    pub nvlsHostMode: ::core::ffi::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ncclConfig_v23100",
    ][::core::mem::size_of::<ncclConfig_v23100>() - 120usize];
    [
        "Alignment of ncclConfig_v23100",
    ][::core::mem::align_of::<ncclConfig_v23100>() - 8usize];
    [
        "Offset of field: ncclConfig_v23100::size",
    ][::core::mem::offset_of!(ncclConfig_v23100, size) - 0usize];
    [
        "Offset of field: ncclConfig_v23100::magic",
    ][::core::mem::offset_of!(ncclConfig_v23100, magic) - 8usize];
    [
        "Offset of field: ncclConfig_v23100::version",
    ][::core::mem::offset_of!(ncclConfig_v23100, version) - 12usize];
    [
        "Offset of field: ncclConfig_v23100::blocking",
    ][::core::mem::offset_of!(ncclConfig_v23100, blocking) - 16usize];
    [
        "Offset of field: ncclConfig_v23100::cgaClusterSize",
    ][::core::mem::offset_of!(ncclConfig_v23100, cgaClusterSize) - 20usize];
    [
        "Offset of field: ncclConfig_v23100::minCTAs",
    ][::core::mem::offset_of!(ncclConfig_v23100, minCTAs) - 24usize];
    [
        "Offset of field: ncclConfig_v23100::maxCTAs",
    ][::core::mem::offset_of!(ncclConfig_v23100, maxCTAs) - 28usize];
    [
        "Offset of field: ncclConfig_v23100::netName",
    ][::core::mem::offset_of!(ncclConfig_v23100, netName) - 32usize];
    [
        "Offset of field: ncclConfig_v23100::splitShare",
    ][::core::mem::offset_of!(ncclConfig_v23100, splitShare) - 40usize];
    [
        "Offset of field: ncclConfig_v23100::trafficClass",
    ][::core::mem::offset_of!(ncclConfig_v23100, trafficClass) - 44usize];
    [
        "Offset of field: ncclConfig_v23100::commName",
    ][::core::mem::offset_of!(ncclConfig_v23100, commName) - 48usize];
    [
        "Offset of field: ncclConfig_v23100::collnetEnable",
    ][::core::mem::offset_of!(ncclConfig_v23100, collnetEnable) - 56usize];
    [
        "Offset of field: ncclConfig_v23100::CTAPolicy",
    ][::core::mem::offset_of!(ncclConfig_v23100, CTAPolicy) - 60usize];
    [
        "Offset of field: ncclConfig_v23100::shrinkShare",
    ][::core::mem::offset_of!(ncclConfig_v23100, shrinkShare) - 64usize];
    [
        "Offset of field: ncclConfig_v23100::nvlsCTAs",
    ][::core::mem::offset_of!(ncclConfig_v23100, nvlsCTAs) - 68usize];
    [
        "Offset of field: ncclConfig_v23100::nChannelsPerNetPeer",
    ][::core::mem::offset_of!(ncclConfig_v23100, nChannelsPerNetPeer) - 72usize];
    [
        "Offset of field: ncclConfig_v23100::nvlinkCentricSched",
    ][::core::mem::offset_of!(ncclConfig_v23100, nvlinkCentricSched) - 76usize];
    [
        "Offset of field: ncclConfig_v23100::graphUsageMode",
    ][::core::mem::offset_of!(ncclConfig_v23100, graphUsageMode) - 80usize];
    [
        "Offset of field: ncclConfig_v23100::numRmaCtx",
    ][::core::mem::offset_of!(ncclConfig_v23100, numRmaCtx) - 84usize];
    [
        "Offset of field: ncclConfig_v23100::maxP2pPeers",
    ][::core::mem::offset_of!(ncclConfig_v23100, maxP2pPeers) - 88usize];
    [
        "Offset of field: ncclConfig_v23100::graphStreamOrdering",
    ][::core::mem::offset_of!(ncclConfig_v23100, graphStreamOrdering) - 92usize];
    [
        "Offset of field: ncclConfig_v23100::launchOrderImplicit",
    ][::core::mem::offset_of!(ncclConfig_v23100, launchOrderImplicit) - 96usize];
    [
        "Offset of field: ncclConfig_v23100::numRmaSig",
    ][::core::mem::offset_of!(ncclConfig_v23100, numRmaSig) - 100usize];
    [
        "Offset of field: ncclConfig_v23100::rmaEagerInit",
    ][::core::mem::offset_of!(ncclConfig_v23100, rmaEagerInit) - 104usize];
    [
        "Offset of field: ncclConfig_v23100::hostCftMode",
    ][::core::mem::offset_of!(ncclConfig_v23100, hostCftMode) - 108usize];
    [
        "Offset of field: ncclConfig_v23100::nvlsHostMode",
    ][::core::mem::offset_of!(ncclConfig_v23100, nvlsHostMode) - 112usize];
};
impl Default for ncclConfig_v23100 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
/** Options of one communicator, read during the call that creates it.

 Start from `NCCL_CONFIG_INITIALIZER`, then set fields. New versions only append fields. The library copies `size`
 bytes, but not more than its own struct has, so a library older than the header silently ignores the fields that it
 lacks. Fields newer than the struct's `version` have their defaults. Zero the padding too, because later versions may
 put fields there, as they did with `trafficClass` and `graphStreamOrdering`. An invalid value causes
 `ncclInvalidArgument`. The `NCCL_*` environment variables take precedence over the fields.
 Since NCCL 2.14.3.*/
pub type ncclConfig_t = ncclConfig_v23100;
/** An option for another vendor's build of NCCL; NVIDIA's build ignores such options.

 Options are linked by `next`, in any order, without cycles and without duplicate keys.
 Since NCCL 2.31.2.*/
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ncclConfigExt {
    /// The next option, or `NULL` at the end. Since NCCL 2.31.2.
    pub next: *mut ncclConfigExt,
    /// The key of the option. Since NCCL 2.31.2.
    pub key: ncclConfigExt__bindgen_ty_1,
    /// The value; the key determines the member. Since NCCL 2.31.2.
    pub val: ncclConfigExt__bindgen_ty_2,
}
/// A key: a vendor, and an option of this vendor. Since NCCL 2.31.2.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclConfigExt__bindgen_ty_1 {
    /// The vendor: a number from 1 to 2^24 - 1 that each vendor chooses. Since NCCL 2.31.2.
    pub vendorId: ::core::ffi::c_int,
    /// The number of the option, chosen by the vendor. Since NCCL 2.31.2.
    pub optionId: ::core::ffi::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ncclConfigExt__bindgen_ty_1",
    ][::core::mem::size_of::<ncclConfigExt__bindgen_ty_1>() - 8usize];
    [
        "Alignment of ncclConfigExt__bindgen_ty_1",
    ][::core::mem::align_of::<ncclConfigExt__bindgen_ty_1>() - 4usize];
    [
        "Offset of field: ncclConfigExt__bindgen_ty_1::vendorId",
    ][::core::mem::offset_of!(ncclConfigExt__bindgen_ty_1, vendorId) - 0usize];
    [
        "Offset of field: ncclConfigExt__bindgen_ty_1::optionId",
    ][::core::mem::offset_of!(ncclConfigExt__bindgen_ty_1, optionId) - 4usize];
};
/// A value: a number, a string or a pointer. Since NCCL 2.31.2.
#[repr(C)]
#[derive(Copy, Clone)]
pub union ncclConfigExt__bindgen_ty_2 {
    /// A number. Since NCCL 2.31.2.
    pub i: ::core::ffi::c_int,
    /// A null-terminated string. Since NCCL 2.31.2.
    pub s: *const ::core::ffi::c_char,
    /// Any other value. Since NCCL 2.31.2.
    pub raw: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ncclConfigExt__bindgen_ty_2",
    ][::core::mem::size_of::<ncclConfigExt__bindgen_ty_2>() - 8usize];
    [
        "Alignment of ncclConfigExt__bindgen_ty_2",
    ][::core::mem::align_of::<ncclConfigExt__bindgen_ty_2>() - 8usize];
    [
        "Offset of field: ncclConfigExt__bindgen_ty_2::i",
    ][::core::mem::offset_of!(ncclConfigExt__bindgen_ty_2, i) - 0usize];
    [
        "Offset of field: ncclConfigExt__bindgen_ty_2::s",
    ][::core::mem::offset_of!(ncclConfigExt__bindgen_ty_2, s) - 0usize];
    [
        "Offset of field: ncclConfigExt__bindgen_ty_2::raw",
    ][::core::mem::offset_of!(ncclConfigExt__bindgen_ty_2, raw) - 0usize];
};
impl Default for ncclConfigExt__bindgen_ty_2 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclConfigExt"][::core::mem::size_of::<ncclConfigExt>() - 24usize];
    ["Alignment of ncclConfigExt"][::core::mem::align_of::<ncclConfigExt>() - 8usize];
    [
        "Offset of field: ncclConfigExt::next",
    ][::core::mem::offset_of!(ncclConfigExt, next) - 0usize];
    [
        "Offset of field: ncclConfigExt::key",
    ][::core::mem::offset_of!(ncclConfigExt, key) - 8usize];
    [
        "Offset of field: ncclConfigExt::val",
    ][::core::mem::offset_of!(ncclConfigExt, val) - 16usize];
};
impl Default for ncclConfigExt {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
/** An option for another vendor's build of NCCL; NVIDIA's build ignores such options.

 Options are linked by `next`, in any order, without cycles and without duplicate keys.
 Since NCCL 2.31.2.*/
pub type ncclConfigExt_t = ncclConfigExt;
/** Options of one collective, for the functions whose names end in `Config`.

 Start from `NCCL_COLLCONFIG_INITIALIZER`. Pass equal options on all ranks: NCCL does not compare them. The struct and
 the memory that it points to must stay valid until the call (in a group: the outermost `ncclGroupEnd`) has returned.
 A wrong `magic` or too small a `size` causes `ncclInvalidArgument`. If you lower `version`, lower `size` too: NCCL
 2.31.2 copies `size` bytes, and its own struct is shorter than this one.
 Since NCCL 2.31.2.*/
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclCollConfig_v23200 {
    /// The size of this struct in bytes; 72 in this version, 64 in 2.31.2. Since NCCL 2.31.2.
    pub size: usize,
    /// `NCCL_API_MAGIC`. Since NCCL 2.31.2.
    pub magic: ::core::ffi::c_uint,
    /// `NCCL_VERSION_CODE` of the header that `size` comes from. Since NCCL 2.31.2.
    pub version: ::core::ffi::c_uint,
    /// Options for other vendors' builds, or `NULL`. Since NCCL 2.31.2.
    pub ext: *mut ncclConfigExt_t,
    /// The minimum number of thread blocks of this call. Since NCCL 2.31.2.
    pub minCTAs: ::core::ffi::c_int,
    /// The maximum number of thread blocks of this call, within the communicator's limit. Since NCCL 2.31.2.
    pub maxCTAs: ::core::ffi::c_int,
    /// The maximum number of thread blocks if NVLink SHARP does the work. Since NCCL 2.31.2.
    pub nvlsCTAs: ::core::ffi::c_int,
    /// The number of thread blocks per cluster, on Hopper and newer GPUs; equal in a whole group. Since NCCL 2.31.2.
    pub cgaClusterSize: ::core::ffi::c_int,
    /// Names of the algorithms to choose from, separated by commas; `NULL` or empty: all. Since NCCL 2.31.2.
    pub algSelection: *const ::core::ffi::c_char,
    /// 1 (default): fail if no algorithm of `algSelection` applies. 0: use any other algorithm. Since NCCL 2.31.2.
    pub forceAlgSelection: ::core::ffi::c_int,
    /// Bits of `NCCL_CTA_POLICY_*`; if not set, the communicator's bits. Since NCCL 2.31.2.
    pub CTAPolicy: ::core::ffi::c_int,
    /// A number for profiler plugins, 0 for none; the top bit is reserved for NCCL. Since NCCL 2.31.2.
    pub userProfilerTag: u64,
    /** An event of this rank, which NCCL records once the kernel has been launched, or `NULL`.

 Either all ranks pass an event, or none does. Create it with `cudaEventDisableTiming`, and without
 `cudaEventInterprocess`. A group has at most one event per communicator. Keep the event as long as any work or
 captured graph waits for it. NCCL built with CUDA older than 12.3 records it before the launch.
 Since NCCL 2.32.3.*/
    pub launchCompletionEvent: cudaEvent_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ncclCollConfig_v23200",
    ][::core::mem::size_of::<ncclCollConfig_v23200>() - 72usize];
    [
        "Alignment of ncclCollConfig_v23200",
    ][::core::mem::align_of::<ncclCollConfig_v23200>() - 8usize];
    [
        "Offset of field: ncclCollConfig_v23200::size",
    ][::core::mem::offset_of!(ncclCollConfig_v23200, size) - 0usize];
    [
        "Offset of field: ncclCollConfig_v23200::magic",
    ][::core::mem::offset_of!(ncclCollConfig_v23200, magic) - 8usize];
    [
        "Offset of field: ncclCollConfig_v23200::version",
    ][::core::mem::offset_of!(ncclCollConfig_v23200, version) - 12usize];
    [
        "Offset of field: ncclCollConfig_v23200::ext",
    ][::core::mem::offset_of!(ncclCollConfig_v23200, ext) - 16usize];
    [
        "Offset of field: ncclCollConfig_v23200::minCTAs",
    ][::core::mem::offset_of!(ncclCollConfig_v23200, minCTAs) - 24usize];
    [
        "Offset of field: ncclCollConfig_v23200::maxCTAs",
    ][::core::mem::offset_of!(ncclCollConfig_v23200, maxCTAs) - 28usize];
    [
        "Offset of field: ncclCollConfig_v23200::nvlsCTAs",
    ][::core::mem::offset_of!(ncclCollConfig_v23200, nvlsCTAs) - 32usize];
    [
        "Offset of field: ncclCollConfig_v23200::cgaClusterSize",
    ][::core::mem::offset_of!(ncclCollConfig_v23200, cgaClusterSize) - 36usize];
    [
        "Offset of field: ncclCollConfig_v23200::algSelection",
    ][::core::mem::offset_of!(ncclCollConfig_v23200, algSelection) - 40usize];
    [
        "Offset of field: ncclCollConfig_v23200::forceAlgSelection",
    ][::core::mem::offset_of!(ncclCollConfig_v23200, forceAlgSelection) - 48usize];
    [
        "Offset of field: ncclCollConfig_v23200::CTAPolicy",
    ][::core::mem::offset_of!(ncclCollConfig_v23200, CTAPolicy) - 52usize];
    [
        "Offset of field: ncclCollConfig_v23200::userProfilerTag",
    ][::core::mem::offset_of!(ncclCollConfig_v23200, userProfilerTag) - 56usize];
    [
        "Offset of field: ncclCollConfig_v23200::launchCompletionEvent",
    ][::core::mem::offset_of!(ncclCollConfig_v23200, launchCompletionEvent) - 64usize];
};
impl Default for ncclCollConfig_v23200 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
/** Options of one collective, for the functions whose names end in `Config`.

 Start from `NCCL_COLLCONFIG_INITIALIZER`. Pass equal options on all ranks: NCCL does not compare them. The struct and
 the memory that it points to must stay valid until the call (in a group: the outermost `ncclGroupEnd`) has returned.
 A wrong `magic` or too small a `size` causes `ncclInvalidArgument`. If you lower `version`, lower `size` too: NCCL
 2.31.2 copies `size` bytes, and its own struct is shorter than this one.
 Since NCCL 2.31.2.*/
pub type ncclCollConfig_t = ncclCollConfig_v23200;
/** The result of `ncclGroupSimulateEnd`.

 Start from `NCCL_SIM_INFO_INITIALIZER`.
 Since NCCL 2.22.3.*/
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq)]
pub struct ncclSimInfo_v22200 {
    /// The size of this struct in bytes: 24. Since NCCL 2.22.3.
    pub size: usize,
    /// 0x74685283, not `NCCL_API_MAGIC`; any other value causes `ncclInvalidArgument`. Since NCCL 2.22.3.
    pub magic: ::core::ffi::c_uint,
    /// `NCCL_VERSION_CODE` of the header. Since NCCL 2.22.3.
    pub version: ::core::ffi::c_uint,
    /// The duration that NCCL's cost model predicts, in microseconds; -1 for an empty group. Since NCCL 2.22.3.
    pub estimatedTime: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ncclSimInfo_v22200",
    ][::core::mem::size_of::<ncclSimInfo_v22200>() - 24usize];
    [
        "Alignment of ncclSimInfo_v22200",
    ][::core::mem::align_of::<ncclSimInfo_v22200>() - 8usize];
    [
        "Offset of field: ncclSimInfo_v22200::size",
    ][::core::mem::offset_of!(ncclSimInfo_v22200, size) - 0usize];
    [
        "Offset of field: ncclSimInfo_v22200::magic",
    ][::core::mem::offset_of!(ncclSimInfo_v22200, magic) - 8usize];
    [
        "Offset of field: ncclSimInfo_v22200::version",
    ][::core::mem::offset_of!(ncclSimInfo_v22200, version) - 12usize];
    [
        "Offset of field: ncclSimInfo_v22200::estimatedTime",
    ][::core::mem::offset_of!(ncclSimInfo_v22200, estimatedTime) - 16usize];
};
/** The result of `ncclGroupSimulateEnd`.

 Start from `NCCL_SIM_INFO_INITIALIZER`.
 Since NCCL 2.22.3.*/
pub type ncclSimInfo_t = ncclSimInfo_v22200;
impl ncclCommMemStat_t {
    /// Bytes of GPU memory that suspending would free. Since NCCL 2.29.7.
    pub const ncclStatGpuMemSuspend: ncclCommMemStat_t = ncclCommMemStat_t(0);
    /// 1 while `ncclCommSuspend` has freed the communicator's memory, otherwise 0. Since NCCL 2.29.7.
    pub const ncclStatGpuMemSuspended: ncclCommMemStat_t = ncclCommMemStat_t(1);
    /// Bytes of GPU memory that remain allocated while the communicator is suspended. Since NCCL 2.29.7.
    pub const ncclStatGpuMemPersist: ncclCommMemStat_t = ncclCommMemStat_t(2);
    /// Bytes of all GPU memory that NCCL tracks for the communicator. Since NCCL 2.29.7.
    pub const ncclStatGpuMemTotal: ncclCommMemStat_t = ncclCommMemStat_t(3);
}
#[repr(transparent)]
/** The statistics of `ncclCommMemStats`.

 Since NCCL 2.29.7.*/
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclCommMemStat_t(pub ::core::ffi::c_uint);
impl ncclRedOp_dummy_t {
    /// Equals `ncclNumOps`. Since NCCL 2.13.4.
    pub const ncclNumOps_dummy: ncclRedOp_dummy_t = ncclRedOp_dummy_t(5);
}
#[repr(transparent)]
/** A helper for the value of `ncclMaxRedOp`.

 Since NCCL 2.13.4.*/
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclRedOp_dummy_t(pub ::core::ffi::c_uint);
impl ncclRedOp_t {
    /// The sum. Since NCCL 2.13.4.
    pub const ncclSum: ncclRedOp_t = ncclRedOp_t(0);
    /// The product. Since NCCL 2.13.4.
    pub const ncclProd: ncclRedOp_t = ncclRedOp_t(1);
    /// The maximum; NaN only if all values are NaN. Since NCCL 2.13.4.
    pub const ncclMax: ncclRedOp_t = ncclRedOp_t(2);
    /// The minimum; NaN only if all values are NaN. Since NCCL 2.13.4.
    pub const ncclMin: ncclRedOp_t = ncclRedOp_t(3);
    /// The mean: floats are scaled by 1/n and added; integers are added, divided and truncated. Since NCCL 2.13.4.
    pub const ncclAvg: ncclRedOp_t = ncclRedOp_t(4);
    /// The number of built-in operators; custom operators have this number or a higher one. Since NCCL 2.13.4.
    pub const ncclNumOps: ncclRedOp_t = ncclRedOp_t(5);
    /// The maximum number of a custom operator; also determines the width of the type. Since NCCL 2.13.4.
    pub const ncclMaxRedOp: ncclRedOp_t = ncclRedOp_t(2147483647);
}
#[repr(transparent)]
/** The operator that combines the values of several ranks.

 `ncclRedOpCreatePreMulSum` creates further values, from `ncclNumOps` to `ncclMaxRedOp`. Integers wrap around.
 The order of floating-point operations depends on algorithm, size and number of ranks.
 Since NCCL 2.13.4.*/
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclRedOp_t(pub ::core::ffi::c_uint);
impl ncclDataType_t {
    /// Signed integer, 1 byte. Since NCCL 2.13.4.
    pub const ncclInt8: ncclDataType_t = ncclDataType_t(0);
    /// Another name of `ncclInt8`. Since NCCL 2.13.4.
    pub const ncclChar: ncclDataType_t = ncclDataType_t(0);
    /// Unsigned integer, 1 byte. Since NCCL 2.13.4.
    pub const ncclUint8: ncclDataType_t = ncclDataType_t(1);
    /// Signed integer, 4 bytes. Since NCCL 2.13.4.
    pub const ncclInt32: ncclDataType_t = ncclDataType_t(2);
    /// Another name of `ncclInt32`. Since NCCL 2.13.4.
    pub const ncclInt: ncclDataType_t = ncclDataType_t(2);
    /// Unsigned integer, 4 bytes. Since NCCL 2.13.4.
    pub const ncclUint32: ncclDataType_t = ncclDataType_t(3);
    /// Signed integer, 8 bytes. Since NCCL 2.13.4.
    pub const ncclInt64: ncclDataType_t = ncclDataType_t(4);
    /// Unsigned integer, 8 bytes. Since NCCL 2.13.4.
    pub const ncclUint64: ncclDataType_t = ncclDataType_t(5);
    /// IEEE half precision, 2 bytes. Since NCCL 2.13.4.
    pub const ncclFloat16: ncclDataType_t = ncclDataType_t(6);
    /// Another name of `ncclFloat16`. Since NCCL 2.13.4.
    pub const ncclHalf: ncclDataType_t = ncclDataType_t(6);
    /// IEEE single precision, 4 bytes. Since NCCL 2.13.4.
    pub const ncclFloat32: ncclDataType_t = ncclDataType_t(7);
    /// Another name of `ncclFloat32`. Since NCCL 2.13.4.
    pub const ncclFloat: ncclDataType_t = ncclDataType_t(7);
    /// IEEE double precision, 8 bytes. Since NCCL 2.13.4.
    pub const ncclFloat64: ncclDataType_t = ncclDataType_t(8);
    /// Another name of `ncclFloat64`. Since NCCL 2.13.4.
    pub const ncclDouble: ncclDataType_t = ncclDataType_t(8);
    /// bfloat16 (8 exponent bits), 2 bytes. Since NCCL 2.13.4.
    pub const ncclBfloat16: ncclDataType_t = ncclDataType_t(9);
    /// A float with 4 exponent and 3 mantissa bits, 1 byte; reductions need Hopper or later. Since NCCL 2.24.3.
    pub const ncclFloat8e4m3: ncclDataType_t = ncclDataType_t(10);
    /// A float with 5 exponent and 2 mantissa bits, 1 byte; reductions need Hopper or later. Since NCCL 2.24.3.
    pub const ncclFloat8e5m2: ncclDataType_t = ncclDataType_t(11);
    /// The number of types in this version; it grows with each new type. Since NCCL 2.13.4.
    pub const ncclNumTypes: ncclDataType_t = ncclDataType_t(12);
}
#[repr(transparent)]
/** The type of the elements in a buffer; every `count` is a number of such elements.

 Since NCCL 2.13.4.*/
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclDataType_t(pub ::core::ffi::c_uint);
impl ncclScalarResidence_t {
    /// In memory that the GPU can read: read by each operation as it runs. Since NCCL 2.13.4.
    pub const ncclScalarDevice: ncclScalarResidence_t = ncclScalarResidence_t(0);
    /// In host memory: read during the call that creates the operator. Since NCCL 2.13.4.
    pub const ncclScalarHostImmediate: ncclScalarResidence_t = ncclScalarResidence_t(1);
}
#[repr(transparent)]
/** The location of the scalar of a custom operator, which determines when it is read.

 Since NCCL 2.13.4.*/
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclScalarResidence_t(pub ::core::ffi::c_uint);
/** A signal to wait for in `ncclWaitSignal`.

 Since NCCL 2.29.2.*/
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclWaitSignalDesc_t {
    /// The number of times that the signal must be raised. Since NCCL 2.29.2.
    pub opCnt: ::core::ffi::c_int,
    /// The rank that raises the signal. Since NCCL 2.29.2.
    pub peer: ::core::ffi::c_int,
    /// The number of the signal, below `numRmaSig`. Since NCCL 2.29.2.
    pub sigIdx: ::core::ffi::c_int,
    /// The number of the context, below `numRmaCtx`. Since NCCL 2.29.2.
    pub ctx: ::core::ffi::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ncclWaitSignalDesc_t",
    ][::core::mem::size_of::<ncclWaitSignalDesc_t>() - 16usize];
    [
        "Alignment of ncclWaitSignalDesc_t",
    ][::core::mem::align_of::<ncclWaitSignalDesc_t>() - 4usize];
    [
        "Offset of field: ncclWaitSignalDesc_t::opCnt",
    ][::core::mem::offset_of!(ncclWaitSignalDesc_t, opCnt) - 0usize];
    [
        "Offset of field: ncclWaitSignalDesc_t::peer",
    ][::core::mem::offset_of!(ncclWaitSignalDesc_t, peer) - 4usize];
    [
        "Offset of field: ncclWaitSignalDesc_t::sigIdx",
    ][::core::mem::offset_of!(ncclWaitSignalDesc_t, sigIdx) - 8usize];
    [
        "Offset of field: ncclWaitSignalDesc_t::ctx",
    ][::core::mem::offset_of!(ncclWaitSignalDesc_t, ctx) - 12usize];
};
impl ncclEncryptionMode_t {
    /// No encryption. Since NCCL 2.32.3.
    pub const NCCL_ENCRYPTION_MODE_NONE: ncclEncryptionMode_t = ncclEncryptionMode_t(0);
    /// TLS with the key `psk`. Since NCCL 2.32.3.
    pub const NCCL_ENCRYPTION_MODE_PSK: ncclEncryptionMode_t = ncclEncryptionMode_t(1);
}
#[repr(transparent)]
/** Values of `mode` in `ncclEncryptionConfig_t`.

 Since NCCL 2.32.3.*/
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclEncryptionMode_t(pub ::core::ffi::c_uint);
/** The argument of `ncclSetEncryption`.

 Start from `NCCL_ENCRYPTION_CONFIG_INITIALIZER`.
 Since NCCL 2.32.3.*/
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclEncryptionConfig_v23200 {
    /// The size of this struct in bytes: 32. Since NCCL 2.32.3.
    pub size: usize,
    /// `NCCL_API_MAGIC`; any other value causes `ncclInvalidArgument`. Since NCCL 2.32.3.
    pub magic: ::core::ffi::c_uint,
    /// `NCCL_VERSION_CODE` of the header. Since NCCL 2.32.3.
    pub version: ::core::ffi::c_uint,
    /// A value of `ncclEncryptionMode_t`. Four bytes of padding follow. Since NCCL 2.32.3.
    pub mode: ::core::ffi::c_int,
    /// The key, a null-terminated string of at least 32 bytes; equal in all processes. Since NCCL 2.32.3.
    pub psk: *const ::core::ffi::c_char,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ncclEncryptionConfig_v23200",
    ][::core::mem::size_of::<ncclEncryptionConfig_v23200>() - 32usize];
    [
        "Alignment of ncclEncryptionConfig_v23200",
    ][::core::mem::align_of::<ncclEncryptionConfig_v23200>() - 8usize];
    [
        "Offset of field: ncclEncryptionConfig_v23200::size",
    ][::core::mem::offset_of!(ncclEncryptionConfig_v23200, size) - 0usize];
    [
        "Offset of field: ncclEncryptionConfig_v23200::magic",
    ][::core::mem::offset_of!(ncclEncryptionConfig_v23200, magic) - 8usize];
    [
        "Offset of field: ncclEncryptionConfig_v23200::version",
    ][::core::mem::offset_of!(ncclEncryptionConfig_v23200, version) - 12usize];
    [
        "Offset of field: ncclEncryptionConfig_v23200::mode",
    ][::core::mem::offset_of!(ncclEncryptionConfig_v23200, mode) - 16usize];
    [
        "Offset of field: ncclEncryptionConfig_v23200::psk",
    ][::core::mem::offset_of!(ncclEncryptionConfig_v23200, psk) - 24usize];
};
impl Default for ncclEncryptionConfig_v23200 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
/** The argument of `ncclSetEncryption`.

 Start from `NCCL_ENCRYPTION_CONFIG_INITIALIZER`.
 Since NCCL 2.32.3.*/
pub type ncclEncryptionConfig_t = ncclEncryptionConfig_v23200;
#[repr(C)]
#[derive(Debug)]
pub struct ncclParamHandle {
    _unused: [u8; 0],
}
/** A handle to a parameter of the library, from `ncclParamBind`; NCCL owns it, so do not free it.

 Since NCCL 2.30.4.*/
pub type ncclParamHandle_t = *mut ncclParamHandle;
