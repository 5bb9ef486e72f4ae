/*
 * The host side of NCCL's device API, version 2.32.3, for the Rust bindings in this repository.
 *
 * Kernels can communicate with each other; these functions prepare the resources on the host. Declarations
 * (names, types, values, order of fields) are NCCL's ABI; the comments are ours. NVIDIA declares them in
 * nccl_device/host.h and the headers that it includes. The conventions of nccl.h apply, and also:
 *
 * - Not all structs here are append-only: `ncclCommProperties_t` and `ncclDevCommRequirements_t` are, from 2.29.7 on;
 *   `ncclDevComm_t` changes with nearly every version, and is declared here as in 2.31.2 and 2.32.3.
 * - A library accepts structs whose `version` is from 2.29.2 up to its own version, and fills in the fields of
 *   that version. It returns `ncclInvalidUsage` for a newer `version`. So `version` must not exceed the value of
 *   `ncclGetVersion`.
 * - A null or foreign communicator crashes the team functions.
 * - `ncclCftBarrierCreateRequirement`, which NVIDIA's header declares, is missing here: no library exports it.
 */

#ifndef NCCL_DEVICE_HOST_H_
#define NCCL_DEVICE_HOST_H_

#include <nccl.h>

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Teams --------------------------------------------------------------------------------------------- */

/**
 * A team: ranks of a communicator whose numbers are evenly spaced, including the caller.
 *
 * Since NCCL 2.28.3.
 */
struct ncclTeam {
    /** The number of ranks. Since NCCL 2.28.3. */
    int nRanks;
    /** The caller's number in the team. Since NCCL 2.28.3. */
    int rank;
    /** The difference between neighbors' numbers in the communicator. Since NCCL 2.28.3. */
    int stride;
};

/**
 * Another name of `struct ncclTeam`.
 *
 * Since NCCL 2.28.3.
 */
typedef struct ncclTeam ncclTeam_t;

/**
 * The kind of team that `ncclTeamCft` returns.
 *
 * Since NCCL 2.31.2.
 */
typedef enum {
    /** The flat team: all ranks that the caller reaches by logical endpoints. Since NCCL 2.31.2. */
    NCCL_CFT_TEAM_FLAT = 0,
    /** The ranks of the flat team whose number in their multicast team equals the caller's. Since NCCL 2.31.2. */
    NCCL_CFT_TEAM_HIER_MULTIMEM = 1,
    /** The ranks of the flat team whose number in their LSA team equals the caller's. Since NCCL 2.31.2. */
    NCCL_CFT_TEAM_HIER_LSA = 2
} ncclCftTeamMode_t;

/* ---- Handles and numbers that kernels use -------------------------------------------------------------- */

/**
 * An offset in the buffer of a device communicator, in units of 128 bytes.
 *
 * Since NCCL 2.28.3.
 */
typedef uint32_t ncclDevResourceHandle;

/**
 * Another name of `ncclDevResourceHandle`.
 *
 * Since NCCL 2.28.3.
 */
typedef ncclDevResourceHandle ncclDevResourceHandle_t;

/**
 * The number of a signal of GPU-initiated networking (GIN).
 *
 * Since NCCL 2.28.7.
 */
typedef uint32_t ncclGinSignal_t;

/**
 * The number of a GIN counter.
 *
 * Since NCCL 2.28.7.
 */
typedef uint32_t ncclGinCounter_t;

/**
 * The number of a logical endpoint of the compute fabric transport (CFT).
 *
 * Since NCCL 2.31.2.
 */
typedef uint32_t ncclCftLeId;

/**
 * Another name of `ncclCftLeId`.
 *
 * Since NCCL 2.31.2.
 */
typedef ncclCftLeId ncclCftLeId_t;

/* The invalid endpoint. */
#define NCCL_LE_ID_INVALID ((ncclCftLeId_t)-1)

/**
 * The start of a team's multicast memory.
 *
 * Since NCCL 2.28.3.
 */
struct ncclMultimemHandle {
    /** The address that kernels use. Since NCCL 2.28.3. */
    void *mcBasePtr;
};

/**
 * Another name of `struct ncclMultimemHandle`.
 *
 * Since NCCL 2.28.3.
 */
typedef struct ncclMultimemHandle ncclMultimemHandle_t;

/**
 * The handle of an LSA team's barriers, for kernels. The team's ranks access each other by loads and stores.
 *
 * Since NCCL 2.28.3.
 */
struct ncclLsaBarrierHandle {
    /** The location of the barriers' state. Since NCCL 2.28.3. */
    ncclDevResourceHandle_t bufHandle;
    /** The number of barriers. Since NCCL 2.28.3. */
    int nBarriers;
};

/**
 * Another name of `struct ncclLsaBarrierHandle`.
 *
 * Since NCCL 2.28.3.
 */
typedef struct ncclLsaBarrierHandle ncclLsaBarrierHandle_t;

/**
 * The handle of barriers that use GPU-initiated networking (GIN), for kernels.
 *
 * Since NCCL 2.28.7.
 */
struct ncclGinBarrierHandle {
    /** The first signal of the barriers. Since NCCL 2.28.7. */
    ncclGinSignal_t signal0;
    /** Not used. Up to 2.29.3, a buffer called `bufHandle`. Since NCCL 2.29.7. */
    ncclDevResourceHandle_t unused;
};

/**
 * Another name of `struct ncclGinBarrierHandle`.
 *
 * Since NCCL 2.28.7.
 */
typedef struct ncclGinBarrierHandle ncclGinBarrierHandle_t;

/**
 * The handle of barriers that use logical endpoints, for kernels.
 *
 * Since NCCL 2.31.2.
 */
struct ncclCftBarrierHandle {
    /** The location of the barriers' state. Since NCCL 2.31.2. */
    ncclDevResourceHandle_t bufHandle;
    /** The number of barriers. Since NCCL 2.31.2. */
    int nBarriers;
};

/**
 * Another name of `struct ncclCftBarrierHandle`.
 *
 * Since NCCL 2.31.2.
 */
typedef struct ncclCftBarrierHandle ncclCftBarrierHandle_t;

/**
 * The handle of a low-latency all-to-all, for kernels.
 *
 * Since NCCL 2.28.3.
 */
struct ncclLLA2AHandle {
    /** The location of the slots. Since NCCL 2.28.3. */
    ncclDevResourceHandle_t bufHandle;
    /** The number of slots. Since NCCL 2.28.3. */
    uint32_t nSlots;
};

/**
 * Another name of `struct ncclLLA2AHandle`.
 *
 * Since NCCL 2.28.3.
 */
typedef struct ncclLLA2AHandle ncclLLA2AHandle_t;

/* ---- Properties of a communicator ---------------------------------------------------------------------- */

/**
 * The peers with which GPU-initiated networking connects.
 *
 * Since NCCL 2.29.7.
 */
typedef enum {
    /** No peers. Since NCCL 2.29.7. */
    NCCL_GIN_CONNECTION_NONE = 0,
    /** All peers. Since NCCL 2.29.7. */
    NCCL_GIN_CONNECTION_FULL = 1,
    /** The peers in the rail team; see `ncclTeamRail`. Since NCCL 2.29.7. */
    NCCL_GIN_CONNECTION_RAIL = 2,
    /** The peers at a fixed distance; see `ginCustomStride`. Since NCCL 2.31.2. */
    NCCL_GIN_CONNECTION_CUSTOM_STRIDE = 3
} ncclGinConnectionType_t;

/**
 * The means by which GPU-initiated networking (GIN) reaches the network.
 *
 * Since NCCL 2.29.2.
 */
typedef enum {
    /** No GIN; in `ncclDevCommRequirements`, any type. Since NCCL 2.29.2. */
    NCCL_GIN_TYPE_NONE = 0,
    /** A thread on the CPU. Since NCCL 2.29.2. */
    NCCL_GIN_TYPE_PROXY = 2,
    /** GPUDirect async, kernel-initiated. Since NCCL 2.29.2. */
    NCCL_GIN_TYPE_GDAKI = 3,
    /** GPU-Push Interface (GPI). Since NCCL 2.30.7. */
    NCCL_GIN_TYPE_GPI = 4,
    /** Amazon's Elastic Fabric Adapter (EFA). Since NCCL 2.31.2. */
    NCCL_GIN_TYPE_EFA_GDA = 5,
    /** One above the last value; it grows with each new type. Since NCCL 2.31.2. */
    NCCL_GIN_MAX_TYPES = 6
} ncclGinType_t;

/**
 * The properties of a communicator and its system, which `ncclCommQueryProperties` fills in.
 *
 * Start from `NCCL_COMM_PROPERTIES_INITIALIZER`. From 2.29.7 on, new versions only append fields.
 * Since NCCL 2.29.2.
 */
typedef struct ncclCommProperties {
    /** The size of this struct in bytes: 152. Since NCCL 2.29.2. */
    size_t size;
    /** `NCCL_API_MAGIC`; any other value is an error. Since NCCL 2.29.2. */
    unsigned int magic;
    /** The version whose fields are filled in, no newer than the library. Since NCCL 2.29.2. */
    unsigned int version;
    /** The caller's rank. Since NCCL 2.29.2. */
    int rank;
    /** The number of ranks. Since NCCL 2.29.2. */
    int nRanks;
    /** The number of the rank's device in CUDA. Since NCCL 2.29.2. */
    int cudaDev;
    /** The number of the rank's device in NVML. Since NCCL 2.29.2. */
    int nvmlDev;
    /** True if `ncclDevCommCreate` works on this system. Since NCCL 2.29.2. */
    bool deviceApiSupport;
    /** True if the LSA team has multicast memory. Since NCCL 2.29.2. */
    bool multimemSupport;
    /** The type of GIN that reaches all peers; before 2.29.7, one byte at offset 34. Since NCCL 2.29.7. */
    ncclGinType_t ginType;
    /** The number of LSA teams that the ranks form. Since NCCL 2.29.7. */
    int nLsaTeams;
    /** True if the host's one-sided operations (`ncclPutSignal`) work on this system. Since NCCL 2.29.7. */
    bool hostRmaSupport;
    /** The type of GIN that reaches the peers in the rail team. Since NCCL 2.29.7. */
    ncclGinType_t railedGinType;
    /** A number that identifies the communicator. Since NCCL 2.31.2. */
    uint64_t commHash;
    /** The smallest valid `ginCustomStride`. Since NCCL 2.31.2. */
    int ginMinStride;
    /** The largest set of peers that GIN can connect. Since NCCL 2.31.2. */
    ncclGinConnectionType_t ginConnectionType;
    /** Indexed by `ncclGinType_t`: true if the type is available. Since NCCL 2.31.2. */
    bool ginSupport[64];
    /** The size in bytes of a device communicator with the layout of the library's version. Since NCCL 2.31.2. */
    size_t devCommRuntimeVersionSize;
    /** True if logical endpoints work on this system. Since NCCL 2.32.3. */
    bool cftSupport;
    /** True if logical endpoints support multicast. Since NCCL 2.32.3. */
    bool cftMulticastSupport;
    /** True if logical endpoints support counted operations. Since NCCL 2.32.3. */
    bool cftCountedSupport;
} ncclCommProperties_t;

/* An `ncclCommProperties_t` to be filled in; the other fields are zero. */
#define NCCL_COMM_PROPERTIES_INITIALIZER \
    { \
        sizeof(ncclCommProperties_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, \
    }

/* ---- Requirements of a device communicator ------------------------------------------------------------- */

/**
 * An entry in a list of requirements: a buffer, signals and counters for a device communicator.
 *
 * Since NCCL 2.28.3.
 */
typedef struct ncclDevResourceRequirements {
    /** The next entry, or `NULL`. Since NCCL 2.28.3. */
    struct ncclDevResourceRequirements *next;
    /** The size of the buffer in bytes. Since NCCL 2.28.3. */
    size_t bufferSize;
    /** The alignment of the buffer in bytes. Since NCCL 2.28.3. */
    size_t bufferAlign;
    /** The address to which `ncclDevCommCreate` writes the buffer's offset, or `NULL`. Since NCCL 2.28.3. */
    ncclDevResourceHandle_t *outBufferHandle;
    /** The number of signals. Since NCCL 2.28.7. */
    int ginSignalCount;
    /** The number of counters. Since NCCL 2.28.7. */
    int ginCounterCount;
    /** The address to which `ncclDevCommCreate` writes the first signal, or `NULL`. Since NCCL 2.28.7. */
    ncclGinSignal_t *outGinSignalStart;
    /** The address to which `ncclDevCommCreate` writes the first counter, or `NULL`. Since NCCL 2.28.7. */
    ncclGinCounter_t *outGinCounterStart;
} ncclDevResourceRequirements_t;

/**
 * An entry in a list of requirements: a team for a device communicator.
 *
 * Since NCCL 2.28.3.
 */
typedef struct ncclTeamRequirements {
    /** The next entry, or `NULL`. Since NCCL 2.28.3. */
    struct ncclTeamRequirements *next;
    /** The team. Since NCCL 2.28.3. */
    ncclTeam_t team;
    /** True if the team needs multicast memory. Since NCCL 2.28.3. */
    bool multimem;
    /** The address to which `ncclDevCommCreate` writes the handle of that memory, or `NULL`. Since NCCL 2.28.3. */
    ncclMultimemHandle_t *outMultimemHandle;
} ncclTeamRequirements_t;

/**
 * The uses of logical endpoints, combined in `cftCaps`.
 *
 * Since NCCL 2.31.2.
 */
typedef enum {
    /** No uses: the empty set. Since NCCL 2.31.2. */
    NCCL_CFT_NONE = 0,
    /** Communication with one peer at a time. Since NCCL 2.31.2. */
    NCCL_CFT = 1,
    /** Multicast. Since NCCL 2.31.2. */
    NCCL_CFT_MULTIMEM = 2
} ncclCftCap_t;

/**
 * The resources that `ncclDevCommCreate` prepares.
 *
 * Start from `NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER`. From 2.29.7 on, new versions only append fields; 2.29.2
 * inserted `size`, `magic` and `version` at the front.
 * Since NCCL 2.28.3.
 */
typedef struct ncclDevCommRequirements {
    /** The size of this struct in bytes: 120. Since NCCL 2.29.2. */
    size_t size;
    /** `NCCL_API_MAGIC`; any other value is an error. Since NCCL 2.29.2. */
    unsigned int magic;
    /** The version of the header that kernels are compiled with, no newer than the library. Since NCCL 2.29.2. */
    unsigned int version;
    /** Buffers, signals and counters, or `NULL`. Since NCCL 2.28.3. */
    ncclDevResourceRequirements_t *resourceRequirementsList;
    /** Teams in addition to the predefined ones, or `NULL`. Since NCCL 2.28.3. */
    ncclTeamRequirements_t *teamRequirementsList;
    /** True if the LSA team needs multicast memory. Since NCCL 2.28.3. */
    bool lsaMultimem;
    /** The number of barriers among all ranks. Since NCCL 2.28.7. */
    int barrierCount;
    /** The number of barriers of the LSA team. Since NCCL 2.28.3. */
    int lsaBarrierCount;
    /** The number of barriers of the rail team, which use the network. Since NCCL 2.28.7. */
    int railGinBarrierCount;
    /** The number of thread blocks that use low-latency all-to-all. Since NCCL 2.28.7. */
    int lsaLLA2ABlockCount;
    /** The number of slots of each thread block; see `ncclLLA2ACalcSlots`. Since NCCL 2.28.7. */
    int lsaLLA2ASlotCount;
    /** True to enable GIN even if no other field needs it. Since NCCL 2.28.7. */
    bool ginForceEnable;
    /** The number of GIN contexts; only a hint. Since NCCL 2.28.7. */
    int ginContextCount;
    /** The number of signals, numbered from 0. Since NCCL 2.28.7. */
    int ginSignalCount;
    /** The number of counters, numbered from 0. Since NCCL 2.28.7. */
    int ginCounterCount;
    /** The peers that GIN connects. Since NCCL 2.29.7. */
    ncclGinConnectionType_t ginConnectionType;
    /** True if the contexts are exclusive to this device communicator. Since NCCL 2.29.7. */
    bool ginExclusiveContexts;
    /** The length of the GIN queues; 0 for NCCL's default. Since NCCL 2.29.7. */
    int ginQueueDepth;
    /** The network's traffic class, or `NCCL_CONFIG_UNDEF_INT`. Since NCCL 2.30.3. */
    int ginTrafficClass;
    /** The number of barriers among all ranks that use only the network. Since NCCL 2.30.3. */
    int worldGinBarrierCount;
    /** True if kernels use strong signals, which become visible only after all preceding puts. Since NCCL 2.30.7. */
    bool ginStrongSignalsRequired;
    /** True if kernels raise signals by address. Since NCCL 2.30.7. */
    bool ginVaSignalsRequired;
    /** The stride of `NCCL_GIN_CONNECTION_CUSTOM_STRIDE`. Since NCCL 2.31.2. */
    int ginCustomStride;
    /** The required type of GIN. Since NCCL 2.31.2. */
    ncclGinType_t ginType;
    /**
     * True if kernels are compiled at run time with the library's own headers. The device communicator then has the
     * layout of the library's version, and `devCommRuntimeVersionSize` bytes. Since NCCL 2.31.2.
     */
    bool useRuntimeVersion;
    /** A bitwise or of values of `ncclCftCap_t`. Since NCCL 2.31.2. */
    int cftCaps;
    /** The number of barriers that use logical endpoints. Since NCCL 2.31.2. */
    int cftBarrierCount;
} ncclDevCommRequirements_t;

/* An `ncclDevCommRequirements_t` without requirements. */
#define NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER \
    { \
        sizeof(ncclDevCommRequirements_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, NULL, NULL, false, 0, 0, 0, 0, 0, \
        false, 4, 0, 0, NCCL_GIN_CONNECTION_NONE, false, 0, NCCL_CONFIG_UNDEF_INT, 0, true, true, 1, \
        NCCL_GIN_TYPE_NONE, false, NCCL_CFT_NONE, 0, \
    }

/* ---- Device communicators ------------------------------------------------------------------------------ */

/* The maximum number of network connections of a device communicator. */
#define NCCL_GIN_MAX_CONNECTIONS 4

/**
 * The location of a device communicator's own buffer, for kernels.
 *
 * Since NCCL 2.30.4.
 */
typedef struct ncclResourceWindow_vidmem {
    /** The address of the buffer of rank 0 in the LSA team. Since NCCL 2.30.4. */
    char *lsaFlatBase;
    /** The distance between the buffers of two neighboring ranks, in units of 4 GiB. Since NCCL 2.30.4. */
    uint32_t stride4G;
    /** The offset of the buffer in multicast memory, in units of 4 KiB. Since NCCL 2.30.4. */
    uint32_t mcOffset4K;
} ncclResourceWindow_vidmem_t;

/**
 * A table of windows, in device memory.
 *
 * Since NCCL 2.28.3.
 */
typedef struct ncclDevCommWindowTable *ncclDevCommWindowTable_t;

/**
 * The data with which a kernel communicates; passed to the kernel by value, and private to NCCL.
 *
 * 248 bytes, as in 2.31.2 and 2.32.3; other versions have other fields.
 * Since NCCL 2.28.3.
 */
struct ncclDevComm {
    /** A magic number. Since NCCL 2.30.3. */
    unsigned int magic;
    /** The version of this layout. Since NCCL 2.30.3. */
    unsigned int version;
    /** The number of this rank. Since NCCL 2.28.3. */
    int rank;
    /** The number of ranks. Since NCCL 2.28.3. */
    int nRanks;
    /** The reciprocal of `nRanks`. Since NCCL 2.28.3. */
    uint32_t nRanks_rcp32;
    /** This rank's number in the LSA team. Since NCCL 2.28.3. */
    int lsaRank;
    /** The size of the LSA team. Since NCCL 2.28.3. */
    int lsaSize;
    /** The reciprocal of `lsaSize`. Since NCCL 2.28.3. */
    uint32_t lsaSize_rcp32;
    /** The communicator's windows. Since NCCL 2.28.3. */
    ncclDevCommWindowTable_t windowTable;
    /** The window of the device communicator's own buffer. Since NCCL 2.28.3. */
    ncclWindow_t resourceWindow;
    /** The part of that window that kernels use. Since NCCL 2.28.3. */
    ncclResourceWindow_vidmem_t resourceWindow_inlined;
    /** Barriers among all ranks: the part that uses the network. Since NCCL 2.31.2. */
    ncclGinBarrierHandle_t hybridDenseGinBarrier;
    /** Multicast memory of the LSA team. Since NCCL 2.28.3. */
    ncclMultimemHandle_t lsaMultimem;
    /** Barriers of the LSA team. Since NCCL 2.28.3. */
    ncclLsaBarrierHandle_t lsaBarrier;
    /** Barriers of the rail team. Since NCCL 2.28.7. */
    ncclGinBarrierHandle_t railGinBarrier;
    /** The number of connections in use. Since NCCL 2.29.7. */
    uint8_t ginConnectionCount;
    /** The index of the GIN backend. Since NCCL 2.31.2. */
    uint8_t backendIndex;
    /** The type of each connection's network device. Since NCCL 2.29.2. */
    uint8_t ginNetDeviceTypes[NCCL_GIN_MAX_CONNECTIONS];
    /** The state of each connection. Since NCCL 2.28.7. */
    void *ginHandles[NCCL_GIN_MAX_CONNECTIONS];
    /** The number of signals. Since NCCL 2.28.7. */
    int ginSignalCount;
    /** The number of counters. Since NCCL 2.28.7. */
    int ginCounterCount;
    /** The kernels' copies of the signals. Since NCCL 2.28.7. */
    uint64_t *ginSignalShadows;
    /** The number of contexts. Since NCCL 2.28.7. */
    uint32_t ginContextCount;
    /** The distance between connected ranks' numbers in the communicator. Since NCCL 2.31.2. */
    int ginConnectionStride;
    /** The distance between the numbers of a context's ranks in the communicator. Since NCCL 2.31.2. */
    int ginContextStride;
    /** True if signals of the deprecated types are strong; see `ginStrongSignalsRequired`. Since NCCL 2.30.7. */
    bool ginStrongLegacySignals;
    /** A flag that is not zero once the communicator is aborted. Since NCCL 2.29.7. */
    uint32_t *abortFlag;
    /** Barriers among all ranks: the part in the LSA team. Since NCCL 2.30.3. */
    ncclLsaBarrierHandle_t hybridLsaBarrier;
    /** Barriers among all ranks: the part in the rail team. Since NCCL 2.30.3. */
    ncclGinBarrierHandle_t hybridRailGinBarrier;
    /** Barriers among all ranks that use only the network. Since NCCL 2.30.3. */
    ncclGinBarrierHandle_t worldGinBarrier;
    /** The reciprocal of `ginConnectionStride`. Since NCCL 2.31.2. */
    uint32_t ginConnectionStride_rcp32;
    /** This rank's number in the team of logical endpoints. Since NCCL 2.31.2. */
    int cftRank;
    /** The size of the team of logical endpoints. Since NCCL 2.31.2. */
    int cftSize;
    /** This rank's number in the multicast team of logical endpoints. Since NCCL 2.31.2. */
    int cftMultimemRank;
    /** The size of the multicast team of logical endpoints. Since NCCL 2.31.2. */
    int cftMultimemSize;
    /** The reciprocal of `cftMultimemSize`. Since NCCL 2.31.2. */
    uint32_t cftMultimemSize_rcp32;
    /** The first of the endpoints that each reach one peer. Since NCCL 2.31.2. */
    ncclCftLeId ucLeId;
    /** The endpoint for multicast. Since NCCL 2.31.2. */
    ncclCftLeId mcLeId;
    /** Barriers that use endpoints. Since NCCL 2.31.2. */
    ncclCftBarrierHandle_t cftBarrier;
    /** Barriers that use endpoints and multicast. Since NCCL 2.31.2. */
    ncclCftBarrierHandle_t cftMultimemBarrier;
};

/**
 * A device communicator, which `ncclDevCommCreate` fills in.
 *
 * Since NCCL 2.28.3.
 */
typedef struct ncclDevComm ncclDevComm_t;

/**
 * Fills in the properties of the communicator.
 *
 * A wrong `magic` or a null pointer is an error. If `version` is newer than the library, returns `ncclInvalidUsage`.
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *props);

/**
 * Creates a device communicator; all ranks call it with the same requirements.
 *
 * If `version` in the requirements is newer than the library, returns `ncclInvalidUsage`.
 * Since NCCL 2.28.3.
 */
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t *reqs, ncclDevComm_t *outDevComm);

/**
 * Frees a device communicator. A null `comm` crashes in versions up to 2.28.9.
 *
 * Since NCCL 2.28.3.
 */
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t *devComm);

/* ---- Addresses of windows ------------------------------------------------------------------------------ */

/**
 * Stores the address in the LSA team's multicast memory that is `offset` bytes into the window.
 *
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void **outPtr);

/**
 * Stores the address in a team's multicast memory that is `offset` bytes into the window.
 *
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclGetMultimemDevicePointer(
    ncclWindow_t window, size_t offset, ncclMultimemHandle_t multimem, void **outPtr);

/**
 * Stores the address that is `offset` bytes into the window of rank `lsaRank` of the LSA team.
 *
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank, void **outPtr);

/**
 * Stores the address that is `offset` bytes into the window of rank `peer` of the communicator.
 *
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **outPtr);

/**
 * Stores the endpoint, and the offset in it, by which multicast reaches byte `offset` of the window.
 *
 * Since NCCL 2.31.2.
 */
ncclResult_t ncclGetMultimemDeviceLeInfo(
    ncclWindow_t window, size_t offset, ncclCftLeId *leId, size_t *leOffset);

/**
 * Stores the endpoint, and the offset in it, of byte `offset` in the window of rank `peerCft` of `cftTeam` (see
 * `ncclTeamCft`).
 *
 * Since NCCL 2.31.2.
 */
ncclResult_t ncclGetCftDeviceLeInfo(
    ncclWindow_t window, size_t offset, int peerCft, ncclTeam_t cftTeam, ncclCftLeId *leId, size_t *leOffset);

/**
 * Stores the endpoint, and the offset in it, of byte `offset` in the window of rank `peerWorld`.
 *
 * Since NCCL 2.31.2.
 */
ncclResult_t ncclGetPeerDeviceLeInfo(
    ncclWindow_t window, size_t offset, int peerWorld, ncclCftLeId *leId, size_t *leOffset);

/* ---- Teams of a communicator --------------------------------------------------------------------------- */

/**
 * Returns the team of all ranks.
 *
 * Since NCCL 2.28.3.
 */
ncclTeam_t ncclTeamWorld(ncclComm_t comm);

/**
 * Returns the LSA team: the ranks that the caller accesses by loads and stores.
 *
 * Since NCCL 2.28.3.
 */
ncclTeam_t ncclTeamLsa(ncclComm_t comm);

/**
 * Returns a team of ranks that the caller reaches by logical endpoints; `mode` selects them.
 *
 * Since NCCL 2.31.2.
 */
ncclTeam_t ncclTeamCft(ncclComm_t comm, ncclCftTeamMode_t mode);

/**
 * Returns the team of the ranks that the caller reaches by multicast of logical endpoints.
 *
 * Since NCCL 2.31.2.
 */
ncclTeam_t ncclTeamCftMultimem(ncclComm_t comm);

/**
 * Converts rank `rank` of the team to its number in the communicator.
 *
 * Since NCCL 2.28.3.
 */
int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);

/**
 * Converts rank `rank` of the team to its number in the LSA team.
 *
 * Since NCCL 2.28.3.
 */
int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);

/**
 * Returns the rail team: the ranks whose number in their LSA team equals the caller's.
 *
 * Since NCCL 2.28.3.
 */
ncclTeam_t ncclTeamRail(ncclComm_t comm);

/* ---- Requirements of the building blocks of kernels ---------------------------------------------------- */

/**
 * Fills in `*outReq` for barriers of an LSA team; `ncclDevCommCreate` later writes their handle to `*outHandle`.
 *
 * Since NCCL 2.28.3.
 */
ncclResult_t ncclLsaBarrierCreateRequirement(
    ncclTeam_t team, int nBarriers, ncclLsaBarrierHandle_t *outHandle, ncclDevResourceRequirements_t *outReq);

/**
 * Fills in `*outReq` for barriers that use GIN; see `ncclLsaBarrierCreateRequirement`.
 *
 * Since NCCL 2.28.7.
 */
ncclResult_t ncclGinBarrierCreateRequirement(
    ncclComm_t comm, ncclTeam_t team, int nBarriers, ncclGinBarrierHandle_t *outHandle,
    ncclDevResourceRequirements_t *outReq);

/**
 * Returns the number of slots of a low-latency all-to-all of `maxElts` elements of up to `maxEltSize` bytes.
 *
 * Since NCCL 2.28.3.
 */
int ncclLLA2ACalcSlots(int maxElts, int maxEltSize);

/**
 * Fills in `*outReq` for a low-latency all-to-all; see `ncclLsaBarrierCreateRequirement`.
 *
 * Since NCCL 2.28.3.
 */
ncclResult_t ncclLLA2ACreateRequirement(
    int nBlocks, int nSlots, ncclLLA2AHandle_t *outHandle, ncclDevResourceRequirements_t *outReq);

#ifdef __cplusplus
}
#endif

#endif
