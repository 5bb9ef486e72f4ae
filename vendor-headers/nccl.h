/*
 * nccl.h: the host C API of NCCL 2.32.3, as libnccl reads it.
 *
 * This file declares the ABI of NCCL 2.32.3 (names, types, values and their order) for bindgen and for C and
 * C++ programs. It was written for libnccl: the layout and every comment are libnccl's, under the license of
 * libnccl (MIT OR Apache-2.0). NCCL itself is NVIDIA's. `cargo xtask headers 2.32.3` checks that the
 * declarations equal the official header's.
 *
 * Conventions for all items:
 *
 * - `count` arguments are in elements of `datatype`; `size` arguments and window offsets are in bytes. Where an
 *   in-place rule adds to a pointer, it adds elements, and n is the number of ranks.
 * - An operation with a stream only enqueues work; the result is available when the stream has run the
 *   operation. All ranks of a communicator must enqueue matching operations in the same order.
 * - For a `NULL` communicator, functions return `ncclInvalidArgument` unless the comment says otherwise. A failed
 *   call may leave its out-parameters unchanged: set them to zero first.
 * - On a nonblocking communicator any call may return `ncclInProgress`; poll `ncclCommGetAsyncError` until it
 *   stores another code before the next call on the communicator.
 * - Each comment ends with the version that introduced the item. "2.13.4" means that version or an earlier one.
 * - Releases: 2.13.4 2.14.3 2.15.5 2.16.5 2.17.1 2.18.1 2.18.3 2.19.3 2.20.5 2.21.5 2.22.3 2.23.4 2.24.3 2.25.1
 *   2.26.2 2.26.5 2.27.3 2.27.5 2.27.6 2.27.7 2.28.3 2.28.7 2.28.9 2.29.2 2.29.3 2.29.7 2.30.3 2.30.4 2.30.7
 *   2.31.2 2.32.3
 *
 * - `pncclXxx` is the profiling twin of `ncclXxx`: the same function under a second name. A profiler that
 *   interposes `ncclXxx` calls the twin to reach the library. The twins are exported from 2.16.5 on, and have
 *   no comments here.
 */

#ifndef NCCL_H_
#define NCCL_H_

#include <cuda_runtime.h>
#include <cuda_fp16.h>
#if CUDART_VERSION >= 11000
#include <cuda_bf16.h>
#endif
#if defined(__cplusplus) && CUDART_VERSION >= 11080
#include <cuda_fp8.h>
#endif

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

/* The version that this header describes. Only the last two numbers and the code change between versions. */
#define NCCL_MAJOR 2
#define NCCL_MINOR 32
#define NCCL_PATCH 3
#define NCCL_SUFFIX ""

/* The version as one number, as `ncclGetVersion` stores it. */
#define NCCL_VERSION_CODE 23203

/* Encodes a version for comparison with a version code. Up to 2.8, codes have one digit less than from 2.9 on. */
#define NCCL_VERSION(X, Y, Z) \
    (((X) <= 2 && (Y) <= 8) ? (X) * 1000 + (Y) * 100 + (Z) : (X) * 10000 + (Y) * 100 + (Z))

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Handles ------------------------------------------------------------------------------------------- */

/**
 * A rank's handle to a communicator; the struct behind it is private to NCCL.
 *
 * Not thread-safe: one thread at a time may use it. `ncclCommDestroy` and `ncclCommAbort` free the communicator; any
 * later use is a use after free.
 * Since NCCL 2.13.4.
 */
typedef struct ncclComm *ncclComm_t;

/**
 * A rank's handle to a window: a buffer that `ncclCommWindowRegister` has registered.
 *
 * `NULL` is valid: registration succeeded, but this system does not support windows.
 * Since NCCL 2.27.3.
 */
typedef struct ncclWindow_vidmem *ncclWindow_t;

/* The null communicator handle. */
#define NCCL_COMM_NULL NULL

/* Size of `ncclUniqueId`, in bytes. */
#define NCCL_UNIQUE_ID_BYTES 128

/**
 * The id with which ranks find each other: created once, sent to every rank, passed by value to the init calls.
 *
 * 128 opaque bytes, which can be copied and sent. All ranks must use the same NCCL version.
 * Since NCCL 2.13.4.
 */
typedef struct {
    /** The bytes. NCCL 2.16.5 to 2.22.3 fill only the first 40: zero all of them beforehand. Since NCCL 2.13.4. */
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

/* ---- Results ------------------------------------------------------------------------------------------- */

/**
 * The result of nearly every function.
 *
 * Newer libraries may return codes that this header does not define. With `NCCL_DEBUG=WARN` in the environment,
 * NCCL prints the reason for most failures to standard output.
 * Since NCCL 2.13.4.
 */
typedef enum {
    /** Done, or enqueued. Since NCCL 2.13.4. */
    ncclSuccess = 0,
    /** A CUDA call failed, or there is no driver or no GPU. Since NCCL 2.13.4. */
    ncclUnhandledCudaError = 1,
    /** A system call failed: a socket, a file, shared memory. Since NCCL 2.13.4. */
    ncclSystemError = 2,
    /** An internal check failed: a bug in NCCL, or memory corruption. Since NCCL 2.13.4. */
    ncclInternalError = 3,
    /** An argument is invalid: null, out of range, wrong magic. Since NCCL 2.13.4. */
    ncclInvalidArgument = 4,
    /** The call is invalid in this state: unmatched group end, ranks with different versions. Since NCCL 2.13.4. */
    ncclInvalidUsage = 5,
    /** Another process has exited, or its network has failed. Abort the communicator. Since NCCL 2.13.4. */
    ncclRemoteError = 6,
    /** No failure: the call on a nonblocking communicator is still in progress. Since NCCL 2.14.3. */
    ncclInProgress = 7,
    /** A wait exceeded its time limit. Since NCCL 2.30.3. */
    ncclTimeout = 8,
    /** The number of codes in this version; it grows with each new code. Since NCCL 2.13.4. */
    ncclNumResults = 9
} ncclResult_t;

/* "Not set", for the int fields of the configuration structs. */
#define NCCL_CONFIG_UNDEF_INT INT_MIN
/* "Not set", for their pointer fields. */
#define NCCL_CONFIG_UNDEF_PTR NULL
/* The `color` of a rank that joins no new communicator in `ncclCommSplit`. */
#define NCCL_SPLIT_NOCOLOR -1
/* "Not set", for `estimatedTime` of `ncclSimInfo_t`. */
#define NCCL_UNDEF_FLOAT -1.0f

/* Marks a struct as filled by its initializer; the library rejects other values. */
#define NCCL_API_MAGIC 0xcafebeef

/* ---- Flags --------------------------------------------------------------------------------------------- */

/* `winFlags`: no promise; a collective may use any address inside the window. */
#define NCCL_WIN_DEFAULT 0x00
/* `winFlags`: all ranks promise to use the same offset from the start of their window in each collective,
   as the fast symmetric kernels require. Cannot be combined with the last two flags. */
#define NCCL_WIN_COLL_SYMMETRIC 0x01
/* `winFlags`: remote writes through InfiniBand verbs arrive in order; meant for memory that holds signals. */
#define NCCL_WIN_STRICT_ORDERING 0x02
/* `winFlags`: only for GPU-initiated networking (GIN); NCCL skips other registrations. */
#define NCCL_WIN_GIN_ONLY 0x04
/* `winFlags`: only for counted operations of the compute fabric transport (CFT). */
#define NCCL_WIN_CFT_COUNTED 0x08

/* The required alignment of a window's buffer, in bytes. */
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

/* `CTAPolicy`: the number of thread blocks that is fastest. */
#define NCCL_CTA_POLICY_DEFAULT 0x00
/* `CTAPolicy`: few thread blocks, which leaves the rest of the GPU to computation. */
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
/* `CTAPolicy`: no thread blocks if copy engines or the switch can do the work. */
#define NCCL_CTA_POLICY_ZERO 0x02

/* `shrinkFlags`: the parent is healthy and idle. */
#define NCCL_SHRINK_DEFAULT 0x00
/* `shrinkFlags`: the parent may hang in operations with dead ranks; abort these operations, share no resources. */
#define NCCL_SHRINK_ABORT 0x01

/* `revokeFlags`: the only valid value. */
#define NCCL_REVOKE_DEFAULT 0x00

/**
 * Values of `hostCftMode` in `ncclConfig_t`: whether NCCL creates endpoints of the compute fabric transport (CFT),
 * which the host can query.
 *
 * Since NCCL 2.31.2.
 */
typedef enum {
    /** The library's choice; `ncclHostCftDisable` in 2.32.3. Since NCCL 2.31.2. */
    ncclHostCftDefault = NCCL_CONFIG_UNDEF_INT,
    /** Create the endpoints when the first window is registered; a failure is an error. Since NCCL 2.31.2. */
    ncclHostCftEnable = 1,
    /** Do not create endpoints. Since NCCL 2.31.2. */
    ncclHostCftDisable = 2,
    /** Try to create the endpoints; a failure is no error. Since NCCL 2.31.2. */
    ncclHostCftFallback = 3
} ncclHostCftMode_t;

/**
 * Values of `nvlsHostMode` in `ncclConfig_t`: the uses of NVLink SHARP (NVLS) that a communicator disables.
 *
 * `ncclNvlsHostModeDisableTransport` and `ncclNvlsHostModeDisableSymmetricMultimem` are bits that can be combined.
 * Since NCCL 2.32.3.
 */
typedef enum {
    /** The library's choice; in 2.32.3, `ncclNvlsHostModeEnable`. Since NCCL 2.32.3. */
    ncclNvlsHostModeDefault = NCCL_CONFIG_UNDEF_INT,
    /** Disable nothing. Since NCCL 2.32.3. */
    ncclNvlsHostModeEnable = 0,
    /** Disable the NVLS algorithms, with their optimization for registered buffers. Since NCCL 2.32.3. */
    ncclNvlsHostModeDisableTransport = 1 << 0,
    /** Disable multicast addresses in symmetric kernels and in copies by copy engines. Since NCCL 2.32.3. */
    ncclNvlsHostModeDisableSymmetricMultimem = 1 << 1,
    /** Disable all uses, including uses that later versions add. Since NCCL 2.32.3. */
    ncclNvlsHostModeDisable = INT_MAX,
} ncclNvlsHostMode_t;

/* ---- Configuration of a communicator ------------------------------------------------------------------- */

/**
 * Options of one communicator, read during the call that creates it.
 *
 * Start from `NCCL_CONFIG_INITIALIZER`, then set fields. New versions only append fields. The library copies `size`
 * bytes, but not more than its own struct has, so a library older than the header silently ignores the fields that it
 * lacks. Fields newer than the struct's `version` have their defaults. Zero the padding too, because later versions may
 * put fields there, as they did with `trafficClass` and `graphStreamOrdering`. An invalid value causes
 * `ncclInvalidArgument`. The `NCCL_*` environment variables take precedence over the fields.
 * Since NCCL 2.14.3.
 */
typedef struct ncclConfig_v23100 {
    /** The size of this struct in bytes; 120 in this version. Since NCCL 2.14.3. */
    size_t size;
    /** `NCCL_API_MAGIC`; any other value causes `ncclInvalidArgument`. Since NCCL 2.14.3. */
    unsigned int magic;
    /** `NCCL_VERSION_CODE` of the header that `size` comes from. Since NCCL 2.14.3. */
    unsigned int version;
    /**
     * 1: calls wait (default). 0: calls may return `ncclInProgress`. NCCL before 2.17 has no default.
     * Since NCCL 2.14.3.
     */
    int blocking;
    /** The number of thread blocks per cluster, 0 to 8; default 4 on Hopper and newer GPUs. Since NCCL 2.17.1. */
    int cgaClusterSize;
    /** The minimum number of thread blocks of a kernel; default 1. Since NCCL 2.17.1. */
    int minCTAs;
    /** The maximum number of thread blocks of a kernel, at least `minCTAs`. Since NCCL 2.17.1. */
    int maxCTAs;
    /** The network to use ("IB", "Socket" or a plugin's name), copied during the call. Since NCCL 2.17.1. */
    const char *netName;
    /** 1: children created by `ncclCommSplit` share this communicator's resources; default 0. Since NCCL 2.18.1. */
    int splitShare;
    /** The service level (InfiniBand) or type of service (RoCE) of the traffic, 0 or more. Since NCCL 2.26.2. */
    int trafficClass;
    /** The name for logs and profilers; must outlive the communicator and its children. Since NCCL 2.27.3. */
    const char *commName;
    /** 1: reduce inside InfiniBand switches (SHARP); default 0. Since NCCL 2.27.3. */
    int collnetEnable;
    /** Bits of `NCCL_CTA_POLICY_*`: the trade-off between speed and GPU resources. Since NCCL 2.27.3. */
    int CTAPolicy;
    /** 1: children created by `ncclCommShrink` share this communicator's resources; default 0. Since NCCL 2.27.3. */
    int shrinkShare;
    /** The number of thread blocks that use NVLink SHARP; the default depends on the topology. Since NCCL 2.27.3. */
    int nvlsCTAs;
    /** The number of network channels between two ranks, rounded up to a power of two. Since NCCL 2.28.3. */
    int nChannelsPerNetPeer;
    /** 1: optimize the schedule for NVLink; default 0. Since NCCL 2.28.3. */
    int nvlinkCentricSched;
    /**
     * CUDA graphs with this communicator. 0: none. 1: one. 2 (default): several, or also operations outside graphs.
     * Since NCCL 2.29.2.
     */
    int graphUsageMode;
    /** The number of contexts of one-sided operations; `ctx` must be lower. Default 1. Since NCCL 2.29.2. */
    int numRmaCtx;
    /** The maximum number of peers in a rank's simultaneous sends and receives; default all. Since NCCL 2.30.3. */
    int maxP2pPeers;
    /**
     * 1 (default): NCCL orders captured kernels. 0: the program orders them; requires `graphUsageMode` 0 or 1.
     * Since NCCL 2.30.7.
     */
    int graphStreamOrdering;
    /** 1: operations of several communicators start in the order of their calls; default 0. Since NCCL 2.31.2. */
    int launchOrderImplicit;
    /** The number of signals of each context; `sigIdx` must be lower. Default 1. Since NCCL 2.31.2. */
    int numRmaSig;
    /**
     * 1: prepare signals at init, not with the first window. Required for signals without windows. Since NCCL 2.31.2.
     */
    int rmaEagerInit;
    /** A value of `ncclHostCftMode_t`. Since NCCL 2.31.2. */
    int hostCftMode;
    /** A value of `ncclNvlsHostMode_t`, or a bitwise or of values. Four bytes of padding follow. Since NCCL 2.32.3. */
    int nvlsHostMode;
} ncclConfig_t;

/* An `ncclConfig_t` in which nothing is set. One line for each version that added fields. */
#define NCCL_CONFIG_INITIALIZER \
    { \
        sizeof(ncclConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_INT, \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, \
        NCCL_CONFIG_UNDEF_INT, \
        NCCL_CONFIG_UNDEF_INT, \
        NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, \
            NCCL_CONFIG_UNDEF_INT, \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, \
        NCCL_CONFIG_UNDEF_INT, \
        NCCL_CONFIG_UNDEF_INT, \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, \
        NCCL_CONFIG_UNDEF_INT, \
    }

/* ---- Configuration of one collective ------------------------------------------------------------------- */

/**
 * An option for another vendor's build of NCCL; NVIDIA's build ignores such options.
 *
 * Options are linked by `next`, in any order, without cycles and without duplicate keys.
 * Since NCCL 2.31.2.
 */
typedef struct ncclConfigExt {
    /** The next option, or `NULL` at the end. Since NCCL 2.31.2. */
    struct ncclConfigExt *next;
    /** A key: a vendor, and an option of this vendor. Since NCCL 2.31.2. */
    struct {
        /** The vendor: a number from 1 to 2^24 - 1 that each vendor chooses. Since NCCL 2.31.2. */
        int vendorId;
        /** The number of the option, chosen by the vendor. Since NCCL 2.31.2. */
        int optionId;
    } /** The key of the option. Since NCCL 2.31.2. */ key;
    /** A value: a number, a string or a pointer. Since NCCL 2.31.2. */
    union {
        /** A number. Since NCCL 2.31.2. */
        int i;
        /** A null-terminated string. Since NCCL 2.31.2. */
        const char *s;
        /** Any other value. Since NCCL 2.31.2. */
        void *raw;
    } /** The value; the key determines the member. Since NCCL 2.31.2. */ val;
} ncclConfigExt_t;

/**
 * Options of one collective, for the functions whose names end in `Config`.
 *
 * Start from `NCCL_COLLCONFIG_INITIALIZER`. Pass equal options on all ranks: NCCL does not compare them. The struct and
 * the memory that it points to must stay valid until the call (in a group: the outermost `ncclGroupEnd`) has returned.
 * A wrong `magic` or too small a `size` causes `ncclInvalidArgument`. If you lower `version`, lower `size` too: NCCL
 * 2.31.2 copies `size` bytes, and its own struct is shorter than this one.
 * Since NCCL 2.31.2.
 */
typedef struct ncclCollConfig_v23200 {
    /** The size of this struct in bytes; 72 in this version, 64 in 2.31.2. Since NCCL 2.31.2. */
    size_t size;
    /** `NCCL_API_MAGIC`. Since NCCL 2.31.2. */
    unsigned int magic;
    /** `NCCL_VERSION_CODE` of the header that `size` comes from. Since NCCL 2.31.2. */
    unsigned int version;
    /** Options for other vendors' builds, or `NULL`. Since NCCL 2.31.2. */
    ncclConfigExt_t *ext;
    /** The minimum number of thread blocks of this call. Since NCCL 2.31.2. */
    int minCTAs;
    /** The maximum number of thread blocks of this call, within the communicator's limit. Since NCCL 2.31.2. */
    int maxCTAs;
    /** The maximum number of thread blocks if NVLink SHARP does the work. Since NCCL 2.31.2. */
    int nvlsCTAs;
    /** The number of thread blocks per cluster, on Hopper and newer GPUs; equal in a whole group. Since NCCL 2.31.2. */
    int cgaClusterSize;
    /** Names of the algorithms to choose from, separated by commas; `NULL` or empty: all. Since NCCL 2.31.2. */
    const char *algSelection;
    /** 1 (default): fail if no algorithm of `algSelection` applies. 0: use any other algorithm. Since NCCL 2.31.2. */
    int forceAlgSelection;
    /** Bits of `NCCL_CTA_POLICY_*`; if not set, the communicator's bits. Since NCCL 2.31.2. */
    int CTAPolicy;
    /** A number for profiler plugins, 0 for none; the top bit is reserved for NCCL. Since NCCL 2.31.2. */
    uint64_t userProfilerTag;
    /**
     * An event of this rank, which NCCL records once the kernel has been launched, or `NULL`.
     *
     * Either all ranks pass an event, or none does. Create it with `cudaEventDisableTiming`, and without
     * `cudaEventInterprocess`. A group has at most one event per communicator. Keep the event as long as any work or
     * captured graph waits for it. NCCL built with CUDA older than 12.3 records it before the launch.
     * Since NCCL 2.32.3.
     */
    cudaEvent_t launchCompletionEvent;
} ncclCollConfig_t;

/* An `ncclCollConfig_t` in which only `forceAlgSelection` is set, to 1. */
#define NCCL_COLLCONFIG_INITIALIZER \
    { \
        sizeof(ncclCollConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_PTR, \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, \
        NCCL_CONFIG_UNDEF_PTR, 1, NCCL_CONFIG_UNDEF_INT, 0, \
        NCCL_CONFIG_UNDEF_PTR, \
    }

/**
 * The result of `ncclGroupSimulateEnd`.
 *
 * Start from `NCCL_SIM_INFO_INITIALIZER`.
 * Since NCCL 2.22.3.
 */
typedef struct ncclSimInfo_v22200 {
    /** The size of this struct in bytes: 24. Since NCCL 2.22.3. */
    size_t size;
    /** 0x74685283, not `NCCL_API_MAGIC`; any other value causes `ncclInvalidArgument`. Since NCCL 2.22.3. */
    unsigned int magic;
    /** `NCCL_VERSION_CODE` of the header. Since NCCL 2.22.3. */
    unsigned int version;
    /** The duration that NCCL's cost model predicts, in microseconds; -1 for an empty group. Since NCCL 2.22.3. */
    float estimatedTime;
} ncclSimInfo_t;

/* An `ncclSimInfo_t` ready to be filled. */
#define NCCL_SIM_INFO_INITIALIZER \
    { sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION_CODE, NCCL_UNDEF_FLOAT }

/* ---- Memory and version -------------------------------------------------------------------------------- */

/**
 * Allocates `size` bytes on the current device, in the kind of memory that registration and windows require.
 *
 * NCCL rounds `size` up to the granularity of the device. It writes `*ptr` only on success. Returns
 * `ncclUnhandledCudaError` without a driver.
 * Since NCCL 2.19.3.
 */
ncclResult_t ncclMemAlloc(void **ptr, size_t size);
ncclResult_t pncclMemAlloc(void **ptr, size_t size);

/**
 * Frees memory from `ncclMemAlloc`.
 *
 * Deregister the memory from every communicator first.
 * Since NCCL 2.19.3.
 */
ncclResult_t ncclMemFree(void *ptr);
ncclResult_t pncclMemFree(void *ptr);

/**
 * Stores the version code of the loaded library: 23203 for 2.32.3.
 *
 * Works without a GPU and without a driver. Returns `ncclInvalidArgument` for a null pointer. Compare the version
 * with `NCCL_VERSION` to find out which functions and fields the library has.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclGetVersion(int *version);
ncclResult_t pncclGetVersion(int *version);

/* ---- Creation and teardown ----------------------------------------------------------------------------- */

/**
 * Creates the id with which the ranks of a new communicator find each other.
 *
 * Call it in one process and send the 128 bytes to the others. Needs no GPU. Unless `NCCL_COMM_ID=ip:port` is set, each
 * call starts a thread and opens a port for the ranks, so the process must live until all ranks have joined. If they
 * never join, the thread and the port remain. If the first call fails (for example, without a usable network
 * interface), later calls never return in versions up to 2.21.5, and fail with the same error in newer ones. Zero
 * `*uniqueId` first: 2.16.5 to 2.22.3 write only a part of it.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId);
ncclResult_t pncclGetUniqueId(ncclUniqueId *uniqueId);

/**
 * Joins a new communicator as `ncclCommInitRank` does, with options; `config` may be `NULL`.
 *
 * Set `*comm` to `NULL` before: 2.17.1 to 2.22.3 dereference it if the call fails. In versions before 2.17, `blocking`
 * must be 0 or 1. With `blocking` 0, the call may return `ncclInProgress`, and writes the handle immediately. If no
 * device is found, the thread may be left inside a group (observed in 2.23.4 to 2.32.3).
 * Since NCCL 2.14.3.
 */
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t *config);
ncclResult_t pncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                     ncclConfig_t *config);

/**
 * Joins a new communicator of `nranks` ranks as rank `rank` (from 0), on the current CUDA device.
 *
 * All ranks call it with the same `commId`, and each waits for all others: call it from one thread or process per rank,
 * or between `ncclGroupStart` and `ncclGroupEnd`. Returns `ncclInvalidUsage` if ranks have different versions, or share
 * a GPU without `NCCL_MULTI_RANK_GPU_ENABLE=1` (2.30.3 and newer), and `ncclUnhandledCudaError` without a driver.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank);
ncclResult_t pncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank);

/**
 * Creates all ranks of a communicator in this process, one per device.
 *
 * `comm` has space for `ndev` handles; entry i becomes rank i, on CUDA device `devlist[i]`, or on device i if `devlist`
 * is `NULL`. A device may appear only once, unless ranks may share GPUs (see `ncclCommInitRank`). If one thread drives
 * all ranks, put their operations into groups.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist);
ncclResult_t pncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist);

/**
 * Completes the enqueued work and begins the teardown, together with the other ranks.
 *
 * On a nonblocking communicator, poll until `ncclSuccess`; `ncclCommDestroy` then does not wait. Returns
 * `ncclInvalidArgument` if it is called a second time, or after `ncclCommRevoke`. Does nothing for `NULL`.
 * Since NCCL 2.14.3.
 */
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t pncclCommFinalize(ncclComm_t comm);

/**
 * Frees this rank's communicator; the handle is invalid afterwards.
 *
 * Finalizes the communicator first, unless `ncclCommFinalize` was called. So all ranks of a node should call it at
 * about the same time; otherwise it may hang. Deregister buffers and windows before. Succeeds for `NULL`.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t pncclCommDestroy(ncclComm_t comm);

/**
 * Aborts the work of this communicator and frees it, without the other ranks.
 *
 * For use after an error or the failure of a peer; all surviving ranks should call it. No other thread may be
 * inside an NCCL call on this handle, which is invalid afterwards. If resources are shared (`splitShare`), the
 * parent and other children may fail. Succeeds for `NULL`.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t pncclCommAbort(ncclComm_t comm);

/**
 * Stops the work of this communicator, and keeps the communicator, so that it can be split or shrunk.
 *
 * `revokeFlags` must be 0. Poll `ncclCommGetAsyncError` until it no longer stores `ncclInProgress`; then
 * destroy, split or shrink. Collectives on a revoked communicator return `ncclInvalidUsage`, and its children
 * cannot share its resources. Returns `ncclInvalidArgument` if it is called a second time, or after
 * `ncclCommFinalize`. Succeeds for `NULL`.
 * Since NCCL 2.28.7.
 */
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);
ncclResult_t pncclCommRevoke(ncclComm_t comm, int revokeFlags);

/**
 * Splits a communicator: ranks with equal `color` form a new one, ordered by `key`, then by old rank.
 *
 * All ranks of `comm` call it. With `NCCL_SPLIT_NOCOLOR`, a rank joins no new communicator, and `*newcomm` is null. A
 * null `config` means the options of `comm`. NCCL writes `*newcomm` when the split is complete, and `newcomm` must stay
 * valid until then. In a group, or if `comm` is nonblocking, this is after the call has returned. A null `comm` crashes
 * 2.23.4 and 2.24.3.
 * Since NCCL 2.18.1.
 */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);
ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);

/**
 * Creates a communicator of the ranks that are not in `excludeRanksList`, in the same order.
 *
 * Only the remaining ranks call it, all with the same `excludeRanksCount` ranks in the list, which NCCL sorts in place.
 * `shrinkFlags`: `NCCL_SHRINK_DEFAULT`, or `NCCL_SHRINK_ABORT` if operations may hang. A null `config` means the
 * options of `comm`. NCCL writes `*newcomm` when the shrink is complete, as in `ncclCommSplit`. A null `comm` crashes.
 * Since NCCL 2.27.3.
 */
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm,
                            ncclConfig_t *config, int shrinkFlags);
ncclResult_t pncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm,
                             ncclConfig_t *config, int shrinkFlags);

/**
 * Creates the id with which new ranks join `comm` through `ncclCommGrow`.
 *
 * One rank of `comm` calls it and sends the id to the new ranks. An id is for one `ncclCommGrow`; until that is
 * complete, no second id can be created. Fails if `NCCL_COMM_ID` is set.
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *uniqueId);
ncclResult_t pncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *uniqueId);

/**
 * Creates a larger communicator, of `nRanks` ranks, from `comm` and new ranks.
 *
 * A rank of `comm` passes -1 as `rank`, and keeps its number. The rank that created the id passes it as `uniqueId`; the
 * other ranks of `comm` pass `NULL`. A new rank passes `NULL` as `comm`, the id, and its number as `rank`, which must be
 * at least the old number of ranks. `config` may be `NULL`. The id can be used only once.
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank, ncclComm_t *newcomm,
                          ncclConfig_t *config);
ncclResult_t pncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank, ncclComm_t *newcomm,
                           ncclConfig_t *config);

/**
 * Joins a new communicator as `ncclCommInitRankConfig` does, with `nId` ids, which distributes the load of many
 * ranks.
 *
 * `commIds` holds `nId` ids (1 to `nranks`), the same in the same order on all ranks; each comes from a separate
 * `ncclGetUniqueId`, preferably in different processes. Note that `myrank` precedes the ids.
 * Since NCCL 2.23.4.
 */
ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds,
                                      ncclConfig_t *config);
ncclResult_t pncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds,
                                       ncclConfig_t *config);

/* ---- Errors and queries -------------------------------------------------------------------------------- */

/**
 * Describes a result code in English.
 *
 * Returns a constant string, never `NULL`: for an unknown code, "unknown result code". The texts depend on the version:
 * compare codes, not texts.
 * Since NCCL 2.13.4.
 */
const char *ncclGetErrorString(ncclResult_t result);
const char *pncclGetErrorString(ncclResult_t result);

/**
 * Returns the text of the latest failure of any thread in this process.
 *
 * All threads and communicators share the buffer with the text; `comm` is ignored and may be `NULL`. The buffer is
 * empty at first, overwritten by each failure, and never cleared. Copy the text immediately; another thread may have
 * overwritten it already.
 * Since NCCL 2.13.4.
 */
const char *ncclGetLastError(ncclComm_t comm);
const char *pncclGetLastError(ncclComm_t comm);

#ifdef NCCL_OS_LINUX
/**
 * Makes NCCL read its logging variables (such as `NCCL_DEBUG`) again.
 *
 * Deprecated. From 2.30.3 on the header hides it behind a macro that only NCCL's own build defines; the
 * library still exports it.
 * Since NCCL 2.24.3.
 */
__attribute__((deprecated("not part of the supported NCCL API"))) void ncclResetDebugInit();
__attribute__((deprecated("not part of the supported NCCL API"))) void pncclResetDebugInit();
#else
/* If the function is hidden, a call to it compiles to nothing. */
#define ncclResetDebugInit()
#define pncclResetDebugInit()
#endif

/**
 * Stores the state of the communicator in `*asyncError`: healthy, in progress, or failed.
 *
 * Reports failures of enqueued operations, and the progress of a nonblocking call: `ncclInProgress` until it is
 * complete. The return value is the result of the query itself. Only one thread may poll a communicator. After an
 * error, abort the communicator.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);
ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);

/**
 * Stores the number of ranks of the communicator.
 *
 * Returns `ncclInvalidArgument` while a nonblocking call is in progress.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclCommCount(const ncclComm_t comm, int *count);
ncclResult_t pncclCommCount(const ncclComm_t comm, int *count);

/**
 * Stores the ordinal of the CUDA device that this rank runs on.
 *
 * Returns `ncclInvalidArgument` while a nonblocking call is in progress.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device);
ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int *device);

/**
 * Stores the number of this rank, from 0.
 *
 * Returns `ncclInvalidArgument` while a nonblocking call is in progress.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank);
ncclResult_t pncclCommUserRank(const ncclComm_t comm, int *rank);

/* ---- Registration -------------------------------------------------------------------------------------- */

/**
 * Registers a buffer of `size` bytes that operations will use, so that NCCL can skip its staging copies.
 *
 * Other ranks need not call it. `*handle` may be `NULL` after a success, if registration has no benefit. Memory from
 * `ncclMemAlloc` is best. Deregister before freeing the memory or destroying the communicator.
 * Since NCCL 2.19.3.
 */
ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle);
ncclResult_t pncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle);

/**
 * Undoes `ncclCommRegister`; no operation may be using the buffer.
 *
 * Since NCCL 2.19.3.
 */
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle);
ncclResult_t pncclCommDeregister(const ncclComm_t comm, void *handle);

/* `flags` of `ncclCommSuspend`: free the GPU memory that can be allocated again later. */
#define NCCL_SUSPEND_MEM 0x01

/**
 * Suspends the communicator and frees the resources that `flags` names; all ranks call it.
 *
 * `flags` is `NCCL_SUSPEND_MEM`. Until `ncclCommResume`, nothing may be enqueued. Returns `ncclInvalidUsage`
 * for a communicator that shares resources with another (`splitShare`).
 * Since NCCL 2.29.7.
 */
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t pncclCommSuspend(ncclComm_t comm, int flags);

/**
 * Resumes a communicator after `ncclCommSuspend`; all ranks call it.
 *
 * It allocates memory, so it can fail if there is too little.
 * Since NCCL 2.29.7.
 */
ncclResult_t ncclCommResume(ncclComm_t comm);
ncclResult_t pncclCommResume(ncclComm_t comm);

/**
 * The statistics of `ncclCommMemStats`.
 *
 * Since NCCL 2.29.7.
 */
typedef enum {
    /** Bytes of GPU memory that suspending would free. Since NCCL 2.29.7. */
    ncclStatGpuMemSuspend = 0,
    /** 1 while `ncclCommSuspend` has freed the communicator's memory, otherwise 0. Since NCCL 2.29.7. */
    ncclStatGpuMemSuspended = 1,
    /** Bytes of GPU memory that remain allocated while the communicator is suspended. Since NCCL 2.29.7. */
    ncclStatGpuMemPersist = 2,
    /** Bytes of all GPU memory that NCCL tracks for the communicator. Since NCCL 2.29.7. */
    ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;

/**
 * Stores a statistic of the communicator's GPU memory.
 *
 * The value is in bytes, except for `ncclStatGpuMemSuspended`, which is 0 or 1.
 * Since NCCL 2.29.7.
 */
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);
ncclResult_t pncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);

/**
 * Registers `size` bytes at `buff` with all ranks, for symmetric collectives and one-sided operations.
 *
 * All ranks call it. The address must be a multiple of `NCCL_WIN_REQUIRED_ALIGNMENT`, and the memory must be from
 * `ncclMemAlloc` or CUDA's virtual memory API. `winFlags` combines `NCCL_WIN_*` bits. NCCL writes `*win` when the
 * registration is complete, and `win` must stay valid until then. In a group, or if `comm` is nonblocking, this is
 * after the call has returned. Success with a null `*win` means that this system has no symmetric memory. Deregister
 * before freeing the memory.
 * Since NCCL 2.27.3.
 */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags);
ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags);

/**
 * Undoes `ncclCommWindowRegister`; no operation may be using the window.
 *
 * Since NCCL 2.27.3.
 */
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);
ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);

/**
 * Stores the address that the window was registered with.
 *
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **outUserPtr);
ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **outUserPtr);

/* ---- Reductions and element types ---------------------------------------------------------------------- */

/**
 * A helper for the value of `ncclMaxRedOp`.
 *
 * Since NCCL 2.13.4.
 */
typedef enum {
    /** Equals `ncclNumOps`. Since NCCL 2.13.4. */
    ncclNumOps_dummy = 5
} ncclRedOp_dummy_t;

/**
 * The operator that combines the values of several ranks.
 *
 * `ncclRedOpCreatePreMulSum` creates further values, from `ncclNumOps` to `ncclMaxRedOp`. Integers wrap around.
 * The order of floating-point operations depends on algorithm, size and number of ranks.
 * Since NCCL 2.13.4.
 */
typedef enum {
    /** The sum. Since NCCL 2.13.4. */
    ncclSum = 0,
    /** The product. Since NCCL 2.13.4. */
    ncclProd = 1,
    /** The maximum; NaN only if all values are NaN. Since NCCL 2.13.4. */
    ncclMax = 2,
    /** The minimum; NaN only if all values are NaN. Since NCCL 2.13.4. */
    ncclMin = 3,
    /** The mean: floats are scaled by 1/n and added; integers are added, divided and truncated. Since NCCL 2.13.4. */
    ncclAvg = 4,
    /** The number of built-in operators; custom operators have this number or a higher one. Since NCCL 2.13.4. */
    ncclNumOps = 5,
    /** The maximum number of a custom operator; also determines the width of the type. Since NCCL 2.13.4. */
    ncclMaxRedOp = 0x7fffffff >> (32 - 8 * sizeof(ncclRedOp_dummy_t))
} ncclRedOp_t;

/**
 * The type of the elements in a buffer; every `count` is a number of such elements.
 *
 * Since NCCL 2.13.4.
 */
typedef enum {
    /** Signed integer, 1 byte. Since NCCL 2.13.4. */
    ncclInt8 = 0,
    /** Another name of `ncclInt8`. Since NCCL 2.13.4. */
    ncclChar = 0,
    /** Unsigned integer, 1 byte. Since NCCL 2.13.4. */
    ncclUint8 = 1,
    /** Signed integer, 4 bytes. Since NCCL 2.13.4. */
    ncclInt32 = 2,
    /** Another name of `ncclInt32`. Since NCCL 2.13.4. */
    ncclInt = 2,
    /** Unsigned integer, 4 bytes. Since NCCL 2.13.4. */
    ncclUint32 = 3,
    /** Signed integer, 8 bytes. Since NCCL 2.13.4. */
    ncclInt64 = 4,
    /** Unsigned integer, 8 bytes. Since NCCL 2.13.4. */
    ncclUint64 = 5,
    /** IEEE half precision, 2 bytes. Since NCCL 2.13.4. */
    ncclFloat16 = 6,
    /** Another name of `ncclFloat16`. Since NCCL 2.13.4. */
    ncclHalf = 6,
    /** IEEE single precision, 4 bytes. Since NCCL 2.13.4. */
    ncclFloat32 = 7,
    /** Another name of `ncclFloat32`. Since NCCL 2.13.4. */
    ncclFloat = 7,
    /** IEEE double precision, 8 bytes. Since NCCL 2.13.4. */
    ncclFloat64 = 8,
    /** Another name of `ncclFloat64`. Since NCCL 2.13.4. */
    ncclDouble = 8,
    /** bfloat16 (8 exponent bits), 2 bytes. Since NCCL 2.13.4. */
    ncclBfloat16 = 9,
    /** A float with 4 exponent and 3 mantissa bits, 1 byte; reductions need Hopper or later. Since NCCL 2.24.3. */
    ncclFloat8e4m3 = 10,
    /** A float with 5 exponent and 2 mantissa bits, 1 byte; reductions need Hopper or later. Since NCCL 2.24.3. */
    ncclFloat8e5m2 = 11,
    /** The number of types in this version; it grows with each new type. Since NCCL 2.13.4. */
    ncclNumTypes = 12
} ncclDataType_t;

/**
 * The location of the scalar of a custom operator, which determines when it is read.
 *
 * Since NCCL 2.13.4.
 */
typedef enum {
    /** In memory that the GPU can read: read by each operation as it runs. Since NCCL 2.13.4. */
    ncclScalarDevice = 0,
    /** In host memory: read during the call that creates the operator. Since NCCL 2.13.4. */
    ncclScalarHostImmediate = 1
} ncclScalarResidence_t;

/**
 * Creates an operator that multiplies each rank's values by that rank's `*scalar` and adds the products.
 *
 * `scalar` points to one element of `datatype` in the memory that `residence` names. The operator, stored in
 * `*op`, works only with this communicator and this type. A null `comm` crashes 2.13.4.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                       ncclScalarResidence_t residence, ncclComm_t comm);

/**
 * Frees a custom operator of this communicator.
 *
 * Allowed once the calls with the operator have returned, even if their work still runs (a device scalar must stay
 * valid until the work has run). Returns `ncclInvalidArgument` for a built-in operator. A null `comm` crashes versions
 * up to 2.16.5.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);
ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

/* ---- Collectives --------------------------------------------------------------------------------------- */
/*
 * Every rank of the communicator makes the call, with equal `count`, `datatype`, `op` and `root`. A thread that
 * drives several ranks must put their calls into one group; otherwise it deadlocks. A count of 0 succeeds and
 * does nothing: it is not a barrier. Invalid arguments cause `ncclInvalidArgument` and leave the communicator
 * usable; inside a group, `ncclGroupEnd` fails too. Buffers are device memory, and NCCL uses them until the
 * stream has run the operation.
 */

/**
 * Combines the `count` elements of every rank's `sendbuff` with `op`; rank `root` receives the result.
 *
 * `sendbuff`: `count` elements. `recvbuff`: `count` elements on `root`; unused on other ranks, may be `NULL`.
 * In place: equal pointers.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                         int root, ncclComm_t comm, cudaStream_t stream);

/**
 * `ncclBroadcast` with one buffer, which `root` sends and the others receive; superseded by `ncclBroadcast`.
 *
 * `buff`: `count` elements on every rank.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream);
ncclResult_t pncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                        cudaStream_t stream);

/**
 * Copies the `count` elements in `sendbuff` of rank `root` to every rank.
 *
 * `sendbuff`: `count` elements on `root`; unused on other ranks, may be `NULL`. `recvbuff`: `count` elements on
 * every rank. In place: equal pointers on `root`.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                            ncclComm_t comm, cudaStream_t stream);

/**
 * Combines the `count` elements of every rank's `sendbuff` with `op`; every rank receives the result.
 *
 * `sendbuff` and `recvbuff`: `count` elements each. In place: equal pointers.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);

/**
 * Combines the ranks' `sendbuff` with `op` and scatters the result: rank r receives block r.
 *
 * `recvcount` is the size of one block. `sendbuff`: n blocks. `recvbuff`: one block. In place: `recvbuff` is
 * block `rank` of `sendbuff`, that is `sendbuff + rank*recvcount`.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
                                ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);

/**
 * Gathers the blocks of all ranks on every rank, in rank order.
 *
 * `sendcount` is the size of one block. `sendbuff`: one block. `recvbuff`: n blocks. In place: `sendbuff` is
 * block `rank` of `recvbuff`, that is `recvbuff + rank*sendcount`.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                            ncclComm_t comm, cudaStream_t stream);

/**
 * Sends a block from every rank to every rank: block j of rank i arrives as block i at rank j.
 *
 * `count` is the size of one block, not of the buffers: `sendbuff` and `recvbuff` hold n blocks each. There is
 * no in-place form.
 * Since NCCL 2.28.3.
 */
ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                          ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream);

/**
 * Gathers the blocks of all ranks on rank `root`, in rank order.
 *
 * `count` is the size of one block. `sendbuff`: one block. `recvbuff`: n blocks on `root`, unused elsewhere. In
 * place, on `root`: `sendbuff` is block `root` of `recvbuff`.
 * Since NCCL 2.28.3.
 */
ncclResult_t ncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                         ncclComm_t comm, cudaStream_t stream);

/**
 * Scatters the buffer of rank `root`: rank r receives block r.
 *
 * `count` is the size of one block. `sendbuff`: n blocks on `root`, unused elsewhere. `recvbuff`: one block. In
 * place, on `root`: `recvbuff` is block `root` of `sendbuff`.
 * Since NCCL 2.28.3.
 */
ncclResult_t ncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                         ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                          ncclComm_t comm, cudaStream_t stream);

/* ---- Collectives with options -------------------------------------------------------------------------- */

/**
 * `ncclAllReduce` with options for this call.
 *
 * `sendbuff` and `recvbuff`: `count` elements each. A null `config` means no options; otherwise all ranks pass
 * equal options. Malformed options cause `ncclInvalidArgument`.
 * Since NCCL 2.31.2.
 */
ncclResult_t ncclAllReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                 const ncclCollConfig_t *config);
ncclResult_t pncclAllReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                  ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                  const ncclCollConfig_t *config);

/**
 * `ncclBroadcast` with options for this call.
 *
 * `sendbuff`: `count` elements on `root`; `recvbuff`: `count` elements. `config` as in `ncclAllReduceConfig`.
 * Since NCCL 2.31.2.
 */
ncclResult_t ncclBroadcastConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                 int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclBroadcastConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                  int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);

/**
 * `ncclReduce` with options for this call.
 *
 * `sendbuff`: `count` elements; `recvbuff`: `count` elements on `root`. `config` as in `ncclAllReduceConfig`.
 * Since NCCL 2.31.2.
 */
ncclResult_t ncclReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                              ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream,
                              const ncclCollConfig_t *config);
ncclResult_t pncclReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                               ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream,
                               const ncclCollConfig_t *config);

/**
 * `ncclAllGather` with options for this call.
 *
 * `sendbuff`: `sendcount` elements; `recvbuff`: n times that. `config` as in `ncclAllReduceConfig`.
 * Since NCCL 2.31.2.
 */
ncclResult_t ncclAllGatherConfig(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclAllGatherConfig(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                                  ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);

/**
 * `ncclReduceScatter` with options for this call.
 *
 * `recvbuff`: `recvcount` elements; `sendbuff`: n times that. `config` as in `ncclAllReduceConfig`.
 * Since NCCL 2.31.2.
 */
ncclResult_t ncclReduceScatterConfig(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
                                     ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                     const ncclCollConfig_t *config);
ncclResult_t pncclReduceScatterConfig(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
                                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                      const ncclCollConfig_t *config);

/**
 * `ncclAlltoAll` with options for this call.
 *
 * `sendbuff` and `recvbuff`: n times `count` elements each. `config` as in `ncclAllReduceConfig`.
 * Since NCCL 2.31.2.
 */
ncclResult_t ncclAlltoAllConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclAlltoAllConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);

/**
 * `ncclGather` with options for this call.
 *
 * `sendbuff`: `count` elements; `recvbuff`: n times that, on `root`. `config` as in `ncclAllReduceConfig`.
 * Since NCCL 2.31.2.
 */
ncclResult_t ncclGatherConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                              ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclGatherConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                               ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);

/**
 * `ncclScatter` with options for this call.
 *
 * `recvbuff`: `count` elements; `sendbuff`: n times that, on `root`. `config` as in `ncclAllReduceConfig`.
 * Since NCCL 2.31.2.
 */
ncclResult_t ncclScatterConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                               ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclScatterConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                                ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);

/* ---- Point to point ------------------------------------------------------------------------------------ */

/**
 * Sends `count` elements to rank `peer`, which must receive as many of the same type.
 *
 * The stream waits for the matching receive. If two ranks both send and receive, each must put its calls into one group
 * to avoid a deadlock. Sends to a peer match the peer's receives in order.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t pncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream);

ncclResult_t pncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream);

/**
 * Receives `count` elements from rank `peer`, which must send as many of the same type.
 *
 * Grouping and order: see `ncclSend`.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream);

/* ---- One-sided ----------------------------------------------------------------------------------------- */

/**
 * Writes `count` elements into the window of rank `peer`, then raises a signal there.
 *
 * `localbuff`: `count` elements, inside a window of this rank. `peerWin` is this rank's handle to the window, and
 * `peerWinOffset` an offset in the window in bytes, not elements. `sigIdx` must be below `numRmaSig`, and `ctx` below
 * `numRmaCtx`; these fields of `ncclConfig_t` are 1 by default. `flags` must be 0. The peer waits with
 * `ncclWaitSignal`.
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
                           ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
                            ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags,
                            ncclComm_t comm, cudaStream_t stream);

/**
 * Raises a signal at rank `peer` without data; for the arguments, see `ncclPutSignal`.
 *
 * Returns `ncclInvalidUsage` before the first window is registered, unless `rmaEagerInit` of `ncclConfig_t` is 1.
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream);

/**
 * A signal to wait for in `ncclWaitSignal`.
 *
 * Since NCCL 2.29.2.
 */
typedef struct {
    /** The number of times that the signal must be raised. Since NCCL 2.29.2. */
    int opCnt;
    /** The rank that raises the signal. Since NCCL 2.29.2. */
    int peer;
    /** The number of the signal, below `numRmaSig`. Since NCCL 2.29.2. */
    int sigIdx;
    /** The number of the context, below `numRmaCtx`. Since NCCL 2.29.2. */
    int ctx;
} ncclWaitSignalDesc_t;

/**
 * Makes the stream wait for signals from other ranks, and for the data put before the signals.
 *
 * `signalDescs` holds `nDesc` entries; the stream waits for all of them. The host does not wait. Like
 * `ncclSignal`, it requires a window or `rmaEagerInit`.
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm, cudaStream_t stream);

/* ---- Groups -------------------------------------------------------------------------------------------- */

/**
 * Opens a group on this thread: calls are collected until the matching `ncclGroupEnd`.
 *
 * Required if one thread drives several ranks, or if sends and receives must progress together. A group also launches
 * its operations as one. Groups nest. One group must not mix operations with the creation of communicators, blocking
 * with nonblocking communicators, or captured with other streams.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclGroupStart();
ncclResult_t pncclGroupStart();

/**
 * Closes a group; the outermost call enqueues the collected operations, or waits until the new communicators exist.
 *
 * The operations are enqueued, not complete: synchronize the streams. If a collective in the group failed, returns
 * its error. Returns `ncclInvalidUsage` without a matching `ncclGroupStart`, and `ncclInProgress` if communicators are
 * nonblocking. After any other failure, abort the communicators of the group.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclGroupEnd();
ncclResult_t pncclGroupEnd();

/**
 * Closes a group without running it, and predicts its duration.
 *
 * `simInfo` may be `NULL`. Otherwise it must start from `NCCL_SIM_INFO_INITIALIZER`: a wrong magic causes
 * `ncclInvalidArgument`. An empty group leaves `estimatedTime` at -1.
 * Since NCCL 2.22.3.
 */
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *simInfo);
ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t *simInfo);

/* ---- Encryption ---------------------------------------------------------------------------------------- */

/**
 * Values of `mode` in `ncclEncryptionConfig_t`.
 *
 * Since NCCL 2.32.3.
 */
typedef enum {
    /** No encryption. Since NCCL 2.32.3. */
    NCCL_ENCRYPTION_MODE_NONE = 0,
    /** TLS with the key `psk`. Since NCCL 2.32.3. */
    NCCL_ENCRYPTION_MODE_PSK = 1
} ncclEncryptionMode_t;

/**
 * The argument of `ncclSetEncryption`.
 *
 * Start from `NCCL_ENCRYPTION_CONFIG_INITIALIZER`.
 * Since NCCL 2.32.3.
 */
typedef struct ncclEncryptionConfig_v23200 {
    /** The size of this struct in bytes: 32. Since NCCL 2.32.3. */
    size_t size;
    /** `NCCL_API_MAGIC`; any other value causes `ncclInvalidArgument`. Since NCCL 2.32.3. */
    unsigned int magic;
    /** `NCCL_VERSION_CODE` of the header. Since NCCL 2.32.3. */
    unsigned int version;
    /** A value of `ncclEncryptionMode_t`. Four bytes of padding follow. Since NCCL 2.32.3. */
    int mode;
    /** The key, a null-terminated string of at least 32 bytes; equal in all processes. Since NCCL 2.32.3. */
    const char *psk;
} ncclEncryptionConfig_t;

/* An `ncclEncryptionConfig_t` without encryption. */
#define NCCL_ENCRYPTION_CONFIG_INITIALIZER \
    { \
        sizeof(ncclEncryptionConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, NCCL_ENCRYPTION_MODE_NONE, \
        NCCL_CONFIG_UNDEF_PTR, \
    }

/**
 * Sets the encryption (TLS) of the TCP connections that NCCL opens from now on in this process.
 *
 * Call it before `ncclGetUniqueId` and all other calls that connect, in all processes with the same key. It
 * does not cover InfiniBand, NVLink or shared memory, and requires a library built with TLS. Succeeds for
 * `NULL`. Returns `ncclInvalidArgument` if the key has less than 32 bytes or the magic is wrong.
 * Since NCCL 2.32.3.
 */
ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t *config);
ncclResult_t pncclSetEncryption(const ncclEncryptionConfig_t *config);

/* ---- Parameters of the library ------------------------------------------------------------------------- */

/**
 * A handle to a parameter of the library, from `ncclParamBind`; NCCL owns it, so do not free it.
 *
 * Since NCCL 2.30.4.
 */
typedef struct ncclParamHandle *ncclParamHandle_t;

/**
 * Looks up the parameter called `key`, for example `NCCL_DEBUG_LEVELS`, for the typed getters.
 *
 * If the key is unknown, returns `ncclInvalidArgument` and leaves `*out` unchanged. 2.32.3 has 7 keys, and 10 with
 * `NCCL_PARAM_DUMP_ALL=true` in the environment.
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamBind(ncclParamHandle_t *out, const char *key);
ncclResult_t pncclParamBind(ncclParamHandle_t *out, const char *key);

/**
 * Stores the value of a parameter that is a signed 8-bit integer.
 *
 * Values are not converted. If the parameter has another type, such as a boolean or an enum, returns
 * `ncclInvalidArgument`.
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetI8(ncclParamHandle_t h, int8_t *out);
ncclResult_t pncclParamGetI8(ncclParamHandle_t h, int8_t *out);

/**
 * Stores the value of a parameter that is a signed 16-bit integer; see `ncclParamGetI8`.
 *
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetI16(ncclParamHandle_t h, int16_t *out);
ncclResult_t pncclParamGetI16(ncclParamHandle_t h, int16_t *out);

/**
 * Stores the value of a parameter that is a signed 32-bit integer; see `ncclParamGetI8`.
 *
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetI32(ncclParamHandle_t h, int32_t *out);
ncclResult_t pncclParamGetI32(ncclParamHandle_t h, int32_t *out);

/**
 * Stores the value of a parameter that is a signed 64-bit integer; see `ncclParamGetI8`.
 *
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetI64(ncclParamHandle_t h, int64_t *out);
ncclResult_t pncclParamGetI64(ncclParamHandle_t h, int64_t *out);

/**
 * Stores the value of a parameter that is an unsigned 8-bit integer; see `ncclParamGetI8`.
 *
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetU8(ncclParamHandle_t h, uint8_t *out);
ncclResult_t pncclParamGetU8(ncclParamHandle_t h, uint8_t *out);

/**
 * Stores the value of a parameter that is an unsigned 16-bit integer; see `ncclParamGetI8`.
 *
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetU16(ncclParamHandle_t h, uint16_t *out);
ncclResult_t pncclParamGetU16(ncclParamHandle_t h, uint16_t *out);

/**
 * Stores the value of a parameter that is an unsigned 32-bit integer; see `ncclParamGetI8`.
 *
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetU32(ncclParamHandle_t h, uint32_t *out);
ncclResult_t pncclParamGetU32(ncclParamHandle_t h, uint32_t *out);

/**
 * Stores the value of a parameter that is an unsigned 64-bit integer; see `ncclParamGetI8`.
 *
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetU64(ncclParamHandle_t h, uint64_t *out);
ncclResult_t pncclParamGetU64(ncclParamHandle_t h, uint64_t *out);

/**
 * Stores a pointer to the value of a parameter that is text; for other types, returns `ncclInvalidArgument`.
 *
 * NCCL owns the text, which is valid until this thread queries text or keys again, with this function,
 * `ncclParamGetParameter` or `ncclParamGetAllParameterKeys`.
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetStr(ncclParamHandle_t h, const char **out);
ncclResult_t pncclParamGetStr(ncclParamHandle_t h, const char **out);

/**
 * Copies the bytes of a parameter of any type to `out`, which has space for `maxLen` bytes, and stores their number in
 * `*len`.
 *
 * If there is too little space, returns `ncclInvalidArgument`.
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGet(ncclParamHandle_t h, void *out, int maxLen, int *len);
ncclResult_t pncclParamGet(ncclParamHandle_t h, void *out, int maxLen, int *len);

/**
 * Stores the value of the parameter called `key`, of any type, as text, and the text's length in `*valueLen`.
 *
 * NCCL owns the text, which is valid as long as the text of `ncclParamGetStr`. If the key is unknown, returns
 * `ncclInvalidArgument`.
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetParameter(const char *key, const char **value, int *valueLen);
ncclResult_t pncclParamGetParameter(const char *key, const char **value, int *valueLen);

/**
 * Stores the address of an array of all keys, and their number in `*tableLen`.
 *
 * NCCL owns the array, which is valid as long as the text of `ncclParamGetStr`. Undocumented parameters are
 * listed only with `NCCL_PARAM_DUMP_ALL=true`.
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetAllParameterKeys(const char ***table, int *tableLen);
ncclResult_t pncclParamGetAllParameterKeys(const char ***table, int *tableLen);

/**
 * Prints the parameters that `ncclParamGetAllParameterKeys` lists, always to standard output.
 *
 * Since NCCL 2.30.4.
 */
void ncclParamDumpAll(void);
void pncclParamDumpAll(void);

#ifdef __cplusplus
}
#endif

#endif
