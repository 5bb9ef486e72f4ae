/*
 * nccl.h: the host C API of NCCL 2.32.3, as libnccl reads it.
 *
 * This file declares the ABI of NCCL 2.32.3 (names, types, values and their order) for bindgen and for C and
 * C++ programs. It was written for libnccl: the layout and every comment are libnccl's own, under the licence
 * of libnccl (MIT OR Apache-2.0). NCCL itself, the library behind these declarations, is NVIDIA's.
 * `cargo xtask headers 2.32.3` proves that the declarations equal those of the official header.
 *
 * What holds throughout, so that it need not be said at each item:
 *
 * - `count` arguments are in elements of `datatype`; `size` arguments and window offsets are in bytes. Where an
 *   in-place rule adds to a pointer, it adds elements, and n is the number of ranks.
 * - An operation that takes a stream only enqueues; the result is there when the stream has got that far. All
 *   ranks of a communicator must enqueue matching operations in the same order.
 * - A `NULL` communicator is answered with `ncclInvalidArgument` unless the comment tells another story. A
 *   failed call may leave its out parameters as the caller had them: set them to zero first.
 * - On a non-blocking communicator any call may answer `ncclInProgress`; poll `ncclCommGetAsyncError` until it
 *   says something else before touching the communicator again.
 * - Each comment ends with the release that brought the item. "2.13.4" means that release or an earlier one.
 * - Releases:
 *   2.13.4 2.14.3 2.15.5 2.16.5 2.17.1 2.18.1 2.18.3 2.19.3 2.20.5 2.21.5 2.22.3 2.23.4 2.24.3 2.25.1 2.26.2
 *   2.26.5 2.27.3 2.27.5 2.27.6 2.27.7 2.28.3 2.28.7 2.28.9 2.29.2 2.29.3 2.29.7 2.30.3 2.30.4 2.30.7 2.31.2
 *   2.32.3
 *
 * - `pncclXxx` is the profiling twin of `ncclXxx`: same type, same code. A profiler that interposes `ncclXxx`
 *   calls the twin to reach the library. The twins are exported from 2.16.5 on, and carry no comment here.
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

/* The release this header describes. Only the last two numbers and the code change between releases. */
#define NCCL_MAJOR 2
#define NCCL_MINOR 32
#define NCCL_PATCH 3
#define NCCL_SUFFIX ""

/* The version as one number, the form that `ncclGetVersion` uses. */
#define NCCL_VERSION_CODE 23203

/* Encodes a release for comparison with a version code: up to 2.8 with one digit less than from 2.9 on. */
#define NCCL_VERSION(X, Y, Z) \
    (((X) <= 2 && (Y) <= 8) ? (X) * 1000 + (Y) * 100 + (Z) : (X) * 10000 + (Y) * 100 + (Z))

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Handles ------------------------------------------------------------------------------------------- */

/**
 * One rank's end of a communicator; the contents are NCCL's.
 *
 * Not thread-safe: one thread at a time may use it. Destroy and abort free it, and later use is use after free.
 * Since NCCL 2.13.4.
 */
typedef struct ncclComm *ncclComm_t;

/**
 * A buffer registered with a communicator by `ncclCommWindowRegister`, as seen from one rank.
 *
 * `NULL` is a legal answer: registration succeeded, but this system has no use for windows.
 * Since NCCL 2.27.3.
 */
typedef struct ncclWindow_vidmem *ncclWindow_t;

/* The communicator handle that refers to none. */
#define NCCL_COMM_NULL NULL

/* Size of `ncclUniqueId`, in bytes. */
#define NCCL_UNIQUE_ID_BYTES 128

/**
 * The token that lets ranks find each other; made once, sent to every rank, passed by value to the init calls.
 *
 * 128 opaque bytes, safe to copy and send. All ranks must run the same NCCL release to understand it.
 * Since NCCL 2.13.4.
 */
typedef struct {
    /** The bytes. 2.16.5 to 2.22.3 fill only the first 40: zero all of them beforehand. Since NCCL 2.13.4. */
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

/* ---- Results ------------------------------------------------------------------------------------------- */

/**
 * The result of nearly every function.
 *
 * Newer libraries may return codes that this header does not name. With `NCCL_DEBUG=WARN` in the environment
 * NCCL prints the reason of most failures, to standard output.
 * Since NCCL 2.13.4.
 */
typedef enum {
    /** Done, or enqueued. Since NCCL 2.13.4. */
    ncclSuccess = 0,
    /** CUDA refused something; also the answer where no driver or no GPU is present. Since NCCL 2.13.4. */
    ncclUnhandledCudaError = 1,
    /** The operating system refused something: a socket, a file, shared memory. Since NCCL 2.13.4. */
    ncclSystemError = 2,
    /** NCCL contradicts itself: a bug, or overwritten memory. Since NCCL 2.13.4. */
    ncclInternalError = 3,
    /** One argument is wrong by itself: null, out of range, wrong magic. Since NCCL 2.13.4. */
    ncclInvalidArgument = 4,
    /** The call does not fit the situation: unmatched group end, mixed releases. Since NCCL 2.13.4. */
    ncclInvalidUsage = 5,
    /** Another process went away, or the network to it. Abort the communicator. Since NCCL 2.13.4. */
    ncclRemoteError = 6,
    /** No failure: a non-blocking communicator is still working on the call. Since NCCL 2.14.3. */
    ncclInProgress = 7,
    /** The library gave up waiting. Since NCCL 2.30.3. */
    ncclTimeout = 8,
    /** The number of codes in this release; it changes with each new one. Since NCCL 2.13.4. */
    ncclNumResults = 9
} ncclResult_t;

/* "Not set", for the int fields of the configuration structs. */
#define NCCL_CONFIG_UNDEF_INT INT_MIN
/* "Not set", for their pointer fields. */
#define NCCL_CONFIG_UNDEF_PTR NULL
/* The `color` of a rank that wants no part in the result of `ncclCommSplit`. */
#define NCCL_SPLIT_NOCOLOR -1
/* "Not set", for `estimatedTime` of `ncclSimInfo_t`. */
#define NCCL_UNDEF_FLOAT -1.0f

/* Marks a struct as filled by its initializer; the library refuses other values. */
#define NCCL_API_MAGIC 0xcafebeef

/* ---- Flags --------------------------------------------------------------------------------------------- */

/* `winFlags`: no promise; a collective may use any address inside the window. */
#define NCCL_WIN_DEFAULT 0x00
/* `winFlags`: all ranks promise to use the same offset from the start of their window in each collective,
   which is what the fast symmetric kernels need. Not to be mixed with the two restricting flags below. */
#define NCCL_WIN_COLL_SYMMETRIC 0x01
/* `winFlags`: remote writes through InfiniBand verbs arrive in order; meant for memory that holds signals. */
#define NCCL_WIN_STRICT_ORDERING 0x02
/* `winFlags`: only for networking started by the GPU (GIN), to save the other registrations. */
#define NCCL_WIN_GIN_ONLY 0x04
/* `winFlags`: only for counted operations of the compute fabric transport (CFT). */
#define NCCL_WIN_CFT_COUNTED 0x08

/* What the address of a window's buffer must be a multiple of, in bytes. */
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

/* `CTAPolicy`: as many thread blocks as make the operation fastest. */
#define NCCL_CTA_POLICY_DEFAULT 0x00
/* `CTAPolicy`: few thread blocks, so that computation keeps the rest of the GPU. */
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
/* `CTAPolicy`: no thread block at all where copy engines or the switch can do the work. */
#define NCCL_CTA_POLICY_ZERO 0x02

/* `shrinkFlags`: the parent is healthy and idle. */
#define NCCL_SHRINK_DEFAULT 0x00
/* `shrinkFlags`: the parent may be stuck in operations with dead ranks; kill these, share nothing. */
#define NCCL_SHRINK_ABORT 0x01

/* `revokeFlags`: the one accepted value. */
#define NCCL_REVOKE_DEFAULT 0x00

/**
 * Values of `hostCftMode` in `ncclConfig_t`: host access to the compute fabric transport (CFT).
 *
 * Since NCCL 2.31.2.
 */
typedef enum {
    /** The library decides; 2.32.3 decides for `ncclHostCftDisable`. Since NCCL 2.31.2. */
    ncclHostCftDefault = NCCL_CONFIG_UNDEF_INT,
    /** Create the endpoints with the first window; failing to is an error. Since NCCL 2.31.2. */
    ncclHostCftEnable = 1,
    /** Do without. Since NCCL 2.31.2. */
    ncclHostCftDisable = 2,
    /** Try to create the endpoints, and do without if that fails. Since NCCL 2.31.2. */
    ncclHostCftFallback = 3
} ncclHostCftMode_t;

/**
 * Values of `nvlsHostMode` in `ncclConfig_t`: which uses of NVLink SHARP (NVLS) a communicator gives up.
 *
 * The two `Disable...` bits for single parts can be joined with a bitwise or.
 * Since NCCL 2.32.3.
 */
typedef enum {
    /** The library decides; 2.32.3 gives up nothing. Since NCCL 2.32.3. */
    ncclNvlsHostModeDefault = NCCL_CONFIG_UNDEF_INT,
    /** Give up nothing. Since NCCL 2.32.3. */
    ncclNvlsHostModeEnable = 0,
    /** Give up the NVLS algorithms and their registered buffers. Since NCCL 2.32.3. */
    ncclNvlsHostModeDisableTransport = 1 << 0,
    /** Give up multicast addresses in NCCL's symmetric kernels and copies. Since NCCL 2.32.3. */
    ncclNvlsHostModeDisableSymmetricMultimem = 1 << 1,
    /** Give up everything, parts that later releases add included. Since NCCL 2.32.3. */
    ncclNvlsHostModeDisable = INT_MAX,
} ncclNvlsHostMode_t;

/* ---- Configuration of a communicator ------------------------------------------------------------------- */

/**
 * Options of one communicator, read during the call that creates it.
 *
 * Start from `NCCL_CONFIG_INITIALIZER`, then set fields. Fields are only ever appended, and the library copies
 * the smaller of `size` and its own struct: a library older than the header silently ignores the fields that it
 * does not know. A field newer than `version` gets its default. Zero the padding as well, since later releases
 * put fields there (`trafficClass`, `graphStreamOrdering`). An invalid value is `ncclInvalidArgument`, and the
 * `NCCL_*` environment variables win over the fields.
 * Since NCCL 2.14.3.
 */
typedef struct ncclConfig_v23100 {
    /** Bytes in this struct; 120 in this release, set by the initializer. Since NCCL 2.14.3. */
    size_t size;
    /** `NCCL_API_MAGIC`; anything else is `ncclInvalidArgument`. Since NCCL 2.14.3. */
    unsigned int magic;
    /** `NCCL_VERSION_CODE` of the header that `size` comes from. Since NCCL 2.14.3. */
    unsigned int version;
    /** 1: calls wait (default). 0: calls answer `ncclInProgress`. Not optional before 2.17. Since NCCL 2.14.3. */
    int blocking;
    /** Thread blocks per cluster of the kernels, 0 to 8; default 4 from Hopper on. Since NCCL 2.17.1. */
    int cgaClusterSize;
    /** The least thread blocks for a kernel; default 1. Since NCCL 2.17.1. */
    int minCTAs;
    /** The most thread blocks for a kernel, at least `minCTAs`. Since NCCL 2.17.1. */
    int maxCTAs;
    /** Network to use ("IB", "Socket" or a plugin's name), copied during the call. Since NCCL 2.17.1. */
    const char *netName;
    /** 1: children made by `ncclCommSplit` use this communicator's resources; default 0. Since NCCL 2.18.1. */
    int splitShare;
    /** Service level (InfiniBand) or type of service (RoCE) of the traffic, from 0. Since NCCL 2.26.2. */
    int trafficClass;
    /** Name for logs and profilers. The pointer is kept: it must outlive comm and children. Since NCCL 2.27.3. */
    const char *commName;
    /** 1: reduce inside InfiniBand switches (SHARP); default 0. Since NCCL 2.27.3. */
    int collnetEnable;
    /** Bits of `NCCL_CTA_POLICY_*`: speed against use of the GPU. Since NCCL 2.27.3. */
    int CTAPolicy;
    /** 1: children made by `ncclCommShrink` use this communicator's resources; default 0. Since NCCL 2.27.3. */
    int shrinkShare;
    /** Thread blocks of kernels that use NVLink SHARP; default chosen by topology. Since NCCL 2.27.3. */
    int nvlsCTAs;
    /** Network channels between two ranks, rounded up to a power of two. Since NCCL 2.28.3. */
    int nChannelsPerNetPeer;
    /** 1: schedule for the sake of NVLink; default 0. Since NCCL 2.28.3. */
    int nvlinkCentricSched;
    /** CUDA graphs: 0 none, 1 a single one, 2 several or mixed with plain launches (default). Since NCCL 2.29.2. */
    int graphUsageMode;
    /** Contexts for one-sided operations, the bound of their `ctx`; default 1. Since NCCL 2.29.2. */
    int numRmaCtx;
    /** The number of peers of a rank's simultaneous sends and receives; default all. Since NCCL 2.30.3. */
    int maxP2pPeers;
    /** 1: NCCL orders captured kernels (default). 0: you do; needs `graphUsageMode` 0 or 1. Since NCCL 2.30.7. */
    int graphStreamOrdering;
    /** 1: order launches of several communicators by their order on the host; default 0. Since NCCL 2.31.2. */
    int launchOrderImplicit;
    /** Signals in each context, the bound of `sigIdx`; default 1. Since NCCL 2.31.2. */
    int numRmaSig;
    /** 1: prepare signals at init, not with the first window; needed without windows. Since NCCL 2.31.2. */
    int rmaEagerInit;
    /** A value of `ncclHostCftMode_t`. Since NCCL 2.31.2. */
    int hostCftMode;
    /** Values of `ncclNvlsHostMode_t`. Four bytes of padding follow. Since NCCL 2.32.3. */
    int nvlsHostMode;
} ncclConfig_t;

/* An `ncclConfig_t` in which nothing is set. One row for each release that added fields. */
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
 * One option for somebody else's build of NCCL; NVIDIA's skips the whole list.
 *
 * Options hang together by `next`, in any order, without cycles and without a key twice.
 * Since NCCL 2.31.2.
 */
typedef struct ncclConfigExt {
    /** The following option, or `NULL` at the end. Since NCCL 2.31.2. */
    struct ncclConfigExt *next;
    /** The two halves of a key. Since NCCL 2.31.2. */
    struct {
        /** The vendor: a number that each vendor draws for itself, between 1 and 2^24 - 1. Since NCCL 2.31.2. */
        int vendorId;
        /** The number of the option, chosen by the vendor. Since NCCL 2.31.2. */
        int optionId;
    } /** The key of the option. Since NCCL 2.31.2. */ key;
    /** The forms that a value can have. Since NCCL 2.31.2. */
    union {
        /** A number. Since NCCL 2.31.2. */
        int i;
        /** Text, ended by a zero byte. Since NCCL 2.31.2. */
        const char *s;
        /** Anything else. Since NCCL 2.31.2. */
        void *raw;
    } /** Its value; the key tells which member is meant. Since NCCL 2.31.2. */ val;
} ncclConfigExt_t;

/**
 * Options of one collective, for the functions whose names end in `Config`.
 *
 * Start from `NCCL_COLLCONFIG_INITIALIZER`. Give all ranks equal options: nobody compares them across ranks. The
 * caller keeps the struct and everything it points to until the call (in a group: the outermost
 * `ncclGroupEnd`) has returned. A wrong `magic` or too small a `size` is `ncclInvalidArgument`. Never lower
 * `version` while keeping `size`: 2.31.2 then copies `size` bytes into its own, shorter struct.
 * Since NCCL 2.31.2.
 */
typedef struct ncclCollConfig_v23200 {
    /** Bytes in this struct; 72 in this release, 64 in 2.31.2. Since NCCL 2.31.2. */
    size_t size;
    /** `NCCL_API_MAGIC`. Since NCCL 2.31.2. */
    unsigned int magic;
    /** `NCCL_VERSION_CODE` of the header that `size` comes from. Since NCCL 2.31.2. */
    unsigned int version;
    /** Options for other vendors' builds, or `NULL`. Since NCCL 2.31.2. */
    ncclConfigExt_t *ext;
    /** The least thread blocks for this call. Since NCCL 2.31.2. */
    int minCTAs;
    /** The most thread blocks for this call, within the limit of the communicator. Since NCCL 2.31.2. */
    int maxCTAs;
    /** The most thread blocks if NVLink SHARP does the work. Since NCCL 2.31.2. */
    int nvlsCTAs;
    /** Thread blocks per cluster, Hopper and later; one value for a whole group. Since NCCL 2.31.2. */
    int cgaClusterSize;
    /** Names of the algorithms to choose from; `NULL` or empty: all. Since NCCL 2.31.2. */
    const char *algSelection;
    /** 1 (default): fail if no algorithm of `algSelection` fits. 0: fall back to all. Since NCCL 2.31.2. */
    int forceAlgSelection;
    /** Bits of `NCCL_CTA_POLICY_*`; not set: as the communicator. Since NCCL 2.31.2. */
    int CTAPolicy;
    /** A number for profiler plugins, 0 for none; leave the top bit to NCCL. Since NCCL 2.31.2. */
    uint64_t userProfilerTag;
    /**
     * Event of this rank that NCCL records once the kernel has been launched, or `NULL`.
     *
     * All ranks pass one or none does. Make it with `cudaEventDisableTiming`, not for use between processes; one
     * per communicator and group. It must live as long as anything waits for it, captured graphs included.
     * Built with CUDA older than 12.3, NCCL records it ahead of the launch.
     * Since NCCL 2.32.3.
     */
    cudaEvent_t launchCompletionEvent;
} ncclCollConfig_t;

/* An `ncclCollConfig_t` in which nothing is set, except that an `algSelection` would be binding. */
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
    /** Bytes in this struct: 24. Since NCCL 2.22.3. */
    size_t size;
    /** 0x74685283, not `NCCL_API_MAGIC`; anything else is `ncclInvalidArgument`. Since NCCL 2.22.3. */
    unsigned int magic;
    /** `NCCL_VERSION_CODE` of the header. Since NCCL 2.22.3. */
    unsigned int version;
    /** Predicted duration in NCCL's cost model (microseconds there); -1 if nothing ran. Since NCCL 2.22.3. */
    float estimatedTime;
} ncclSimInfo_t;

/* An `ncclSimInfo_t` ready to be filled. */
#define NCCL_SIM_INFO_INITIALIZER \
    { sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION_CODE, NCCL_UNDEF_FLOAT }

/* ---- Memory and version -------------------------------------------------------------------------------- */

/**
 * Allocates `size` bytes on the current device, in the kind of memory that registration and windows require.
 *
 * NCCL rounds up to the granularity of the device. `*ptr` is written on success only; without a driver the
 * answer is `ncclUnhandledCudaError`.
 * Since NCCL 2.19.3.
 */
ncclResult_t ncclMemAlloc(void **ptr, size_t size);
ncclResult_t pncclMemAlloc(void **ptr, size_t size);

/**
 * Frees memory of `ncclMemAlloc`.
 *
 * Deregister the memory from every communicator first.
 * Since NCCL 2.19.3.
 */
ncclResult_t ncclMemFree(void *ptr);
ncclResult_t pncclMemFree(void *ptr);

/**
 * Stores the version code of the loaded library: 23203 for 2.32.3.
 *
 * Works without a GPU and without a driver. A null pointer is `ncclInvalidArgument`. Compare the answer with
 * `NCCL_VERSION` to learn which functions and fields the library has.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclGetVersion(int *version);
ncclResult_t pncclGetVersion(int *version);

/* ---- Life of a communicator ---------------------------------------------------------------------------- */

/**
 * Makes the token by which the ranks of a new communicator find each other.
 *
 * Call it in one process and send the 128 bytes to the others by other means. That process must live until all
 * ranks have joined, since each call starts a thread and opens a port that serve them, and both stay if the
 * ranks never come. Needs no GPU. With `NCCL_COMM_ID=ip:port` set, no server is started. A first call that
 * fails (say, no usable network interface) spoils later ones: up to 2.21.5 they hang, from then on they fail
 * the same way. Zero `*uniqueId` first: 2.16.5 to 2.22.3 write only part of it.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId);
ncclResult_t pncclGetUniqueId(ncclUniqueId *uniqueId);

/**
 * Does the same as `ncclCommInitRank`, with options; `config` may be `NULL`.
 *
 * Set `*comm` to `NULL` beforehand: 2.17.1 to 2.22.3 follow it when the call fails. Before 2.17 `blocking` must
 * be 0 or 1. With `blocking` 0 the call may answer `ncclInProgress`, and the handle is there at once. If no
 * device can be found, the thread may be left inside a group (seen in 2.23.4 to 2.32.3).
 * Since NCCL 2.14.3.
 */
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t *config);
ncclResult_t pncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                     ncclConfig_t *config);

/**
 * Joins a new communicator of `nranks` ranks as number `rank` (from 0), on the current CUDA device.
 *
 * Every rank calls it with one and the same `commId`, and each waits for all the others: call it from as many
 * threads or processes, or between `ncclGroupStart` and `ncclGroupEnd`. Two ranks on one GPU are
 * `ncclInvalidUsage`, unless `NCCL_MULTI_RANK_GPU_ENABLE=1` (2.30.3 and later); so are ranks of different
 * releases. Without a driver: `ncclUnhandledCudaError`.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank);
ncclResult_t pncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank);

/**
 * Makes all ranks of a communicator at once, inside this process, one per device.
 *
 * `comm` has room for `ndev` handles; entry i becomes rank i, on CUDA device `devlist[i]`, or on device i if
 * `devlist` is `NULL`. A device may appear only once (but see `ncclCommInitRank`). Put the operations of the
 * ranks into groups if one thread drives them all.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist);
ncclResult_t pncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist);

/**
 * Lets everything enqueued so far finish and begins to tear down, together with the other ranks.
 *
 * On a non-blocking communicator, poll until `ncclSuccess`; then `ncclCommDestroy` does not wait any more. Once
 * only: a second call is `ncclInvalidArgument`, and so is one after `ncclCommRevoke`. `NULL` does nothing.
 * Since NCCL 2.14.3.
 */
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t pncclCommFinalize(ncclComm_t comm);

/**
 * Frees this rank's communicator; the handle is dead afterwards.
 *
 * Finalizes first if nobody has, so all ranks of a node should call it, at about the same time, or it hangs.
 * Deregister buffers and windows before. `NULL` does nothing and succeeds.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t pncclCommDestroy(ncclComm_t comm);

/**
 * Aborts the work of this communicator and frees it, without the other ranks.
 *
 * The way out after an error or a lost peer; all surviving ranks should take it. No other thread may be inside
 * a NCCL call on this handle, which is dead afterwards. With shared resources (`splitShare`) relatives may
 * break. `NULL` does nothing and succeeds.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t pncclCommAbort(ncclComm_t comm);

/**
 * Stops what this communicator is doing, but keeps it, so that survivors can be gathered from it.
 *
 * `revokeFlags` must be 0. Poll `ncclCommGetAsyncError` until it leaves `ncclInProgress`; then destroy, split
 * or shrink. Collectives on it are `ncclInvalidUsage` from here on; revoking twice or after finalize is
 * `ncclInvalidArgument`. Children cannot share its resources. `NULL` does nothing and succeeds.
 * Since NCCL 2.28.7.
 */
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);
ncclResult_t pncclCommRevoke(ncclComm_t comm, int revokeFlags);

/**
 * Splits a communicator: ranks of equal `color` make a new one, ordered by `key`, then by old rank.
 *
 * All ranks of `comm` call it. With `NCCL_SPLIT_NOCOLOR` a rank takes part in the call only, and gets a null
 * `*newcomm`. A null `config` means the options of `comm`. The address `newcomm` is kept and written when the
 * work ends (in a group or non-blocking: later), so it must stay valid until then. A null `comm` crashes
 * 2.23.4 and 2.24.3.
 * Since NCCL 2.18.1.
 */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);
ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);

/**
 * Makes a communicator of the ranks that are not in the list; these close ranks, keeping their order.
 *
 * Only the remaining ranks call it, all with the same `excludeRanksCount` ranks in the list, which NCCL sorts in
 * place. `shrinkFlags`: `NCCL_SHRINK_DEFAULT`, or `NCCL_SHRINK_ABORT` if operations may be stuck. A null
 * `config` means the options of `comm`. `newcomm` is written when the work ends, as in `ncclCommSplit`. A null
 * `comm` crashes.
 * Since NCCL 2.27.3.
 */
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm,
                            ncclConfig_t *config, int shrinkFlags);
ncclResult_t pncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm,
                             ncclConfig_t *config, int shrinkFlags);

/**
 * Makes the token with which new ranks join `comm` through `ncclCommGrow`.
 *
 * One rank of `comm` calls it and sends the token to the new ranks. A token serves one growth; until that is
 * over, no second one can be made. Refused if `NCCL_COMM_ID` is set.
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *uniqueId);
ncclResult_t pncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *uniqueId);

/**
 * Makes a larger communicator, of `nRanks` ranks, from `comm` and new ranks.
 *
 * Three kinds of callers. A member of `comm`: `uniqueId` `NULL`, `rank` -1, keeps its number. The member that
 * made the token: the same, with the token. A new rank: `comm` `NULL`, the token, and its number in `rank`,
 * from the old size up. `config` may be `NULL`. Success uses the token up.
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank, ncclComm_t *newcomm,
                          ncclConfig_t *config);
ncclResult_t pncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank, ncclComm_t *newcomm,
                           ncclConfig_t *config);

/**
 * Does the same as `ncclCommInitRankConfig`, with `nId` tokens instead of one, to spread the load of many ranks.
 *
 * `commIds` holds `nId` tokens, from 1 to `nranks`, equal and in equal order on all ranks; each comes from its
 * own `ncclGetUniqueId`, best in different processes. Mind that `myrank` stands before the tokens.
 * Since NCCL 2.23.4.
 */
ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds,
                                      ncclConfig_t *config);
ncclResult_t pncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds,
                                       ncclConfig_t *config);

/* ---- Errors and questions ------------------------------------------------------------------------------ */

/**
 * Names a result code in English.
 *
 * A constant, never `NULL`; codes that the library does not know give "unknown result code". The texts vary
 * with the release: compare codes, not texts.
 * Since NCCL 2.13.4.
 */
const char *ncclGetErrorString(ncclResult_t result);
const char *pncclGetErrorString(ncclResult_t result);

/**
 * Returns the text of the latest failure in this process, of any thread.
 *
 * Points to one buffer for all threads and communicators (`comm` is ignored and may be `NULL`), empty at first,
 * overwritten by each failure, never cleared. Copy it at once, and expect that another thread got there first.
 * Since NCCL 2.13.4.
 */
const char *ncclGetLastError(ncclComm_t comm);
const char *pncclGetLastError(ncclComm_t comm);

#ifdef NCCL_OS_LINUX
/**
 * Makes NCCL read its logging variables (such as `NCCL_DEBUG`) anew.
 *
 * Deprecated. From 2.30.3 on the header hides it behind a macro that only NCCL's own build defines; the
 * library still exports it.
 * Since NCCL 2.24.3.
 */
__attribute__((deprecated("not part of the supported NCCL API"))) void ncclResetDebugInit();
__attribute__((deprecated("not part of the supported NCCL API"))) void pncclResetDebugInit();
#else
/* Where the function is hidden, a call to it compiles to nothing. */
#define ncclResetDebugInit()
#define pncclResetDebugInit()
#endif

/**
 * Stores the state of the communicator in `*asyncError`: fine, still working, or broken.
 *
 * This is how failures of enqueued operations come to light, and how a non-blocking call is waited for:
 * `ncclInProgress` until it is over. The return value is about the question, not the answer. Only one thread
 * may poll a communicator. After an error, abort it.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);
ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);

/**
 * Stores how many ranks the communicator has.
 *
 * `ncclInvalidArgument` while a non-blocking call is in progress.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclCommCount(const ncclComm_t comm, int *count);
ncclResult_t pncclCommCount(const ncclComm_t comm, int *count);

/**
 * Stores the ordinal of the CUDA device that this rank runs on.
 *
 * `ncclInvalidArgument` while a non-blocking call is in progress.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device);
ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int *device);

/**
 * Stores the number of this rank, from 0.
 *
 * `ncclInvalidArgument` while a non-blocking call is in progress.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank);
ncclResult_t pncclCommUserRank(const ncclComm_t comm, int *rank);

/* ---- Registration -------------------------------------------------------------------------------------- */

/**
 * Registers a buffer of `size` bytes that operations will use, so that NCCL can skip its staging copies.
 *
 * Local to this rank. `*handle` may stay `NULL` in spite of success, if registering would gain nothing. Memory
 * from `ncclMemAlloc` fits best. Deregister before freeing the memory or destroying the communicator.
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

/* `flags` of `ncclCommSuspend`: release the GPU memory that can be allocated again later. */
#define NCCL_SUSPEND_MEM 0x01

/**
 * Suspends the communicator and frees the resources that `flags` names; all ranks call it.
 *
 * `flags` is `NCCL_SUSPEND_MEM`. Until `ncclCommResume` nothing may be enqueued. A communicator that shares
 * resources with another (`splitShare`) cannot: `ncclInvalidUsage`.
 * Since NCCL 2.29.7.
 */
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t pncclCommSuspend(ncclComm_t comm, int flags);

/**
 * Resumes a communicator after `ncclCommSuspend`; all ranks call it.
 *
 * It allocates again, so it can fail for want of memory.
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
    /** Bytes of GPU memory that suspending would give back. Since NCCL 2.29.7. */
    ncclStatGpuMemSuspend = 0,
    /** 1 if that memory has been given back, 0 if not. Since NCCL 2.29.7. */
    ncclStatGpuMemSuspended = 1,
    /** Bytes of GPU memory that stay while suspended. Since NCCL 2.29.7. */
    ncclStatGpuMemPersist = 2,
    /** Bytes of GPU memory that NCCL keeps account of, in all. Since NCCL 2.29.7. */
    ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;

/**
 * Stores one figure about the GPU memory of the communicator.
 *
 * In bytes, except for `ncclStatGpuMemSuspended`, which is 0 or 1.
 * Since NCCL 2.29.7.
 */
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);
ncclResult_t pncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);

/**
 * Registers `size` bytes at `buff` with all ranks, for symmetric collectives and one-sided operations.
 *
 * All ranks call it. The address must be a multiple of `NCCL_WIN_REQUIRED_ALIGNMENT` and the memory come from
 * `ncclMemAlloc` or CUDA's virtual memory API. `winFlags` joins `NCCL_WIN_*` bits. `win` is written when the
 * work ends (in a group or non-blocking: later), so it must stay valid until then; success with a null `*win`
 * means that this system has no symmetric memory. Deregister before freeing the memory.
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
 * Helps to compute `ncclMaxRedOp`; of no other use.
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
 * Open: `ncclRedOpCreatePreMulSum` hands out further values, from `ncclNumOps` to `ncclMaxRedOp`. Integers
 * wrap around. The order of floating-point operations depends on algorithm, size and number of ranks.
 * Since NCCL 2.13.4.
 */
typedef enum {
    /** Adds. Since NCCL 2.13.4. */
    ncclSum = 0,
    /** Multiplies. Since NCCL 2.13.4. */
    ncclProd = 1,
    /** Takes the largest; a NaN loses against any number. Since NCCL 2.13.4. */
    ncclMax = 2,
    /** Takes the smallest; a NaN loses against any number. Since NCCL 2.13.4. */
    ncclMin = 3,
    /** Mean: floats are scaled by 1/n and added, integers added and divided, truncating. Since NCCL 2.13.4. */
    ncclAvg = 4,
    /** The number of built-in operators; custom operators are numbered from here. Since NCCL 2.13.4. */
    ncclNumOps = 5,
    /** The top of the range for custom operators; also fixes the width of the type. Since NCCL 2.13.4. */
    ncclMaxRedOp = 0x7fffffff >> (32 - 8 * sizeof(ncclRedOp_dummy_t))
} ncclRedOp_t;

/**
 * Type of the elements in a buffer; their size is the unit of every `count`.
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
    /** 4 exponent and 3 mantissa bits, 1 byte; reductions need Hopper or later. Since NCCL 2.24.3. */
    ncclFloat8e4m3 = 10,
    /** 5 exponent and 2 mantissa bits, 1 byte; reductions need Hopper or later. Since NCCL 2.24.3. */
    ncclFloat8e5m2 = 11,
    /** The number of types in this release; it changes with each new one. Since NCCL 2.13.4. */
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
    /** In host memory: read before the creating call is over, then no longer needed. Since NCCL 2.13.4. */
    ncclScalarHostImmediate = 1
} ncclScalarResidence_t;

/**
 * Makes an operator that multiplies each rank's values by that rank's `*scalar` and adds the products.
 *
 * `scalar` points to one element of `datatype`; `residence` tells where. The operator, stored in `*op`, works
 * with this communicator and this type only. A null `comm` crashes 2.13.4.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                       ncclScalarResidence_t residence, ncclComm_t comm);

/**
 * Frees a custom operator of this communicator.
 *
 * Allowed once the calls that were given it have returned, even if their work still runs (a device scalar must
 * live on until then). A built-in operator is `ncclInvalidArgument`; a null `comm` crashes up to 2.16.5.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);
ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

/* ---- Collectives --------------------------------------------------------------------------------------- */
/*
 * Every rank of the communicator makes the call, with equal `count`, `datatype`, `op` and `root`. A thread that
 * drives several ranks puts their calls into one group, or it waits for itself. A count of 0 succeeds and does
 * nothing: it is no barrier. Wrong arguments are `ncclInvalidArgument`, leave the communicator usable, and
 * inside a group make `ncclGroupEnd` fail too. Buffers are device memory and belong to NCCL until the stream
 * has passed the operation.
 */

/**
 * Combines the `count` elements of every rank's `sendbuff` by `op`; rank `root` gets the result.
 *
 * `sendbuff`: `count` elements. `recvbuff`: `count` elements on `root`, unused elsewhere and free to be `NULL`.
 * In place: equal pointers.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                         int root, ncclComm_t comm, cudaStream_t stream);

/**
 * `ncclBroadcast` with one buffer, which `root` sends from and the others receive into; superseded by it.
 *
 * `buff`: `count` elements on every rank.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream);
ncclResult_t pncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                        cudaStream_t stream);

/**
 * Gives every rank a copy of the `count` elements in `sendbuff` of rank `root`.
 *
 * `sendbuff`: `count` elements on `root`, unused elsewhere and free to be `NULL`. `recvbuff`: `count` elements
 * on every rank. In place: equal pointers on `root`.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                            ncclComm_t comm, cudaStream_t stream);

/**
 * Combines the `count` elements of every rank's `sendbuff` by `op`; every rank gets the whole result.
 *
 * `sendbuff` and `recvbuff`: `count` elements each. In place: equal pointers.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);

/**
 * Combines the ranks' `sendbuff` by `op` and scatters the result: rank r gets block r of it.
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
 * Gives every rank the blocks of all ranks, one after another in order of rank.
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
 * Gathers the blocks of all ranks on rank `root`, one after another in order of rank.
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
 * Scatters the buffer of rank `root`: rank r gets block r.
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
 * `sendbuff` and `recvbuff`: `count` elements each. A null `config` makes it the plain call; otherwise all
 * ranks pass equal options, and a malformed one is `ncclInvalidArgument`.
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
 * The stream waits until the other side has met it. Exchanges in which two ranks both send and receive
 * therefore belong into one group, or they deadlock. Sends to one peer match its receives in order.
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
 * `localbuff`: `count` elements, inside a window of this rank. `peerWinOffset` counts bytes, not elements, into
 * `peerWin`, this communicator's window. `sigIdx` is below `numRmaSig` and `ctx` below `numRmaCtx` of the
 * configuration, both 1 by default: so 0. `flags` must be 0. The peer learns of it by `ncclWaitSignal`.
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
                           ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
                            ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags,
                            ncclComm_t comm, cudaStream_t stream);

/**
 * Raises a signal at rank `peer` and moves no data; the arguments are those of `ncclPutSignal`.
 *
 * `ncclInvalidUsage` before the first window is registered, unless the configuration says `rmaEagerInit`.
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream);

/**
 * One thing to wait for in `ncclWaitSignal`.
 *
 * Since NCCL 2.29.2.
 */
typedef struct {
    /** The number of raises of the signal. Since NCCL 2.29.2. */
    int opCnt;
    /** The rank that raises it. Since NCCL 2.29.2. */
    int peer;
    /** The number of the signal, below `numRmaSig`. Since NCCL 2.29.2. */
    int sigIdx;
    /** The number of the context, below `numRmaCtx`. Since NCCL 2.29.2. */
    int ctx;
} ncclWaitSignalDesc_t;

/**
 * Makes the stream wait for signals from other ranks, and with them for the data put ahead of them.
 *
 * `signalDescs` holds `nDesc` entries, all of which must come true. The host does not wait. Like `ncclSignal`
 * it wants a window or `rmaEagerInit`.
 * Since NCCL 2.29.2.
 */
ncclResult_t ncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm, cudaStream_t stream);

/* ---- Groups -------------------------------------------------------------------------------------------- */

/**
 * Opens a group on this thread: calls are collected until the matching `ncclGroupEnd`.
 *
 * Needed when one thread drives several ranks, when sends and receives must progress together, and useful to
 * launch several operations as one. Groups nest. Do not mix calls that create communicators with operations in
 * one group, nor blocking communicators with non-blocking ones, nor captured streams with others.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclGroupStart();
ncclResult_t pncclGroupStart();

/**
 * Closes a group; the outermost one enqueues all that was collected, or waits for the communicators to exist.
 *
 * Enqueued is not executed: synchronize the streams for that. Returns the failure of a collective that the
 * group contained; `ncclInvalidUsage` without a matching start; `ncclInProgress` if communicators are
 * non-blocking. After any other failure here, abort the communicators of the group.
 * Since NCCL 2.13.4.
 */
ncclResult_t ncclGroupEnd();
ncclResult_t pncclGroupEnd();

/**
 * Closes a group without running it, and predicts what it would have cost.
 *
 * `simInfo` starts from `NCCL_SIM_INFO_INITIALIZER` (a wrong magic is `ncclInvalidArgument`) and may be `NULL`.
 * An empty group leaves `estimatedTime` at -1.
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
    /** Sockets carry the data as it is. Since NCCL 2.32.3. */
    NCCL_ENCRYPTION_MODE_NONE = 0,
    /** Sockets speak TLS, keyed by `psk`. Since NCCL 2.32.3. */
    NCCL_ENCRYPTION_MODE_PSK = 1
} ncclEncryptionMode_t;

/**
 * The argument of `ncclSetEncryption`.
 *
 * Start from `NCCL_ENCRYPTION_CONFIG_INITIALIZER`.
 * Since NCCL 2.32.3.
 */
typedef struct ncclEncryptionConfig_v23200 {
    /** Bytes in this struct: 32. Since NCCL 2.32.3. */
    size_t size;
    /** `NCCL_API_MAGIC`; anything else is `ncclInvalidArgument`. Since NCCL 2.32.3. */
    unsigned int magic;
    /** `NCCL_VERSION_CODE` of the header. Since NCCL 2.32.3. */
    unsigned int version;
    /** A value of `ncclEncryptionMode_t`. Four bytes of padding follow. Since NCCL 2.32.3. */
    int mode;
    /** The secret, ended by a zero byte, 32 bytes or more; equal in all processes. Since NCCL 2.32.3. */
    const char *psk;
} ncclEncryptionConfig_t;

/* An `ncclEncryptionConfig_t` that asks for no encryption. */
#define NCCL_ENCRYPTION_CONFIG_INITIALIZER \
    { \
        sizeof(ncclEncryptionConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, NCCL_ENCRYPTION_MODE_NONE, \
        NCCL_CONFIG_UNDEF_PTR, \
    }

/**
 * Asks for TLS on the TCP connections that NCCL opens from now on, in the whole process.
 *
 * Call it ahead of `ncclGetUniqueId` and of everything else that connects, in all processes with one secret. It
 * does not cover InfiniBand, NVLink or shared memory, and takes a library built with TLS. `NULL` succeeds; a
 * secret under 32 bytes or a wrong magic is `ncclInvalidArgument`.
 * Since NCCL 2.32.3.
 */
ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t *config);
ncclResult_t pncclSetEncryption(const ncclEncryptionConfig_t *config);

/* ---- Parameters of the library ------------------------------------------------------------------------- */

/**
 * One parameter of the library, as found by `ncclParamBind`; NCCL owns it, there is nothing to free.
 *
 * Since NCCL 2.30.4.
 */
typedef struct ncclParamHandle *ncclParamHandle_t;

/**
 * Looks up the parameter called `key`, for example `NCCL_DEBUG_LEVELS`, for the typed getters.
 *
 * An unknown key is `ncclInvalidArgument` and leaves `*out` alone. Libraries know few keys: 7 in 2.32.3, with
 * `NCCL_PARAM_DUMP_ALL=true` in the environment 10.
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamBind(ncclParamHandle_t *out, const char *key);
ncclResult_t pncclParamBind(ncclParamHandle_t *out, const char *key);

/**
 * Stores the value of a parameter that is a signed 8-bit integer.
 *
 * No conversions: a parameter of another type, booleans and enums included, is `ncclInvalidArgument`.
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetI8(ncclParamHandle_t h, int8_t *out);
ncclResult_t pncclParamGetI8(ncclParamHandle_t h, int8_t *out);

/**
 * Stores the value of a parameter that is a signed 16-bit integer; `ncclParamGetI8` tells more.
 *
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetI16(ncclParamHandle_t h, int16_t *out);
ncclResult_t pncclParamGetI16(ncclParamHandle_t h, int16_t *out);

/**
 * Stores the value of a parameter that is a signed 32-bit integer; `ncclParamGetI8` tells more.
 *
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetI32(ncclParamHandle_t h, int32_t *out);
ncclResult_t pncclParamGetI32(ncclParamHandle_t h, int32_t *out);

/**
 * Stores the value of a parameter that is a signed 64-bit integer; `ncclParamGetI8` tells more.
 *
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetI64(ncclParamHandle_t h, int64_t *out);
ncclResult_t pncclParamGetI64(ncclParamHandle_t h, int64_t *out);

/**
 * Stores the value of a parameter that is an unsigned 8-bit integer; `ncclParamGetI8` tells more.
 *
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetU8(ncclParamHandle_t h, uint8_t *out);
ncclResult_t pncclParamGetU8(ncclParamHandle_t h, uint8_t *out);

/**
 * Stores the value of a parameter that is an unsigned 16-bit integer; `ncclParamGetI8` tells more.
 *
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetU16(ncclParamHandle_t h, uint16_t *out);
ncclResult_t pncclParamGetU16(ncclParamHandle_t h, uint16_t *out);

/**
 * Stores the value of a parameter that is an unsigned 32-bit integer; `ncclParamGetI8` tells more.
 *
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetU32(ncclParamHandle_t h, uint32_t *out);
ncclResult_t pncclParamGetU32(ncclParamHandle_t h, uint32_t *out);

/**
 * Stores the value of a parameter that is an unsigned 64-bit integer; `ncclParamGetI8` tells more.
 *
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetU64(ncclParamHandle_t h, uint64_t *out);
ncclResult_t pncclParamGetU64(ncclParamHandle_t h, uint64_t *out);

/**
 * Stores a pointer to the value of a parameter that is text; other types are `ncclInvalidArgument`.
 *
 * The text is NCCL's. It lasts until this thread asks for text or keys again, here or in
 * `ncclParamGetParameter` and `ncclParamGetAllParameterKeys`.
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetStr(ncclParamHandle_t h, const char **out);
ncclResult_t pncclParamGetStr(ncclParamHandle_t h, const char **out);

/**
 * Copies the bytes of a parameter of any type to `out`, which has room for `maxLen`, and their number to `*len`.
 *
 * Too little room is `ncclInvalidArgument`.
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGet(ncclParamHandle_t h, void *out, int maxLen, int *len);
ncclResult_t pncclParamGet(ncclParamHandle_t h, void *out, int maxLen, int *len);

/**
 * Stores the value of the parameter called `key` as text, whatever its type, and the length in `*valueLen`.
 *
 * The text is NCCL's and lasts as long as that of `ncclParamGetStr`. An unknown key is `ncclInvalidArgument`.
 * Since NCCL 2.30.4.
 */
ncclResult_t ncclParamGetParameter(const char *key, const char **value, int *valueLen);
ncclResult_t pncclParamGetParameter(const char *key, const char **value, int *valueLen);

/**
 * Stores the address of an array of all keys, and their number in `*tableLen`.
 *
 * The array is NCCL's and lasts as long as the text of `ncclParamGetStr`. Undocumented parameters are listed
 * with `NCCL_PARAM_DUMP_ALL=true` only.
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
