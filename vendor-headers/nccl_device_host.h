/*
 * The host side of NCCL's device API, release 2.32.3, as described for the Rust bindings in this repository.
 *
 * Kernels can communicate by themselves; these functions prepare that on the host. Declarations (names, types,
 * values, order of fields) are NCCL's ABI; the comments are our own. NVIDIA has them in nccl_device/host.h and
 * what that includes. Conventions are those of nccl.h, and beyond them:
 *
 * - Structs here are not append-only. `ncclCommProperties_t` and `ncclDevCommRequirements_t` are from 2.29.7 on;
 *   `ncclDevComm_t` changes with nearly every release, and is declared here as 2.31.2 and 2.32.3 have it.
 * - A library takes structs whose `version` is from 2.29.2 up to its own release and fills in what that release
 *   had; a newer `version` is `ncclInvalidUsage`. So `version` must not exceed what `ncclGetVersion` answers.
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
 * Some of a communicator's ranks, evenly spaced, and the caller among them.
 *
 * Since NCCL 2.28.3.
 */
struct ncclTeam {
    /** How many ranks. Since NCCL 2.28.3. */
    int nRanks;
    /** The caller's number among them. Since NCCL 2.28.3. */
    int rank;
    /** How far apart neighbours are in the communicator. Since NCCL 2.28.3. */
    int stride;
};

/**
 * Teams are passed by value.
 *
 * Since NCCL 2.28.3.
 */
typedef struct ncclTeam ncclTeam_t;

/**
 * Which team `ncclTeamCft` is asked for.
 *
 * Since NCCL 2.31.2.
 */
typedef enum {
    /** All in one level. Since NCCL 2.31.2. */
    NCCL_CFT_TEAM_FLAT = 0,
    /** Of two levels, the one by multicast. Since NCCL 2.31.2. */
    NCCL_CFT_TEAM_HIER_MULTIMEM = 1,
    /** Of two levels, the one by loads and stores. Since NCCL 2.31.2. */
    NCCL_CFT_TEAM_HIER_LSA = 2
} ncclCftTeamMode_t;

/* ---- Handles and numbers that kernels use -------------------------------------------------------------- */

/**
 * A place in the buffer of a device communicator.
 *
 * Since NCCL 2.28.3.
 */
typedef uint32_t ncclDevResourceHandle;

/**
 * The same.
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
 * The number of a counter of GPU-initiated networking.
 *
 * Since NCCL 2.28.7.
 */
typedef uint32_t ncclGinCounter_t;

/**
 * A logical endpoint.
 *
 * Since NCCL 2.31.2.
 */
typedef uint32_t ncclCftLeId;

/**
 * The same.
 *
 * Since NCCL 2.31.2.
 */
typedef ncclCftLeId ncclCftLeId_t;

/* The endpoint that is none. */
#define NCCL_LE_ID_INVALID ((ncclCftLeId_t)-1)

/**
 * Where a team's multicast memory starts.
 *
 * Since NCCL 2.28.3.
 */
struct ncclMultimemHandle {
    /** An address for kernels. Since NCCL 2.28.3. */
    void *mcBasePtr;
};

/**
 * Passed by value.
 *
 * Since NCCL 2.28.3.
 */
typedef struct ncclMultimemHandle ncclMultimemHandle_t;

/**
 * Barriers among ranks that reach each other by loads and stores (a team of kind LSA).
 *
 * Since NCCL 2.28.3.
 */
struct ncclLsaBarrierHandle {
    /** Where their state is. Since NCCL 2.28.3. */
    ncclDevResourceHandle_t bufHandle;
    /** How many. Since NCCL 2.28.3. */
    int nBarriers;
};

/**
 * As kernels take it.
 *
 * Since NCCL 2.28.3.
 */
typedef struct ncclLsaBarrierHandle ncclLsaBarrierHandle_t;

/**
 * Barriers by GPU-initiated networking.
 *
 * Since NCCL 2.28.7.
 */
struct ncclGinBarrierHandle {
    /** The first of their signals. Since NCCL 2.28.7. */
    ncclGinSignal_t signal0;
    /** A buffer up to 2.29.3, called `bufHandle`. Since NCCL 2.29.7. */
    ncclDevResourceHandle_t unused;
};

/**
 * As kernels take it.
 *
 * Since NCCL 2.28.7.
 */
typedef struct ncclGinBarrierHandle ncclGinBarrierHandle_t;

/**
 * Barriers by logical endpoints.
 *
 * Since NCCL 2.31.2.
 */
struct ncclCftBarrierHandle {
    /** Where their state is. Since NCCL 2.31.2. */
    ncclDevResourceHandle_t bufHandle;
    /** How many. Since NCCL 2.31.2. */
    int nBarriers;
};

/**
 * As kernels take it.
 *
 * Since NCCL 2.31.2.
 */
typedef struct ncclCftBarrierHandle ncclCftBarrierHandle_t;

/**
 * A low-latency all-to-all.
 *
 * Since NCCL 2.28.3.
 */
struct ncclLLA2AHandle {
    /** Where its slots are. Since NCCL 2.28.3. */
    ncclDevResourceHandle_t bufHandle;
    /** How many. Since NCCL 2.28.3. */
    uint32_t nSlots;
};

/**
 * As kernels take it.
 *
 * Since NCCL 2.28.3.
 */
typedef struct ncclLLA2AHandle ncclLLA2AHandle_t;

/* ---- What a communicator can do ------------------------------------------------------------------------ */

/**
 * With which peers GPU-initiated networking connects.
 *
 * Since NCCL 2.29.7.
 */
typedef enum {
    /** None. Since NCCL 2.29.7. */
    NCCL_GIN_CONNECTION_NONE = 0,
    /** All. Since NCCL 2.29.7. */
    NCCL_GIN_CONNECTION_FULL = 1,
    /** Those of the same rail. Since NCCL 2.29.7. */
    NCCL_GIN_CONNECTION_RAIL = 2,
    /** Every so many ranks, see `ginCustomStride`. Since NCCL 2.31.2. */
    NCCL_GIN_CONNECTION_CUSTOM_STRIDE = 3
} ncclGinConnectionType_t;

/**
 * How GPU-initiated networking reaches the network.
 *
 * Since NCCL 2.29.2.
 */
typedef enum {
    /** Not at all; as a requirement: in whichever way there is. Since NCCL 2.29.2. */
    NCCL_GIN_TYPE_NONE = 0,
    /** Through a thread of the CPU. Since NCCL 2.29.2. */
    NCCL_GIN_TYPE_PROXY = 2,
    /** By GPUDirect async, kernel-initiated. Since NCCL 2.29.2. */
    NCCL_GIN_TYPE_GDAKI = 3,
    /** By GPI. Since NCCL 2.30.7. */
    NCCL_GIN_TYPE_GPI = 4,
    /** By Amazon's EFA. Since NCCL 2.31.2. */
    NCCL_GIN_TYPE_EFA_GDA = 5,
    /** More than any other value; it moves with each new one. Since NCCL 2.31.2. */
    NCCL_GIN_MAX_TYPES = 6
} ncclGinType_t;

/**
 * What a communicator is, and what its system can do, as `ncclCommQueryProperties` tells.
 *
 * Start from `NCCL_COMM_PROPERTIES_INITIALIZER`. Fields only append from 2.29.7 on.
 * Since NCCL 2.29.2.
 */
typedef struct ncclCommProperties {
    /** Bytes in this struct: 152. Since NCCL 2.29.2. */
    size_t size;
    /** `NCCL_API_MAGIC`; anything else is an error. Since NCCL 2.29.2. */
    unsigned int magic;
    /** The release whose fields are to be filled in, no newer than the library. Since NCCL 2.29.2. */
    unsigned int version;
    /** The caller's rank. Since NCCL 2.29.2. */
    int rank;
    /** How many ranks there are. Since NCCL 2.29.2. */
    int nRanks;
    /** The rank's device, as CUDA counts. Since NCCL 2.29.2. */
    int cudaDev;
    /** The same, as the driver's management library counts. Since NCCL 2.29.2. */
    int nvmlDev;
    /** Whether `ncclDevCommCreate` works here. Since NCCL 2.29.2. */
    bool deviceApiSupport;
    /** Whether the team of kind LSA has multicast memory. Since NCCL 2.29.2. */
    bool multimemSupport;
    /** How GPU-initiated networking would reach all peers; one byte at 34 before. Since NCCL 2.29.7. */
    ncclGinType_t ginType;
    /** How many teams of kind LSA the ranks form. Since NCCL 2.29.7. */
    int nLsaTeams;
    /** Whether the host's one-sided operations (`ncclPutSignal`) work here. Since NCCL 2.29.7. */
    bool hostRmaSupport;
    /** How GPU-initiated networking would reach the peers of the same rail. Since NCCL 2.29.7. */
    ncclGinType_t railedGinType;
    /** A number that identifies the communicator. Since NCCL 2.31.2. */
    uint64_t commHash;
    /** The least stride that `ginCustomStride` may ask for. Since NCCL 2.31.2. */
    int ginMinStride;
    /** The most that GPU-initiated networking can connect. Since NCCL 2.31.2. */
    ncclGinConnectionType_t ginConnectionType;
    /** For each `ncclGinType_t`, whether it is there. Since NCCL 2.31.2. */
    bool ginSupport[64];
    /** Bytes that a device communicator takes in the library's own release. Since NCCL 2.31.2. */
    size_t devCommRuntimeVersionSize;
    /** Whether logical endpoints work here. Since NCCL 2.32.3. */
    bool cftSupport;
    /** Whether they do multicast. Since NCCL 2.32.3. */
    bool cftMulticastSupport;
    /** Whether they count. Since NCCL 2.32.3. */
    bool cftCountedSupport;
} ncclCommProperties_t;

/* An `ncclCommProperties_t` to be filled in; what is not named is zero. */
#define NCCL_COMM_PROPERTIES_INITIALIZER \
    { \
        sizeof(ncclCommProperties_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, \
    }

/* ---- What a device communicator needs ------------------------------------------------------------------ */

/**
 * A buffer, signals and counters for a device communicator, in a linked list.
 *
 * Since NCCL 2.28.3.
 */
typedef struct ncclDevResourceRequirements {
    /** The next one, or `NULL`. Since NCCL 2.28.3. */
    struct ncclDevResourceRequirements *next;
    /** Bytes. Since NCCL 2.28.3. */
    size_t bufferSize;
    /** What the buffer's address must be a multiple of. Since NCCL 2.28.3. */
    size_t bufferAlign;
    /** Where `ncclDevCommCreate` writes the buffer's place, or `NULL`. Since NCCL 2.28.3. */
    ncclDevResourceHandle_t *outBufferHandle;
    /** How many signals. Since NCCL 2.28.7. */
    int ginSignalCount;
    /** How many counters. Since NCCL 2.28.7. */
    int ginCounterCount;
    /** Where `ncclDevCommCreate` writes the first signal, or `NULL`. Since NCCL 2.28.7. */
    ncclGinSignal_t *outGinSignalStart;
    /** Where `ncclDevCommCreate` writes the first counter, or `NULL`. Since NCCL 2.28.7. */
    ncclGinCounter_t *outGinCounterStart;
} ncclDevResourceRequirements_t;

/**
 * A team for a device communicator, in a linked list.
 *
 * Since NCCL 2.28.3.
 */
typedef struct ncclTeamRequirements {
    /** The next one, or `NULL`. Since NCCL 2.28.3. */
    struct ncclTeamRequirements *next;
    /** The team. Since NCCL 2.28.3. */
    ncclTeam_t team;
    /** Whether it needs multicast memory. Since NCCL 2.28.3. */
    bool multimem;
    /** Where `ncclDevCommCreate` writes the handle of that memory, or `NULL`. Since NCCL 2.28.3. */
    ncclMultimemHandle_t *outMultimemHandle;
} ncclTeamRequirements_t;

/**
 * What logical endpoints are needed for, to be combined in `cftCaps`.
 *
 * Since NCCL 2.31.2.
 */
typedef enum {
    /** Nothing. Since NCCL 2.31.2. */
    NCCL_CFT_NONE = 0,
    /** One peer at a time. Since NCCL 2.31.2. */
    NCCL_CFT = 1,
    /** Multicast. Since NCCL 2.31.2. */
    NCCL_CFT_MULTIMEM = 2
} ncclCftCap_t;

/**
 * What `ncclDevCommCreate` is to prepare.
 *
 * Start from `NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER`. Fields only append from 2.29.7 on; `size`, `magic` and
 * `version` came to the front in 2.29.2.
 * Since NCCL 2.28.3.
 */
typedef struct ncclDevCommRequirements {
    /** Bytes in this struct: 120. Since NCCL 2.29.2. */
    size_t size;
    /** `NCCL_API_MAGIC`; anything else is an error. Since NCCL 2.29.2. */
    unsigned int magic;
    /** The release of the header that kernels are compiled with, no newer than the library. Since NCCL 2.29.2. */
    unsigned int version;
    /** Buffers, signals and counters, or `NULL`. Since NCCL 2.28.3. */
    ncclDevResourceRequirements_t *resourceRequirementsList;
    /** Teams besides those that are always there, or `NULL`. Since NCCL 2.28.3. */
    ncclTeamRequirements_t *teamRequirementsList;
    /** Whether the team of kind LSA needs multicast memory. Since NCCL 2.28.3. */
    bool lsaMultimem;
    /** Barriers among all ranks. Since NCCL 2.28.7. */
    int barrierCount;
    /** Barriers in the team of kind LSA. Since NCCL 2.28.3. */
    int lsaBarrierCount;
    /** Barriers in the rail, by the network. Since NCCL 2.28.7. */
    int railGinBarrierCount;
    /** Blocks that do low-latency all-to-all. Since NCCL 2.28.7. */
    int lsaLLA2ABlockCount;
    /** Slots of each, see `ncclLLA2ACalcSlots`. Since NCCL 2.28.7. */
    int lsaLLA2ASlotCount;
    /** Whether GPU-initiated networking is wanted even where it is not needed. Since NCCL 2.28.7. */
    bool ginForceEnable;
    /** How many contexts it should have; a hint. Since NCCL 2.28.7. */
    int ginContextCount;
    /** Signals, numbered from 0. Since NCCL 2.28.7. */
    int ginSignalCount;
    /** Counters, numbered from 0. Since NCCL 2.28.7. */
    int ginCounterCount;
    /** With which peers to connect. Since NCCL 2.29.7. */
    ncclGinConnectionType_t ginConnectionType;
    /** Whether the contexts are for this device communicator alone. Since NCCL 2.29.7. */
    bool ginExclusiveContexts;
    /** Length of the queues, 0 for NCCL's choice. Since NCCL 2.29.7. */
    int ginQueueDepth;
    /** The network's traffic class, or `NCCL_CONFIG_UNDEF_INT`. Since NCCL 2.30.3. */
    int ginTrafficClass;
    /** Barriers among all ranks, by the network. Since NCCL 2.30.3. */
    int worldGinBarrierCount;
    /** Whether kernels use strong signals. Since NCCL 2.30.7. */
    bool ginStrongSignalsRequired;
    /** Whether kernels signal by address. Since NCCL 2.30.7. */
    bool ginVaSignalsRequired;
    /** The stride of `NCCL_GIN_CONNECTION_CUSTOM_STRIDE`. Since NCCL 2.31.2. */
    int ginCustomStride;
    /** In which way to reach the network. Since NCCL 2.31.2. */
    ncclGinType_t ginType;
    /**
     * Whether kernels are compiled at run time, with the library's own headers: the device communicator then has
     * that release's layout, and takes `devCommRuntimeVersionSize` bytes. Since NCCL 2.31.2.
     */
    bool useRuntimeVersion;
    /** Values of `ncclCftCap_t`, combined. Since NCCL 2.31.2. */
    int cftCaps;
    /** Barriers by logical endpoints. Since NCCL 2.31.2. */
    int cftBarrierCount;
} ncclDevCommRequirements_t;

/* An `ncclDevCommRequirements_t` that asks for nothing. */
#define NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER \
    { \
        sizeof(ncclDevCommRequirements_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, NULL, NULL, false, 0, 0, 0, 0, 0, \
        false, 4, 0, 0, NCCL_GIN_CONNECTION_NONE, false, 0, NCCL_CONFIG_UNDEF_INT, 0, true, true, 1, \
        NCCL_GIN_TYPE_NONE, false, NCCL_CFT_NONE, 0, \
    }

/* ---- Device communicators ------------------------------------------------------------------------------ */

/* How many network connections a device communicator has at most. */
#define NCCL_GIN_MAX_CONNECTIONS 4

/**
 * How kernels find a device communicator's own buffer.
 *
 * Since NCCL 2.30.4.
 */
typedef struct ncclResourceWindow_vidmem {
    /** The address of rank 0's, in the team of kind LSA. Since NCCL 2.30.4. */
    char *lsaFlatBase;
    /** The next rank's distance, in units of 4 GiB. Since NCCL 2.30.4. */
    uint32_t stride4G;
    /** Offset into multicast memory, in units of 4 KiB. Since NCCL 2.30.4. */
    uint32_t mcOffset4K;
} ncclResourceWindow_vidmem_t;

/**
 * A table of windows, in device memory.
 *
 * Since NCCL 2.28.3.
 */
typedef struct ncclDevCommWindowTable *ncclDevCommWindowTable_t;

/**
 * What a kernel needs in order to communicate; passed to it by value, and otherwise NCCL's own affair.
 *
 * 248 bytes, as in 2.31.2 and 2.32.3; other releases have other fields.
 * Since NCCL 2.28.3.
 */
struct ncclDevComm {
    /** A magic number. Since NCCL 2.30.3. */
    unsigned int magic;
    /** The release of this layout. Since NCCL 2.30.3. */
    unsigned int version;
    /** The rank. Since NCCL 2.28.3. */
    int rank;
    /** How many ranks there are. Since NCCL 2.28.3. */
    int nRanks;
    /** Its reciprocal. Since NCCL 2.28.3. */
    uint32_t nRanks_rcp32;
    /** The rank in the team of kind LSA. Since NCCL 2.28.3. */
    int lsaRank;
    /** That team's size. Since NCCL 2.28.3. */
    int lsaSize;
    /** Its reciprocal. Since NCCL 2.28.3. */
    uint32_t lsaSize_rcp32;
    /** The communicator's windows. Since NCCL 2.28.3. */
    ncclDevCommWindowTable_t windowTable;
    /** The window of the own buffer. Since NCCL 2.28.3. */
    ncclWindow_t resourceWindow;
    /** What kernels need of it. Since NCCL 2.28.3. */
    ncclResourceWindow_vidmem_t resourceWindow_inlined;
    /** Barriers among all ranks, the network's part. Since NCCL 2.31.2. */
    ncclGinBarrierHandle_t hybridDenseGinBarrier;
    /** Multicast memory of the team of kind LSA. Since NCCL 2.28.3. */
    ncclMultimemHandle_t lsaMultimem;
    /** Barriers of that team. Since NCCL 2.28.3. */
    ncclLsaBarrierHandle_t lsaBarrier;
    /** Barriers of the rail. Since NCCL 2.28.7. */
    ncclGinBarrierHandle_t railGinBarrier;
    /** Connections in use. Since NCCL 2.29.7. */
    uint8_t ginConnectionCount;
    /** Which way to the network. Since NCCL 2.31.2. */
    uint8_t backendIndex;
    /** The kind of each connection. Since NCCL 2.29.2. */
    uint8_t ginNetDeviceTypes[NCCL_GIN_MAX_CONNECTIONS];
    /** The state of each connection. Since NCCL 2.28.7. */
    void *ginHandles[NCCL_GIN_MAX_CONNECTIONS];
    /** Signals. Since NCCL 2.28.7. */
    int ginSignalCount;
    /** Counters. Since NCCL 2.28.7. */
    int ginCounterCount;
    /** What kernels remember of the signals. Since NCCL 2.28.7. */
    uint64_t *ginSignalShadows;
    /** Contexts. Since NCCL 2.28.7. */
    uint32_t ginContextCount;
    /** How far apart connected ranks are. Since NCCL 2.31.2. */
    int ginConnectionStride;
    /** The same for contexts. Since NCCL 2.31.2. */
    int ginContextStride;
    /** How signals of older kernels behave. Since NCCL 2.30.7. */
    bool ginStrongLegacySignals;
    /** Not zero once the communicator is aborted. Since NCCL 2.29.7. */
    uint32_t *abortFlag;
    /** Barriers among all ranks, the LSA team's part. Since NCCL 2.30.3. */
    ncclLsaBarrierHandle_t hybridLsaBarrier;
    /** Barriers among all ranks, the rail's part. Since NCCL 2.30.3. */
    ncclGinBarrierHandle_t hybridRailGinBarrier;
    /** Barriers among all ranks by the network alone. Since NCCL 2.30.3. */
    ncclGinBarrierHandle_t worldGinBarrier;
    /** The reciprocal of the stride. Since NCCL 2.31.2. */
    uint32_t ginConnectionStride_rcp32;
    /** The rank among those with logical endpoints. Since NCCL 2.31.2. */
    int cftRank;
    /** How many those are. Since NCCL 2.31.2. */
    int cftSize;
    /** The rank in their multicast team. Since NCCL 2.31.2. */
    int cftMultimemRank;
    /** That team's size. Since NCCL 2.31.2. */
    int cftMultimemSize;
    /** Its reciprocal. Since NCCL 2.31.2. */
    uint32_t cftMultimemSize_rcp32;
    /** The first endpoint for one peer. Since NCCL 2.31.2. */
    ncclCftLeId ucLeId;
    /** The endpoint for multicast. Since NCCL 2.31.2. */
    ncclCftLeId mcLeId;
    /** Barriers by endpoints. Since NCCL 2.31.2. */
    ncclCftBarrierHandle_t cftBarrier;
    /** Barriers by endpoints and multicast. Since NCCL 2.31.2. */
    ncclCftBarrierHandle_t cftMultimemBarrier;
};

/**
 * What `ncclDevCommCreate` fills in.
 *
 * Since NCCL 2.28.3.
 */
typedef struct ncclDevComm ncclDevComm_t;

/**
 * Fills in what the communicator is and can do.
 *
 * A wrong `magic` or a null pointer is an error; so is a `version` newer than the library, `ncclInvalidUsage`.
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *props);

/**
 * Makes what kernels need; all ranks call it, with the same requirements.
 *
 * A `version` in the requirements that is newer than the library is `ncclInvalidUsage`.
 * Since NCCL 2.28.3.
 */
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t *reqs, ncclDevComm_t *outDevComm);

/**
 * Frees what `ncclDevCommCreate` made. A null communicator crashes up to 2.28.9.
 *
 * Since NCCL 2.28.3.
 */
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t *devComm);

/* ---- Addresses of windows ------------------------------------------------------------------------------ */

/**
 * Stores where `offset` bytes into the window are in the multicast memory of the team of kind LSA.
 *
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void **outPtr);

/**
 * Stores where `offset` bytes into the window are in a team's multicast memory.
 *
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclGetMultimemDevicePointer(
    ncclWindow_t window, size_t offset, ncclMultimemHandle_t multimem, void **outPtr);

/**
 * Stores where `offset` bytes into the window of a rank of the team of kind LSA are.
 *
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank, void **outPtr);

/**
 * Stores where `offset` bytes into the window of a rank of the communicator are.
 *
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **outPtr);

/**
 * Stores by which endpoint, and where in it, multicast reaches `offset` bytes into the window.
 *
 * Since NCCL 2.31.2.
 */
ncclResult_t ncclGetMultimemDeviceLeInfo(
    ncclWindow_t window, size_t offset, ncclCftLeId *leId, size_t *leOffset);

/**
 * Stores the same for a rank of a team that `ncclTeamCft` answered.
 *
 * Since NCCL 2.31.2.
 */
ncclResult_t ncclGetCftDeviceLeInfo(
    ncclWindow_t window, size_t offset, int peerCft, ncclTeam_t cftTeam, ncclCftLeId *leId, size_t *leOffset);

/**
 * Stores the same for a rank of the communicator.
 *
 * Since NCCL 2.31.2.
 */
ncclResult_t ncclGetPeerDeviceLeInfo(
    ncclWindow_t window, size_t offset, int peerWorld, ncclCftLeId *leId, size_t *leOffset);

/* ---- Teams of a communicator --------------------------------------------------------------------------- */

/**
 * All ranks.
 *
 * Since NCCL 2.28.3.
 */
ncclTeam_t ncclTeamWorld(ncclComm_t comm);

/**
 * The ranks that the caller reaches by loads and stores.
 *
 * Since NCCL 2.28.3.
 */
ncclTeam_t ncclTeamLsa(ncclComm_t comm);

/**
 * The ranks that the caller reaches by logical endpoints.
 *
 * Since NCCL 2.31.2.
 */
ncclTeam_t ncclTeamCft(ncclComm_t comm, ncclCftTeamMode_t mode);

/**
 * Those that it reaches by their multicast.
 *
 * Since NCCL 2.31.2.
 */
ncclTeam_t ncclTeamCftMultimem(ncclComm_t comm);

/**
 * The number in the communicator of a team's rank.
 *
 * Since NCCL 2.28.3.
 */
int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);

/**
 * The number in the team of kind LSA of a team's rank.
 *
 * Since NCCL 2.28.3.
 */
int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);

/**
 * The ranks with the caller's number in their teams of kind LSA.
 *
 * Since NCCL 2.28.3.
 */
ncclTeam_t ncclTeamRail(ncclComm_t comm);

/* ---- What the building blocks of kernels need ---------------------------------------------------------- */

/**
 * Fills in what so many barriers need, and where their handle will be once the device communicator is made.
 *
 * Since NCCL 2.28.3.
 */
ncclResult_t ncclLsaBarrierCreateRequirement(
    ncclTeam_t team, int nBarriers, ncclLsaBarrierHandle_t *outHandle, ncclDevResourceRequirements_t *outReq);

/**
 * The same for barriers by the network.
 *
 * Since NCCL 2.28.7.
 */
ncclResult_t ncclGinBarrierCreateRequirement(
    ncclComm_t comm, ncclTeam_t team, int nBarriers, ncclGinBarrierHandle_t *outHandle,
    ncclDevResourceRequirements_t *outReq);

/**
 * Slots that a low-latency all-to-all of `maxElts` elements of up to `maxEltSize` bytes needs.
 *
 * Since NCCL 2.28.3.
 */
int ncclLLA2ACalcSlots(int maxElts, int maxEltSize);

/**
 * Fills in what a low-latency all-to-all needs.
 *
 * Since NCCL 2.28.3.
 */
ncclResult_t ncclLLA2ACreateRequirement(
    int nBlocks, int nSlots, ncclLLA2AHandle_t *outHandle, ncclDevResourceRequirements_t *outReq);

#ifdef __cplusplus
}
#endif

#endif
