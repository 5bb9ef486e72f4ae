pub const NCCL_GIN_MAX_CONNECTIONS: u32 = 4;
/** A team: ranks of a communicator whose numbers are evenly spaced, including the caller.

 Since NCCL 2.28.3.*/
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclTeam {
    /// The number of ranks. Since NCCL 2.28.3.
    pub nRanks: ::core::ffi::c_int,
    /// The caller's number in the team. Since NCCL 2.28.3.
    pub rank: ::core::ffi::c_int,
    /// The difference between neighbors' numbers in the communicator. Since NCCL 2.28.3.
    pub stride: ::core::ffi::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclTeam"][::core::mem::size_of::<ncclTeam>() - 12usize];
    ["Alignment of ncclTeam"][::core::mem::align_of::<ncclTeam>() - 4usize];
    [
        "Offset of field: ncclTeam::nRanks",
    ][::core::mem::offset_of!(ncclTeam, nRanks) - 0usize];
    [
        "Offset of field: ncclTeam::rank",
    ][::core::mem::offset_of!(ncclTeam, rank) - 4usize];
    [
        "Offset of field: ncclTeam::stride",
    ][::core::mem::offset_of!(ncclTeam, stride) - 8usize];
};
/** Another name of `struct ncclTeam`.

 Since NCCL 2.28.3.*/
pub type ncclTeam_t = ncclTeam;
impl ncclCftTeamMode_t {
    /// The flat team: all ranks that the caller reaches by logical endpoints. Since NCCL 2.31.2.
    pub const NCCL_CFT_TEAM_FLAT: ncclCftTeamMode_t = ncclCftTeamMode_t(0);
    /// The ranks of the flat team whose number in their multicast team equals the caller's. Since NCCL 2.31.2.
    pub const NCCL_CFT_TEAM_HIER_MULTIMEM: ncclCftTeamMode_t = ncclCftTeamMode_t(1);
    /// The ranks of the flat team whose number in their LSA team equals the caller's. Since NCCL 2.31.2.
    pub const NCCL_CFT_TEAM_HIER_LSA: ncclCftTeamMode_t = ncclCftTeamMode_t(2);
}
#[repr(transparent)]
/** The kind of team that `ncclTeamCft` returns.

 Since NCCL 2.31.2.*/
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclCftTeamMode_t(pub ::core::ffi::c_uint);
/** An offset in the buffer of a device communicator, in units of 128 bytes.

 Since NCCL 2.28.3.*/
pub type ncclDevResourceHandle = u32;
/** Another name of `ncclDevResourceHandle`.

 Since NCCL 2.28.3.*/
pub type ncclDevResourceHandle_t = ncclDevResourceHandle;
/** The number of a signal of GPU-initiated networking (GIN).

 Since NCCL 2.28.7.*/
pub type ncclGinSignal_t = u32;
/** The number of a GIN counter.

 Since NCCL 2.28.7.*/
pub type ncclGinCounter_t = u32;
/** The number of a logical endpoint of the compute fabric transport (CFT).

 Since NCCL 2.31.2.*/
pub type ncclCftLeId = u32;
/** Another name of `ncclCftLeId`.

 Since NCCL 2.31.2.*/
pub type ncclCftLeId_t = ncclCftLeId;
/** The start of a team's multicast memory.

 Since NCCL 2.28.3.*/
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclMultimemHandle {
    /// The address that kernels use. Since NCCL 2.28.3.
    pub mcBasePtr: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ncclMultimemHandle",
    ][::core::mem::size_of::<ncclMultimemHandle>() - 8usize];
    [
        "Alignment of ncclMultimemHandle",
    ][::core::mem::align_of::<ncclMultimemHandle>() - 8usize];
    [
        "Offset of field: ncclMultimemHandle::mcBasePtr",
    ][::core::mem::offset_of!(ncclMultimemHandle, mcBasePtr) - 0usize];
};
impl Default for ncclMultimemHandle {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
/** Another name of `struct ncclMultimemHandle`.

 Since NCCL 2.28.3.*/
pub type ncclMultimemHandle_t = ncclMultimemHandle;
/** The handle of an LSA team's barriers, for kernels. The team's ranks access each other by loads and stores.

 Since NCCL 2.28.3.*/
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclLsaBarrierHandle {
    /// The location of the barriers' state. Since NCCL 2.28.3.
    pub bufHandle: ncclDevResourceHandle_t,
    /// The number of barriers. Since NCCL 2.28.3.
    pub nBarriers: ::core::ffi::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ncclLsaBarrierHandle",
    ][::core::mem::size_of::<ncclLsaBarrierHandle>() - 8usize];
    [
        "Alignment of ncclLsaBarrierHandle",
    ][::core::mem::align_of::<ncclLsaBarrierHandle>() - 4usize];
    [
        "Offset of field: ncclLsaBarrierHandle::bufHandle",
    ][::core::mem::offset_of!(ncclLsaBarrierHandle, bufHandle) - 0usize];
    [
        "Offset of field: ncclLsaBarrierHandle::nBarriers",
    ][::core::mem::offset_of!(ncclLsaBarrierHandle, nBarriers) - 4usize];
};
/** Another name of `struct ncclLsaBarrierHandle`.

 Since NCCL 2.28.3.*/
pub type ncclLsaBarrierHandle_t = ncclLsaBarrierHandle;
/** The handle of barriers that use GPU-initiated networking (GIN), for kernels.

 Since NCCL 2.28.7.*/
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclGinBarrierHandle {
    /// The first signal of the barriers. Since NCCL 2.28.7.
    pub signal0: ncclGinSignal_t,
    /// Not used. Up to 2.29.3, a buffer called `bufHandle`. Since NCCL 2.29.7.
    pub unused: ncclDevResourceHandle_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ncclGinBarrierHandle",
    ][::core::mem::size_of::<ncclGinBarrierHandle>() - 8usize];
    [
        "Alignment of ncclGinBarrierHandle",
    ][::core::mem::align_of::<ncclGinBarrierHandle>() - 4usize];
    [
        "Offset of field: ncclGinBarrierHandle::signal0",
    ][::core::mem::offset_of!(ncclGinBarrierHandle, signal0) - 0usize];
    [
        "Offset of field: ncclGinBarrierHandle::unused",
    ][::core::mem::offset_of!(ncclGinBarrierHandle, unused) - 4usize];
};
/** Another name of `struct ncclGinBarrierHandle`.

 Since NCCL 2.28.7.*/
pub type ncclGinBarrierHandle_t = ncclGinBarrierHandle;
/** The handle of barriers that use logical endpoints, for kernels.

 Since NCCL 2.31.2.*/
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclCftBarrierHandle {
    /// The location of the barriers' state. Since NCCL 2.31.2.
    pub bufHandle: ncclDevResourceHandle_t,
    /// The number of barriers. Since NCCL 2.31.2.
    pub nBarriers: ::core::ffi::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ncclCftBarrierHandle",
    ][::core::mem::size_of::<ncclCftBarrierHandle>() - 8usize];
    [
        "Alignment of ncclCftBarrierHandle",
    ][::core::mem::align_of::<ncclCftBarrierHandle>() - 4usize];
    [
        "Offset of field: ncclCftBarrierHandle::bufHandle",
    ][::core::mem::offset_of!(ncclCftBarrierHandle, bufHandle) - 0usize];
    [
        "Offset of field: ncclCftBarrierHandle::nBarriers",
    ][::core::mem::offset_of!(ncclCftBarrierHandle, nBarriers) - 4usize];
};
/** Another name of `struct ncclCftBarrierHandle`.

 Since NCCL 2.31.2.*/
pub type ncclCftBarrierHandle_t = ncclCftBarrierHandle;
/** The handle of a low-latency all-to-all, for kernels.

 Since NCCL 2.28.3.*/
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclLLA2AHandle {
    /// The location of the slots. Since NCCL 2.28.3.
    pub bufHandle: ncclDevResourceHandle_t,
    /// The number of slots. Since NCCL 2.28.3.
    pub nSlots: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclLLA2AHandle"][::core::mem::size_of::<ncclLLA2AHandle>() - 8usize];
    [
        "Alignment of ncclLLA2AHandle",
    ][::core::mem::align_of::<ncclLLA2AHandle>() - 4usize];
    [
        "Offset of field: ncclLLA2AHandle::bufHandle",
    ][::core::mem::offset_of!(ncclLLA2AHandle, bufHandle) - 0usize];
    [
        "Offset of field: ncclLLA2AHandle::nSlots",
    ][::core::mem::offset_of!(ncclLLA2AHandle, nSlots) - 4usize];
};
/** Another name of `struct ncclLLA2AHandle`.

 Since NCCL 2.28.3.*/
pub type ncclLLA2AHandle_t = ncclLLA2AHandle;
impl ncclGinConnectionType_t {
    /// No peers. Since NCCL 2.29.7.
    pub const NCCL_GIN_CONNECTION_NONE: ncclGinConnectionType_t = ncclGinConnectionType_t(
        0,
    );
    /// All peers. Since NCCL 2.29.7.
    pub const NCCL_GIN_CONNECTION_FULL: ncclGinConnectionType_t = ncclGinConnectionType_t(
        1,
    );
    /// The peers in the rail team; see `ncclTeamRail`. Since NCCL 2.29.7.
    pub const NCCL_GIN_CONNECTION_RAIL: ncclGinConnectionType_t = ncclGinConnectionType_t(
        2,
    );
    /// The peers at a fixed distance; see `ginCustomStride`. Since NCCL 2.31.2.
    pub const NCCL_GIN_CONNECTION_CUSTOM_STRIDE: ncclGinConnectionType_t = ncclGinConnectionType_t(
        3,
    );
}
#[repr(transparent)]
/** The peers with which GPU-initiated networking connects.

 Since NCCL 2.29.7.*/
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclGinConnectionType_t(pub ::core::ffi::c_uint);
impl ncclGinType_t {
    /// No GIN; in `ncclDevCommRequirements`, any type. Since NCCL 2.29.2.
    pub const NCCL_GIN_TYPE_NONE: ncclGinType_t = ncclGinType_t(0);
    /// A thread on the CPU. Since NCCL 2.29.2.
    pub const NCCL_GIN_TYPE_PROXY: ncclGinType_t = ncclGinType_t(2);
    /// GPUDirect async, kernel-initiated. Since NCCL 2.29.2.
    pub const NCCL_GIN_TYPE_GDAKI: ncclGinType_t = ncclGinType_t(3);
    /// GPU-Push Interface (GPI). Since NCCL 2.30.7.
    pub const NCCL_GIN_TYPE_GPI: ncclGinType_t = ncclGinType_t(4);
    /// Amazon's Elastic Fabric Adapter (EFA). Since NCCL 2.31.2.
    pub const NCCL_GIN_TYPE_EFA_GDA: ncclGinType_t = ncclGinType_t(5);
    /// One above the last value; it grows with each new type. Since NCCL 2.31.2.
    pub const NCCL_GIN_MAX_TYPES: ncclGinType_t = ncclGinType_t(6);
}
#[repr(transparent)]
/** The means by which GPU-initiated networking (GIN) reaches the network.

 Since NCCL 2.29.2.*/
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclGinType_t(pub ::core::ffi::c_uint);
/** The properties of a communicator and its system, which `ncclCommQueryProperties` fills in.

 Start from `NCCL_COMM_PROPERTIES_INITIALIZER`. From 2.29.7 on, new versions only append fields.
 Since NCCL 2.29.2.*/
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclCommProperties {
    /// The size of this struct in bytes: 152. Since NCCL 2.29.2.
    pub size: usize,
    /// `NCCL_API_MAGIC`; any other value is an error. Since NCCL 2.29.2.
    pub magic: ::core::ffi::c_uint,
    /// The version whose fields are filled in, no newer than the library. Since NCCL 2.29.2.
    pub version: ::core::ffi::c_uint,
    /// The caller's rank. Since NCCL 2.29.2.
    pub rank: ::core::ffi::c_int,
    /// The number of ranks. Since NCCL 2.29.2.
    pub nRanks: ::core::ffi::c_int,
    /// The number of the rank's device in CUDA. Since NCCL 2.29.2.
    pub cudaDev: ::core::ffi::c_int,
    /// The number of the rank's device in NVML. Since NCCL 2.29.2.
    pub nvmlDev: ::core::ffi::c_int,
    /// True if `ncclDevCommCreate` works on this system. Since NCCL 2.29.2.
    pub deviceApiSupport: bool,
    /// True if the LSA team has multicast memory. Since NCCL 2.29.2.
    pub multimemSupport: bool,
    /// The type of GIN that reaches all peers; before 2.29.7, one byte at offset 34. Since NCCL 2.29.7.
    pub ginType: ncclGinType_t,
    /// The number of LSA teams that the ranks form. Since NCCL 2.29.7.
    pub nLsaTeams: ::core::ffi::c_int,
    /// True if the host's one-sided operations (`ncclPutSignal`) work on this system. Since NCCL 2.29.7.
    pub hostRmaSupport: bool,
    /// The type of GIN that reaches the peers in the rail team. Since NCCL 2.29.7.
    pub railedGinType: ncclGinType_t,
    /// A number that identifies the communicator. Since NCCL 2.31.2.
    pub commHash: u64,
    /// The smallest valid `ginCustomStride`. Since NCCL 2.31.2.
    pub ginMinStride: ::core::ffi::c_int,
    /// The largest set of peers that GIN can connect. Since NCCL 2.31.2.
    pub ginConnectionType: ncclGinConnectionType_t,
    /// Indexed by `ncclGinType_t`: true if the type is available. Since NCCL 2.31.2.
    pub ginSupport: [bool; 64usize],
    /// The size in bytes of a device communicator with the layout of the library's version. Since NCCL 2.31.2.
    pub devCommRuntimeVersionSize: usize,
    /// True if logical endpoints work on this system. Since NCCL 2.32.3.
    pub cftSupport: bool,
    /// True if logical endpoints support multicast. Since NCCL 2.32.3.
    pub cftMulticastSupport: bool,
    /// True if logical endpoints support counted operations. Since NCCL 2.32.3.
    pub cftCountedSupport: bool,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ncclCommProperties",
    ][::core::mem::size_of::<ncclCommProperties>() - 152usize];
    [
        "Alignment of ncclCommProperties",
    ][::core::mem::align_of::<ncclCommProperties>() - 8usize];
    [
        "Offset of field: ncclCommProperties::size",
    ][::core::mem::offset_of!(ncclCommProperties, size) - 0usize];
    [
        "Offset of field: ncclCommProperties::magic",
    ][::core::mem::offset_of!(ncclCommProperties, magic) - 8usize];
    [
        "Offset of field: ncclCommProperties::version",
    ][::core::mem::offset_of!(ncclCommProperties, version) - 12usize];
    [
        "Offset of field: ncclCommProperties::rank",
    ][::core::mem::offset_of!(ncclCommProperties, rank) - 16usize];
    [
        "Offset of field: ncclCommProperties::nRanks",
    ][::core::mem::offset_of!(ncclCommProperties, nRanks) - 20usize];
    [
        "Offset of field: ncclCommProperties::cudaDev",
    ][::core::mem::offset_of!(ncclCommProperties, cudaDev) - 24usize];
    [
        "Offset of field: ncclCommProperties::nvmlDev",
    ][::core::mem::offset_of!(ncclCommProperties, nvmlDev) - 28usize];
    [
        "Offset of field: ncclCommProperties::deviceApiSupport",
    ][::core::mem::offset_of!(ncclCommProperties, deviceApiSupport) - 32usize];
    [
        "Offset of field: ncclCommProperties::multimemSupport",
    ][::core::mem::offset_of!(ncclCommProperties, multimemSupport) - 33usize];
    [
        "Offset of field: ncclCommProperties::ginType",
    ][::core::mem::offset_of!(ncclCommProperties, ginType) - 36usize];
    [
        "Offset of field: ncclCommProperties::nLsaTeams",
    ][::core::mem::offset_of!(ncclCommProperties, nLsaTeams) - 40usize];
    [
        "Offset of field: ncclCommProperties::hostRmaSupport",
    ][::core::mem::offset_of!(ncclCommProperties, hostRmaSupport) - 44usize];
    [
        "Offset of field: ncclCommProperties::railedGinType",
    ][::core::mem::offset_of!(ncclCommProperties, railedGinType) - 48usize];
    [
        "Offset of field: ncclCommProperties::commHash",
    ][::core::mem::offset_of!(ncclCommProperties, commHash) - 56usize];
    [
        "Offset of field: ncclCommProperties::ginMinStride",
    ][::core::mem::offset_of!(ncclCommProperties, ginMinStride) - 64usize];
    [
        "Offset of field: ncclCommProperties::ginConnectionType",
    ][::core::mem::offset_of!(ncclCommProperties, ginConnectionType) - 68usize];
    [
        "Offset of field: ncclCommProperties::ginSupport",
    ][::core::mem::offset_of!(ncclCommProperties, ginSupport) - 72usize];
    [
        "Offset of field: ncclCommProperties::devCommRuntimeVersionSize",
    ][::core::mem::offset_of!(ncclCommProperties, devCommRuntimeVersionSize) - 136usize];
    [
        "Offset of field: ncclCommProperties::cftSupport",
    ][::core::mem::offset_of!(ncclCommProperties, cftSupport) - 144usize];
    [
        "Offset of field: ncclCommProperties::cftMulticastSupport",
    ][::core::mem::offset_of!(ncclCommProperties, cftMulticastSupport) - 145usize];
    [
        "Offset of field: ncclCommProperties::cftCountedSupport",
    ][::core::mem::offset_of!(ncclCommProperties, cftCountedSupport) - 146usize];
};
impl Default for ncclCommProperties {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
/** The properties of a communicator and its system, which `ncclCommQueryProperties` fills in.

 Start from `NCCL_COMM_PROPERTIES_INITIALIZER`. From 2.29.7 on, new versions only append fields.
 Since NCCL 2.29.2.*/
pub type ncclCommProperties_t = ncclCommProperties;
/** An entry in a list of requirements: a buffer, signals and counters for a device communicator.

 Since NCCL 2.28.3.*/
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclDevResourceRequirements {
    /// The next entry, or `NULL`. Since NCCL 2.28.3.
    pub next: *mut ncclDevResourceRequirements,
    /// The size of the buffer in bytes. Since NCCL 2.28.3.
    pub bufferSize: usize,
    /// The alignment of the buffer in bytes. Since NCCL 2.28.3.
    pub bufferAlign: usize,
    /// The address to which `ncclDevCommCreate` writes the buffer's offset, or `NULL`. Since NCCL 2.28.3.
    pub outBufferHandle: *mut ncclDevResourceHandle_t,
    /// The number of signals. Since NCCL 2.28.7.
    pub ginSignalCount: ::core::ffi::c_int,
    /// The number of counters. Since NCCL 2.28.7.
    pub ginCounterCount: ::core::ffi::c_int,
    /// The address to which `ncclDevCommCreate` writes the first signal, or `NULL`. Since NCCL 2.28.7.
    pub outGinSignalStart: *mut ncclGinSignal_t,
    /// The address to which `ncclDevCommCreate` writes the first counter, or `NULL`. Since NCCL 2.28.7.
    pub outGinCounterStart: *mut ncclGinCounter_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ncclDevResourceRequirements",
    ][::core::mem::size_of::<ncclDevResourceRequirements>() - 56usize];
    [
        "Alignment of ncclDevResourceRequirements",
    ][::core::mem::align_of::<ncclDevResourceRequirements>() - 8usize];
    [
        "Offset of field: ncclDevResourceRequirements::next",
    ][::core::mem::offset_of!(ncclDevResourceRequirements, next) - 0usize];
    [
        "Offset of field: ncclDevResourceRequirements::bufferSize",
    ][::core::mem::offset_of!(ncclDevResourceRequirements, bufferSize) - 8usize];
    [
        "Offset of field: ncclDevResourceRequirements::bufferAlign",
    ][::core::mem::offset_of!(ncclDevResourceRequirements, bufferAlign) - 16usize];
    [
        "Offset of field: ncclDevResourceRequirements::outBufferHandle",
    ][::core::mem::offset_of!(ncclDevResourceRequirements, outBufferHandle) - 24usize];
    [
        "Offset of field: ncclDevResourceRequirements::ginSignalCount",
    ][::core::mem::offset_of!(ncclDevResourceRequirements, ginSignalCount) - 32usize];
    [
        "Offset of field: ncclDevResourceRequirements::ginCounterCount",
    ][::core::mem::offset_of!(ncclDevResourceRequirements, ginCounterCount) - 36usize];
    [
        "Offset of field: ncclDevResourceRequirements::outGinSignalStart",
    ][::core::mem::offset_of!(ncclDevResourceRequirements, outGinSignalStart) - 40usize];
    [
        "Offset of field: ncclDevResourceRequirements::outGinCounterStart",
    ][::core::mem::offset_of!(ncclDevResourceRequirements, outGinCounterStart)
        - 48usize];
};
impl Default for ncclDevResourceRequirements {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
/** An entry in a list of requirements: a buffer, signals and counters for a device communicator.

 Since NCCL 2.28.3.*/
pub type ncclDevResourceRequirements_t = ncclDevResourceRequirements;
/** An entry in a list of requirements: a team for a device communicator.

 Since NCCL 2.28.3.*/
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclTeamRequirements {
    /// The next entry, or `NULL`. Since NCCL 2.28.3.
    pub next: *mut ncclTeamRequirements,
    /// The team. Since NCCL 2.28.3.
    pub team: ncclTeam_t,
    /// True if the team needs multicast memory. Since NCCL 2.28.3.
    pub multimem: bool,
    /// The address to which `ncclDevCommCreate` writes the handle of that memory, or `NULL`. Since NCCL 2.28.3.
    pub outMultimemHandle: *mut ncclMultimemHandle_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ncclTeamRequirements",
    ][::core::mem::size_of::<ncclTeamRequirements>() - 32usize];
    [
        "Alignment of ncclTeamRequirements",
    ][::core::mem::align_of::<ncclTeamRequirements>() - 8usize];
    [
        "Offset of field: ncclTeamRequirements::next",
    ][::core::mem::offset_of!(ncclTeamRequirements, next) - 0usize];
    [
        "Offset of field: ncclTeamRequirements::team",
    ][::core::mem::offset_of!(ncclTeamRequirements, team) - 8usize];
    [
        "Offset of field: ncclTeamRequirements::multimem",
    ][::core::mem::offset_of!(ncclTeamRequirements, multimem) - 20usize];
    [
        "Offset of field: ncclTeamRequirements::outMultimemHandle",
    ][::core::mem::offset_of!(ncclTeamRequirements, outMultimemHandle) - 24usize];
};
impl Default for ncclTeamRequirements {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
/** An entry in a list of requirements: a team for a device communicator.

 Since NCCL 2.28.3.*/
pub type ncclTeamRequirements_t = ncclTeamRequirements;
impl ncclCftCap_t {
    /// No uses: the empty set. Since NCCL 2.31.2.
    pub const NCCL_CFT_NONE: ncclCftCap_t = ncclCftCap_t(0);
    /// Communication with one peer at a time. Since NCCL 2.31.2.
    pub const NCCL_CFT: ncclCftCap_t = ncclCftCap_t(1);
    /// Multicast. Since NCCL 2.31.2.
    pub const NCCL_CFT_MULTIMEM: ncclCftCap_t = ncclCftCap_t(2);
}
#[repr(transparent)]
/** The uses of logical endpoints, combined in `cftCaps`.

 Since NCCL 2.31.2.*/
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclCftCap_t(pub ::core::ffi::c_uint);
/** The resources that `ncclDevCommCreate` prepares.

 Start from `NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER`. From 2.29.7 on, new versions only append fields; 2.29.2
 inserted `size`, `magic` and `version` at the front.
 Since NCCL 2.28.3.*/
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclDevCommRequirements {
    /// The size of this struct in bytes: 120. Since NCCL 2.29.2.
    pub size: usize,
    /// `NCCL_API_MAGIC`; any other value is an error. Since NCCL 2.29.2.
    pub magic: ::core::ffi::c_uint,
    /// The version of the header that kernels are compiled with, no newer than the library. Since NCCL 2.29.2.
    pub version: ::core::ffi::c_uint,
    /// Buffers, signals and counters, or `NULL`. Since NCCL 2.28.3.
    pub resourceRequirementsList: *mut ncclDevResourceRequirements_t,
    /// Teams in addition to the predefined ones, or `NULL`. Since NCCL 2.28.3.
    pub teamRequirementsList: *mut ncclTeamRequirements_t,
    /// True if the LSA team needs multicast memory. Since NCCL 2.28.3.
    pub lsaMultimem: bool,
    /// The number of barriers among all ranks. Since NCCL 2.28.7.
    pub barrierCount: ::core::ffi::c_int,
    /// The number of barriers of the LSA team. Since NCCL 2.28.3.
    pub lsaBarrierCount: ::core::ffi::c_int,
    /// The number of barriers of the rail team, which use the network. Since NCCL 2.28.7.
    pub railGinBarrierCount: ::core::ffi::c_int,
    /// The number of thread blocks that use low-latency all-to-all. Since NCCL 2.28.7.
    pub lsaLLA2ABlockCount: ::core::ffi::c_int,
    /// The number of slots of each thread block; see `ncclLLA2ACalcSlots`. Since NCCL 2.28.7.
    pub lsaLLA2ASlotCount: ::core::ffi::c_int,
    /// True to enable GIN even if no other field needs it. Since NCCL 2.28.7.
    pub ginForceEnable: bool,
    /// The number of GIN contexts; only a hint. Since NCCL 2.28.7.
    pub ginContextCount: ::core::ffi::c_int,
    /// The number of signals, numbered from 0. Since NCCL 2.28.7.
    pub ginSignalCount: ::core::ffi::c_int,
    /// The number of counters, numbered from 0. Since NCCL 2.28.7.
    pub ginCounterCount: ::core::ffi::c_int,
    /// The peers that GIN connects. Since NCCL 2.29.7.
    pub ginConnectionType: ncclGinConnectionType_t,
    /// True if the contexts are exclusive to this device communicator. Since NCCL 2.29.7.
    pub ginExclusiveContexts: bool,
    /// The length of the GIN queues; 0 for NCCL's default. Since NCCL 2.29.7.
    pub ginQueueDepth: ::core::ffi::c_int,
    /// The network's traffic class, or `NCCL_CONFIG_UNDEF_INT`. Since NCCL 2.30.3.
    pub ginTrafficClass: ::core::ffi::c_int,
    /// The number of barriers among all ranks that use only the network. Since NCCL 2.30.3.
    pub worldGinBarrierCount: ::core::ffi::c_int,
    /// True if kernels use strong signals, which become visible only after all preceding puts. Since NCCL 2.30.7.
    pub ginStrongSignalsRequired: bool,
    /// True if kernels raise signals by address. Since NCCL 2.30.7.
    pub ginVaSignalsRequired: bool,
    /// The stride of `NCCL_GIN_CONNECTION_CUSTOM_STRIDE`. Since NCCL 2.31.2.
    pub ginCustomStride: ::core::ffi::c_int,
    /// The required type of GIN. Since NCCL 2.31.2.
    pub ginType: ncclGinType_t,
    /** True if kernels are compiled at run time with the library's own headers. The device communicator then has the
 layout of the library's version, and `devCommRuntimeVersionSize` bytes. Since NCCL 2.31.2.*/
    pub useRuntimeVersion: bool,
    /// A bitwise or of values of `ncclCftCap_t`. Since NCCL 2.31.2.
    pub cftCaps: ::core::ffi::c_int,
    /// The number of barriers that use logical endpoints. Since NCCL 2.31.2.
    pub cftBarrierCount: ::core::ffi::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ncclDevCommRequirements",
    ][::core::mem::size_of::<ncclDevCommRequirements>() - 120usize];
    [
        "Alignment of ncclDevCommRequirements",
    ][::core::mem::align_of::<ncclDevCommRequirements>() - 8usize];
    [
        "Offset of field: ncclDevCommRequirements::size",
    ][::core::mem::offset_of!(ncclDevCommRequirements, size) - 0usize];
    [
        "Offset of field: ncclDevCommRequirements::magic",
    ][::core::mem::offset_of!(ncclDevCommRequirements, magic) - 8usize];
    [
        "Offset of field: ncclDevCommRequirements::version",
    ][::core::mem::offset_of!(ncclDevCommRequirements, version) - 12usize];
    [
        "Offset of field: ncclDevCommRequirements::resourceRequirementsList",
    ][::core::mem::offset_of!(ncclDevCommRequirements, resourceRequirementsList)
        - 16usize];
    [
        "Offset of field: ncclDevCommRequirements::teamRequirementsList",
    ][::core::mem::offset_of!(ncclDevCommRequirements, teamRequirementsList) - 24usize];
    [
        "Offset of field: ncclDevCommRequirements::lsaMultimem",
    ][::core::mem::offset_of!(ncclDevCommRequirements, lsaMultimem) - 32usize];
    [
        "Offset of field: ncclDevCommRequirements::barrierCount",
    ][::core::mem::offset_of!(ncclDevCommRequirements, barrierCount) - 36usize];
    [
        "Offset of field: ncclDevCommRequirements::lsaBarrierCount",
    ][::core::mem::offset_of!(ncclDevCommRequirements, lsaBarrierCount) - 40usize];
    [
        "Offset of field: ncclDevCommRequirements::railGinBarrierCount",
    ][::core::mem::offset_of!(ncclDevCommRequirements, railGinBarrierCount) - 44usize];
    [
        "Offset of field: ncclDevCommRequirements::lsaLLA2ABlockCount",
    ][::core::mem::offset_of!(ncclDevCommRequirements, lsaLLA2ABlockCount) - 48usize];
    [
        "Offset of field: ncclDevCommRequirements::lsaLLA2ASlotCount",
    ][::core::mem::offset_of!(ncclDevCommRequirements, lsaLLA2ASlotCount) - 52usize];
    [
        "Offset of field: ncclDevCommRequirements::ginForceEnable",
    ][::core::mem::offset_of!(ncclDevCommRequirements, ginForceEnable) - 56usize];
    [
        "Offset of field: ncclDevCommRequirements::ginContextCount",
    ][::core::mem::offset_of!(ncclDevCommRequirements, ginContextCount) - 60usize];
    [
        "Offset of field: ncclDevCommRequirements::ginSignalCount",
    ][::core::mem::offset_of!(ncclDevCommRequirements, ginSignalCount) - 64usize];
    [
        "Offset of field: ncclDevCommRequirements::ginCounterCount",
    ][::core::mem::offset_of!(ncclDevCommRequirements, ginCounterCount) - 68usize];
    [
        "Offset of field: ncclDevCommRequirements::ginConnectionType",
    ][::core::mem::offset_of!(ncclDevCommRequirements, ginConnectionType) - 72usize];
    [
        "Offset of field: ncclDevCommRequirements::ginExclusiveContexts",
    ][::core::mem::offset_of!(ncclDevCommRequirements, ginExclusiveContexts) - 76usize];
    [
        "Offset of field: ncclDevCommRequirements::ginQueueDepth",
    ][::core::mem::offset_of!(ncclDevCommRequirements, ginQueueDepth) - 80usize];
    [
        "Offset of field: ncclDevCommRequirements::ginTrafficClass",
    ][::core::mem::offset_of!(ncclDevCommRequirements, ginTrafficClass) - 84usize];
    [
        "Offset of field: ncclDevCommRequirements::worldGinBarrierCount",
    ][::core::mem::offset_of!(ncclDevCommRequirements, worldGinBarrierCount) - 88usize];
    [
        "Offset of field: ncclDevCommRequirements::ginStrongSignalsRequired",
    ][::core::mem::offset_of!(ncclDevCommRequirements, ginStrongSignalsRequired)
        - 92usize];
    [
        "Offset of field: ncclDevCommRequirements::ginVaSignalsRequired",
    ][::core::mem::offset_of!(ncclDevCommRequirements, ginVaSignalsRequired) - 93usize];
    [
        "Offset of field: ncclDevCommRequirements::ginCustomStride",
    ][::core::mem::offset_of!(ncclDevCommRequirements, ginCustomStride) - 96usize];
    [
        "Offset of field: ncclDevCommRequirements::ginType",
    ][::core::mem::offset_of!(ncclDevCommRequirements, ginType) - 100usize];
    [
        "Offset of field: ncclDevCommRequirements::useRuntimeVersion",
    ][::core::mem::offset_of!(ncclDevCommRequirements, useRuntimeVersion) - 104usize];
    [
        "Offset of field: ncclDevCommRequirements::cftCaps",
    ][::core::mem::offset_of!(ncclDevCommRequirements, cftCaps) - 108usize];
    [
        "Offset of field: ncclDevCommRequirements::cftBarrierCount",
    ][::core::mem::offset_of!(ncclDevCommRequirements, cftBarrierCount) - 112usize];
};
impl Default for ncclDevCommRequirements {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
/** The resources that `ncclDevCommCreate` prepares.

 Start from `NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER`. From 2.29.7 on, new versions only append fields; 2.29.2
 inserted `size`, `magic` and `version` at the front.
 Since NCCL 2.28.3.*/
pub type ncclDevCommRequirements_t = ncclDevCommRequirements;
/** The location of a device communicator's own buffer, for kernels.

 Since NCCL 2.30.4.*/
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclResourceWindow_vidmem {
    /// The address of the buffer of rank 0 in the LSA team. Since NCCL 2.30.4.
    pub lsaFlatBase: *mut ::core::ffi::c_char,
    /// The distance between the buffers of two neighboring ranks, in units of 4 GiB. Since NCCL 2.30.4.
    pub stride4G: u32,
    /// The offset of the buffer in multicast memory, in units of 4 KiB. Since NCCL 2.30.4.
    pub mcOffset4K: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ncclResourceWindow_vidmem",
    ][::core::mem::size_of::<ncclResourceWindow_vidmem>() - 16usize];
    [
        "Alignment of ncclResourceWindow_vidmem",
    ][::core::mem::align_of::<ncclResourceWindow_vidmem>() - 8usize];
    [
        "Offset of field: ncclResourceWindow_vidmem::lsaFlatBase",
    ][::core::mem::offset_of!(ncclResourceWindow_vidmem, lsaFlatBase) - 0usize];
    [
        "Offset of field: ncclResourceWindow_vidmem::stride4G",
    ][::core::mem::offset_of!(ncclResourceWindow_vidmem, stride4G) - 8usize];
    [
        "Offset of field: ncclResourceWindow_vidmem::mcOffset4K",
    ][::core::mem::offset_of!(ncclResourceWindow_vidmem, mcOffset4K) - 12usize];
};
impl Default for ncclResourceWindow_vidmem {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
/** The location of a device communicator's own buffer, for kernels.

 Since NCCL 2.30.4.*/
pub type ncclResourceWindow_vidmem_t = ncclResourceWindow_vidmem;
#[repr(C)]
#[derive(Debug)]
pub struct ncclDevCommWindowTable {
    _unused: [u8; 0],
}
/** A table of windows, in device memory.

 Since NCCL 2.28.3.*/
pub type ncclDevCommWindowTable_t = *mut ncclDevCommWindowTable;
/** The data with which a kernel communicates; passed to the kernel by value, and private to NCCL.

 248 bytes, as in 2.31.2 and 2.32.3; other versions have other fields.
 Since NCCL 2.28.3.*/
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclDevComm {
    /// A magic number. Since NCCL 2.30.3.
    pub magic: ::core::ffi::c_uint,
    /// The version of this layout. Since NCCL 2.30.3.
    pub version: ::core::ffi::c_uint,
    /// The number of this rank. Since NCCL 2.28.3.
    pub rank: ::core::ffi::c_int,
    /// The number of ranks. Since NCCL 2.28.3.
    pub nRanks: ::core::ffi::c_int,
    /// The reciprocal of `nRanks`. Since NCCL 2.28.3.
    pub nRanks_rcp32: u32,
    /// This rank's number in the LSA team. Since NCCL 2.28.3.
    pub lsaRank: ::core::ffi::c_int,
    /// The size of the LSA team. Since NCCL 2.28.3.
    pub lsaSize: ::core::ffi::c_int,
    /// The reciprocal of `lsaSize`. Since NCCL 2.28.3.
    pub lsaSize_rcp32: u32,
    /// The communicator's windows. Since NCCL 2.28.3.
    pub windowTable: ncclDevCommWindowTable_t,
    /// The window of the device communicator's own buffer. Since NCCL 2.28.3.
    pub resourceWindow: ncclWindow_t,
    /// The part of that window that kernels use. Since NCCL 2.28.3.
    pub resourceWindow_inlined: ncclResourceWindow_vidmem_t,
    /// Barriers among all ranks: the part that uses the network. Since NCCL 2.31.2.
    pub hybridDenseGinBarrier: ncclGinBarrierHandle_t,
    /// Multicast memory of the LSA team. Since NCCL 2.28.3.
    pub lsaMultimem: ncclMultimemHandle_t,
    /// Barriers of the LSA team. Since NCCL 2.28.3.
    pub lsaBarrier: ncclLsaBarrierHandle_t,
    /// Barriers of the rail team. Since NCCL 2.28.7.
    pub railGinBarrier: ncclGinBarrierHandle_t,
    /// The number of connections in use. Since NCCL 2.29.7.
    pub ginConnectionCount: u8,
    /// The index of the GIN backend. Since NCCL 2.31.2.
    pub backendIndex: u8,
    /// The type of each connection's network device. Since NCCL 2.29.2.
    pub ginNetDeviceTypes: [u8; 4usize],
    /// The state of each connection. Since NCCL 2.28.7.
    pub ginHandles: [*mut ::core::ffi::c_void; 4usize],
    /// The number of signals. Since NCCL 2.28.7.
    pub ginSignalCount: ::core::ffi::c_int,
    /// The number of counters. Since NCCL 2.28.7.
    pub ginCounterCount: ::core::ffi::c_int,
    /// The kernels' copies of the signals. Since NCCL 2.28.7.
    pub ginSignalShadows: *mut u64,
    /// The number of contexts. Since NCCL 2.28.7.
    pub ginContextCount: u32,
    /// The distance between connected ranks' numbers in the communicator. Since NCCL 2.31.2.
    pub ginConnectionStride: ::core::ffi::c_int,
    /// The distance between the numbers of a context's ranks in the communicator. Since NCCL 2.31.2.
    pub ginContextStride: ::core::ffi::c_int,
    /// True if signals of the deprecated types are strong; see `ginStrongSignalsRequired`. Since NCCL 2.30.7.
    pub ginStrongLegacySignals: bool,
    /// A flag that is not zero once the communicator is aborted. Since NCCL 2.29.7.
    pub abortFlag: *mut u32,
    /// Barriers among all ranks: the part in the LSA team. Since NCCL 2.30.3.
    pub hybridLsaBarrier: ncclLsaBarrierHandle_t,
    /// Barriers among all ranks: the part in the rail team. Since NCCL 2.30.3.
    pub hybridRailGinBarrier: ncclGinBarrierHandle_t,
    /// Barriers among all ranks that use only the network. Since NCCL 2.30.3.
    pub worldGinBarrier: ncclGinBarrierHandle_t,
    /// The reciprocal of `ginConnectionStride`. Since NCCL 2.31.2.
    pub ginConnectionStride_rcp32: u32,
    /// This rank's number in the team of logical endpoints. Since NCCL 2.31.2.
    pub cftRank: ::core::ffi::c_int,
    /// The size of the team of logical endpoints. Since NCCL 2.31.2.
    pub cftSize: ::core::ffi::c_int,
    /// This rank's number in the multicast team of logical endpoints. Since NCCL 2.31.2.
    pub cftMultimemRank: ::core::ffi::c_int,
    /// The size of the multicast team of logical endpoints. Since NCCL 2.31.2.
    pub cftMultimemSize: ::core::ffi::c_int,
    /// The reciprocal of `cftMultimemSize`. Since NCCL 2.31.2.
    pub cftMultimemSize_rcp32: u32,
    /// The first of the endpoints that each reach one peer. Since NCCL 2.31.2.
    pub ucLeId: ncclCftLeId,
    /// The endpoint for multicast. Since NCCL 2.31.2.
    pub mcLeId: ncclCftLeId,
    /// Barriers that use endpoints. Since NCCL 2.31.2.
    pub cftBarrier: ncclCftBarrierHandle_t,
    /// Barriers that use endpoints and multicast. Since NCCL 2.31.2.
    pub cftMultimemBarrier: ncclCftBarrierHandle_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclDevComm"][::core::mem::size_of::<ncclDevComm>() - 248usize];
    ["Alignment of ncclDevComm"][::core::mem::align_of::<ncclDevComm>() - 8usize];
    [
        "Offset of field: ncclDevComm::magic",
    ][::core::mem::offset_of!(ncclDevComm, magic) - 0usize];
    [
        "Offset of field: ncclDevComm::version",
    ][::core::mem::offset_of!(ncclDevComm, version) - 4usize];
    [
        "Offset of field: ncclDevComm::rank",
    ][::core::mem::offset_of!(ncclDevComm, rank) - 8usize];
    [
        "Offset of field: ncclDevComm::nRanks",
    ][::core::mem::offset_of!(ncclDevComm, nRanks) - 12usize];
    [
        "Offset of field: ncclDevComm::nRanks_rcp32",
    ][::core::mem::offset_of!(ncclDevComm, nRanks_rcp32) - 16usize];
    [
        "Offset of field: ncclDevComm::lsaRank",
    ][::core::mem::offset_of!(ncclDevComm, lsaRank) - 20usize];
    [
        "Offset of field: ncclDevComm::lsaSize",
    ][::core::mem::offset_of!(ncclDevComm, lsaSize) - 24usize];
    [
        "Offset of field: ncclDevComm::lsaSize_rcp32",
    ][::core::mem::offset_of!(ncclDevComm, lsaSize_rcp32) - 28usize];
    [
        "Offset of field: ncclDevComm::windowTable",
    ][::core::mem::offset_of!(ncclDevComm, windowTable) - 32usize];
    [
        "Offset of field: ncclDevComm::resourceWindow",
    ][::core::mem::offset_of!(ncclDevComm, resourceWindow) - 40usize];
    [
        "Offset of field: ncclDevComm::resourceWindow_inlined",
    ][::core::mem::offset_of!(ncclDevComm, resourceWindow_inlined) - 48usize];
    [
        "Offset of field: ncclDevComm::hybridDenseGinBarrier",
    ][::core::mem::offset_of!(ncclDevComm, hybridDenseGinBarrier) - 64usize];
    [
        "Offset of field: ncclDevComm::lsaMultimem",
    ][::core::mem::offset_of!(ncclDevComm, lsaMultimem) - 72usize];
    [
        "Offset of field: ncclDevComm::lsaBarrier",
    ][::core::mem::offset_of!(ncclDevComm, lsaBarrier) - 80usize];
    [
        "Offset of field: ncclDevComm::railGinBarrier",
    ][::core::mem::offset_of!(ncclDevComm, railGinBarrier) - 88usize];
    [
        "Offset of field: ncclDevComm::ginConnectionCount",
    ][::core::mem::offset_of!(ncclDevComm, ginConnectionCount) - 96usize];
    [
        "Offset of field: ncclDevComm::backendIndex",
    ][::core::mem::offset_of!(ncclDevComm, backendIndex) - 97usize];
    [
        "Offset of field: ncclDevComm::ginNetDeviceTypes",
    ][::core::mem::offset_of!(ncclDevComm, ginNetDeviceTypes) - 98usize];
    [
        "Offset of field: ncclDevComm::ginHandles",
    ][::core::mem::offset_of!(ncclDevComm, ginHandles) - 104usize];
    [
        "Offset of field: ncclDevComm::ginSignalCount",
    ][::core::mem::offset_of!(ncclDevComm, ginSignalCount) - 136usize];
    [
        "Offset of field: ncclDevComm::ginCounterCount",
    ][::core::mem::offset_of!(ncclDevComm, ginCounterCount) - 140usize];
    [
        "Offset of field: ncclDevComm::ginSignalShadows",
    ][::core::mem::offset_of!(ncclDevComm, ginSignalShadows) - 144usize];
    [
        "Offset of field: ncclDevComm::ginContextCount",
    ][::core::mem::offset_of!(ncclDevComm, ginContextCount) - 152usize];
    [
        "Offset of field: ncclDevComm::ginConnectionStride",
    ][::core::mem::offset_of!(ncclDevComm, ginConnectionStride) - 156usize];
    [
        "Offset of field: ncclDevComm::ginContextStride",
    ][::core::mem::offset_of!(ncclDevComm, ginContextStride) - 160usize];
    [
        "Offset of field: ncclDevComm::ginStrongLegacySignals",
    ][::core::mem::offset_of!(ncclDevComm, ginStrongLegacySignals) - 164usize];
    [
        "Offset of field: ncclDevComm::abortFlag",
    ][::core::mem::offset_of!(ncclDevComm, abortFlag) - 168usize];
    [
        "Offset of field: ncclDevComm::hybridLsaBarrier",
    ][::core::mem::offset_of!(ncclDevComm, hybridLsaBarrier) - 176usize];
    [
        "Offset of field: ncclDevComm::hybridRailGinBarrier",
    ][::core::mem::offset_of!(ncclDevComm, hybridRailGinBarrier) - 184usize];
    [
        "Offset of field: ncclDevComm::worldGinBarrier",
    ][::core::mem::offset_of!(ncclDevComm, worldGinBarrier) - 192usize];
    [
        "Offset of field: ncclDevComm::ginConnectionStride_rcp32",
    ][::core::mem::offset_of!(ncclDevComm, ginConnectionStride_rcp32) - 200usize];
    [
        "Offset of field: ncclDevComm::cftRank",
    ][::core::mem::offset_of!(ncclDevComm, cftRank) - 204usize];
    [
        "Offset of field: ncclDevComm::cftSize",
    ][::core::mem::offset_of!(ncclDevComm, cftSize) - 208usize];
    [
        "Offset of field: ncclDevComm::cftMultimemRank",
    ][::core::mem::offset_of!(ncclDevComm, cftMultimemRank) - 212usize];
    [
        "Offset of field: ncclDevComm::cftMultimemSize",
    ][::core::mem::offset_of!(ncclDevComm, cftMultimemSize) - 216usize];
    [
        "Offset of field: ncclDevComm::cftMultimemSize_rcp32",
    ][::core::mem::offset_of!(ncclDevComm, cftMultimemSize_rcp32) - 220usize];
    [
        "Offset of field: ncclDevComm::ucLeId",
    ][::core::mem::offset_of!(ncclDevComm, ucLeId) - 224usize];
    [
        "Offset of field: ncclDevComm::mcLeId",
    ][::core::mem::offset_of!(ncclDevComm, mcLeId) - 228usize];
    [
        "Offset of field: ncclDevComm::cftBarrier",
    ][::core::mem::offset_of!(ncclDevComm, cftBarrier) - 232usize];
    [
        "Offset of field: ncclDevComm::cftMultimemBarrier",
    ][::core::mem::offset_of!(ncclDevComm, cftMultimemBarrier) - 240usize];
};
impl Default for ncclDevComm {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
/** A device communicator, which `ncclDevCommCreate` fills in.

 Since NCCL 2.28.3.*/
pub type ncclDevComm_t = ncclDevComm;
