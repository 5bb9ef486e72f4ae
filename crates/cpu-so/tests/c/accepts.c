/*
 * What a library accepts: calls with arguments at and beyond their limits. Each prints a line: its name, the code that the
 * library returned, and the text of its error, with tabs between. `accepts LIBRARY` asks any NCCL. The codes of the CPU
 * implementation and of NCCL are in `accepts.tsv`.
 *
 * The calls of a group run in a process of their own. One that crashes or hangs prints `crash` or `hang`, and another process
 * goes on after it. A function that the library lacks is `absent`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "nccl.h"
#include "nccl_device_host.h"

/* Properties, and room for what a newer library writes. */
typedef struct {
    ncclCommProperties_t known;
    char rest[1024];
} Properties;

#define PROPERTIES(magic_, version_) \
    {.known = {.size = sizeof(Properties), .magic = (magic_), .version = (version_)}}

/* What the process that runs the calls tells the one that watches it. */
typedef struct {
    volatile int next, any;
    char name[160];
} Progress;

static Progress *progress;
/* The text of the last error, if a call after the case's may have changed it. */
static char said[1024];
static const char *library;
static int from, alone, number;
static void *opened;

/* ---- Functions by name --------------------------------------------------------------------------------- */

#define ABSENT (-1)

static int absent(void) {
    return ABSENT;
}

static void *symbol(const char *name) {
    void *found = dlsym(opened, name);
    return found ? found : (void *)(uintptr_t)absent;
}

#define F(name) ((__typeof__(&name))(uintptr_t)symbol(#name))

/* ---- Cases --------------------------------------------------------------------------------------------- */

static int begin(const char *format, ...) {
    int index = number++;
    if (index < from || (alone && progress->any))
        return 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(progress->name, sizeof(progress->name), format, arguments);
    va_end(arguments);
    progress->any = 1;
    progress->next = index + 1;
    said[0] = 0;
    return 1;
}

static void remember(void) {
    if (!said[0] && dlsym(opened, "ncclGetLastError"))
        snprintf(said, sizeof(said), "%s", F(ncclGetLastError)(NULL));
}

static void end(int code) {
    static char line[1400];
    if (code > 0)
        remember();
    for (char *at = said; *at; at++)
        if (*at == '\n' || *at == '\t')
            *at = ' ';
    int length = code == ABSENT ? snprintf(line, sizeof(line), "%s\tabsent\t\n", progress->name)
                                : snprintf(line, sizeof(line), "%s\t%d\t%s\n", progress->name, code, code > 0 ? said : "");
    if (write(1, line, length) != length)
        _exit(3);
    progress->name[0] = 0;
}

/* One call; its name is a format and its arguments, in parentheses. */
#define CASE(name, call) \
    do { \
        if (begin name) \
            end((int)(call)); \
    } while (0)

/* ---- What calls need ----------------------------------------------------------------------------------- */

#define STREAM ((cudaStream_t)NULL)
#define BYTES (1 << 20)

static const ncclConfig_t UNSET = NCCL_CONFIG_INITIALIZER;
static ncclUniqueId id;
static char *memory;
/* Memory that is no communicator, in any release. */
static char zeros[1 << 20];
#define NO_COMM ((ncclComm_t)zeros)

static int finish(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    while (comm && F(ncclCommGetAsyncError)(comm, &state) == 0 && state == ncclInProgress)
        usleep(1000);
    return state;
}

/* Leaves the groups in which a failed call has left this thread; starts nothing. */
static void leave_groups(void) {
    remember();
    for (int depth = 0; depth < 16; depth++) {
        F(ncclAllReduce)(NULL, NULL, 1, ncclFloat, ncclSum, NULL, STREAM);
        if (F(ncclGroupEnd)() == ncclInvalidUsage)
            return;
    }
}

static ncclComm_t make(const ncclConfig_t *config) {
    ncclConfig_t copy = config ? *config : UNSET;
    ncclComm_t comm = NULL;
    F(ncclGetUniqueId)(&id);
    int code = dlsym(opened, "ncclCommInitRankConfig") ? F(ncclCommInitRankConfig)(&comm, 1, id, 0, &copy)
                                                       : F(ncclCommInitRank)(&comm, 1, id, 0);
    if (code == ncclInProgress)
        code = finish(comm);
    if (code != 0) {
        leave_groups();
        return NULL;
    }
    return comm;
}

/* A communicator for the cases of a group; without one they are not run. */
static ncclComm_t need(void) {
    ncclComm_t comm = make(NULL);
    if (!comm || F(ncclMemAlloc)((void **)&memory, BYTES) != 0)
        _exit(2);
    return comm;
}

static void drop(ncclComm_t comm) {
    if (comm) {
        finish(comm);
        F(ncclCommDestroy)(comm);
    }
}

/* Initializes with a config, to the end. */
static int init(const void *config) {
    ncclComm_t comm = NULL;
    F(ncclGetUniqueId)(&id);
    int code = F(ncclCommInitRankConfig)(&comm, 1, id, 0, (ncclConfig_t *)(uintptr_t)config);
    int state = code == ncclInProgress ? finish(comm) : code;
    if (state == 0)
        drop(comm);
    leave_groups();
    return code;
}

/* Has a config read, in a group that then ends without starting anything. */
static int parse(const void *config) {
    static ncclComm_t comms[4096];
    static int used;
    ncclComm_t *comm = &comms[used++ % 4096];
    *comm = NULL;
    F(ncclGroupStart)();
    int code = F(ncclCommInitRankConfig)(comm, 1, id, 0, (ncclConfig_t *)(uintptr_t)config);
    leave_groups();
    return code;
}

/* A struct of `size` bytes just before memory that cannot be accessed: who reads beyond it crashes. */
static void *at_edge(const void *value, size_t whole, size_t size) {
    static char *pages;
    if (!pages) {
        pages = mmap(NULL, 2 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mprotect(pages + 4096, 4096, PROT_NONE);
    }
    char *start = pages + 4096 - (size + 7) / 8 * 8;
    memset(pages, 0x5a, 4096);
    memcpy(start, value, size < whole ? size : whole);
    return start;
}

/* ---- Configs of communicators -------------------------------------------------------------------------- */

#define FIELD(name) {#name, offsetof(ncclConfig_t, name)}
static const struct {
    const char *name;
    size_t offset;
} FIELDS[] = {
    FIELD(blocking), FIELD(cgaClusterSize), FIELD(minCTAs), FIELD(maxCTAs), FIELD(splitShare), FIELD(trafficClass),
    FIELD(collnetEnable), FIELD(CTAPolicy), FIELD(shrinkShare), FIELD(nvlsCTAs), FIELD(nChannelsPerNetPeer),
    FIELD(nvlinkCentricSched), FIELD(graphUsageMode), FIELD(numRmaCtx), FIELD(maxP2pPeers), FIELD(graphStreamOrdering),
    FIELD(launchOrderImplicit), FIELD(numRmaSig), FIELD(rmaEagerInit), FIELD(hostCftMode), FIELD(nvlsHostMode),
};
#define NFIELDS (sizeof(FIELDS) / sizeof(*FIELDS))

static void set(ncclConfig_t *config, size_t field, int value) {
    memcpy((char *)config + FIELDS[field].offset, &value, sizeof(value));
}

static void config_values(void) {
    F(ncclGetUniqueId)(&id);
    static const int values[] = {INT_MIN + 1, -2, -1, 0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 64, 65, 256, 1000, INT_MAX - 1, INT_MAX};
    for (size_t field = 0; field < NFIELDS; field++)
        for (size_t value = 0; value < sizeof(values) / sizeof(*values); value++) {
            ncclConfig_t config = UNSET;
            set(&config, field, values[value]);
            CASE(("config %s=%d", FIELDS[field].name, values[value]), parse(&config));
        }
    static const int ranges[][2] = {{1, 1}, {4, 4}, {4, 8}, {5, 4}, {2, 1}, {64, 65}, {65, 64}, {1000, 1000}, {1000, 64},
                                    {0, 4}, {4, 0}, {-1, 4}, {4, -1}, {1, INT_MAX}, {INT_MAX, INT_MAX}};
    for (size_t range = 0; range < sizeof(ranges) / sizeof(*ranges); range++) {
        ncclConfig_t config = UNSET;
        config.minCTAs = ranges[range][0], config.maxCTAs = ranges[range][1];
        CASE(("config minCTAs=%d maxCTAs=%d", config.minCTAs, config.maxCTAs), parse(&config));
    }
    static const int signals[][2] = {{0, 1}, {0, 16}, {1, 16}, {2, 8}, {4, 4}, {16, 1}, {8, 8}, {16, 16}, {1000, 1000}, {INT_MAX, 2}};
    for (size_t pair = 0; pair < sizeof(signals) / sizeof(*signals); pair++) {
        ncclConfig_t config = UNSET;
        config.numRmaCtx = signals[pair][0], config.numRmaSig = signals[pair][1];
        CASE(("config numRmaCtx=%d numRmaSig=%d", config.numRmaCtx, config.numRmaSig), parse(&config));
    }
    for (int usage = 0; usage < 3; usage++) {
        ncclConfig_t config = UNSET;
        config.graphUsageMode = usage, config.graphStreamOrdering = 0;
        CASE(("config graphUsageMode=%d graphStreamOrdering=0", usage), parse(&config));
    }
    ncclConfig_t config = UNSET;
    config.numRmaSig = 2, config.rmaEagerInit = 1, config.numRmaCtx = 0;
    CASE(("config numRmaCtx=0 rmaEagerInit=1"), parse(&config));
    CASE(("config NULL"), parse(NULL));
}

/* From which version on a field counts: an invalid value of it in a whole struct of each version. */
static void config_versions(void) {
    F(ncclGetUniqueId)(&id);
    static const unsigned versions[] = {0,     21304, 21400, 21605, 21700, 21803, 22403, 22500, 22605, 22700, 22707,  22800,  22809,
                                        22900, 22907, 23000, 23004, 23005, 23007, 23100, 23102, 23200, 23203, 999999, UINT_MAX};
    for (size_t field = 0; field < NFIELDS; field++)
        for (size_t version = 0; version < sizeof(versions) / sizeof(*versions); version++) {
            ncclConfig_t config = UNSET;
            config.version = versions[version];
            set(&config, field, -7);
            CASE(("version %u %s=-7", config.version, FIELDS[field].name), parse(&config));
        }
    for (size_t version = 0; version < sizeof(versions) / sizeof(*versions); version++) {
        ncclConfig_t config = UNSET;
        config.version = versions[version];
        config.minCTAs = 4;
        CASE(("version %u minCTAs=4", config.version), parse(&config));
    }
}

/* The structs of old releases, with what a program leaves in their padding. */
static void config_sizes(void) {
    F(ncclGetUniqueId)(&id);
    static const struct {
        unsigned version, size, padding;
    } releases[] = {{21403, 24, 20}, {21605, 24, 20}, {21701, 40, 40}, {21801, 48, 44}, {22403, 48, 44}, {22602, 48, 48},
                    {22707, 72, 72}, {22809, 80, 80}, {22907, 88, 88}, {23003, 96, 92}, {23004, 96, 92}, {23007, 96, 96},
                    {23102, 112, 112}, {23203, 120, 116}};
    for (size_t release = 0; release < sizeof(releases) / sizeof(*releases); release++) {
        unsigned size = releases[release].size, padding = releases[release].padding;
        ncclConfig_t config = UNSET;
        config.version = releases[release].version, config.size = size;
        CASE(("size %u of %u", size, config.version), parse(at_edge(&config, sizeof(config), size)));
        memset((char *)&config + padding, 0xa5, size - padding);
        if (padding < size)
            CASE(("size %u of %u garbage in the padding", size, config.version), parse(at_edge(&config, sizeof(config), size)));
    }
    for (size_t size = 0; size <= sizeof(ncclConfig_t) + 16; size += 4) {
        struct {
            ncclConfig_t config;
            char more[64];
        } longer;
        memset(&longer, 0x5a, sizeof(longer));
        longer.config = UNSET, longer.config.size = size;
        CASE(("size %zu", size), parse(at_edge(&longer, sizeof(longer), size < 16 ? 16 : size)));
    }
    ncclConfig_t config = UNSET;
    config.size = SIZE_MAX;
    CASE(("size SIZE_MAX"), parse(&config));
    for (unsigned magic = 0; magic < 3; magic++) {
        config = UNSET, config.magic = magic ? NCCL_API_MAGIC + 2 * magic - 3 : 0;
        CASE(("magic %#x", config.magic), parse(&config));
    }
    /* Names beyond the version: garbage that an old program leaves there. */
    for (unsigned version = 21700; version <= 22700; version += 500) {
        config = UNSET, config.version = version;
        config.commName = "a name";
        CASE(("version %u commName", version), parse(&config));
    }
    config = UNSET, config.version = 21605;
    config.netName = (const char *)1;
    CASE(("version 21605 netName=0x1"), parse(&config));
}

static void config_garbage_name(void) {
    ncclConfig_t config = UNSET;
    config.version = 22203, config.commName = (const char *)1;
    CASE(("init version 22203 commName=0x1"), init(&config));
    config = UNSET, config.version = 22203, config.size = 48;
    config.commName = (const char *)1;
    CASE(("init size 48 of 22203"), init(&config));
}

/* Whole initializations: what the first check lets through and the second may not. */
static void inits(void) {
    CASE(("init NULL"), init(NULL));
#define INIT(change) \
    do { \
        ncclConfig_t c = UNSET; \
        change; \
        CASE(("init " #change), init(&c)); \
    } while (0)
    INIT(c.blocking = 1);
    INIT(c.blocking = 0);
    INIT(c.cgaClusterSize = 8);
    INIT(c.cgaClusterSize = 9);
    INIT(c.maxCTAs = 1);
    INIT(c.maxCTAs = 1000);
    INIT(c.nvlsCTAs = 1000);
    INIT(c.nChannelsPerNetPeer = 64);
    INIT(c.numRmaCtx = 0);
    INIT(c.numRmaCtx = 1);
    INIT(c.numRmaCtx = 16);
    INIT(c.numRmaCtx = 17);
    INIT(c.numRmaCtx = 64);
    INIT(c.numRmaSig = 0);
    INIT(c.numRmaSig = 16);
    INIT(c.numRmaSig = 17);
    INIT(c.numRmaSig = 64);
    INIT((c.numRmaCtx = 4, c.numRmaSig = 4));
    INIT((c.numRmaCtx = 8, c.numRmaSig = 8));
    INIT(c.rmaEagerInit = 1);
    INIT((c.rmaEagerInit = 1, c.numRmaCtx = 0));
    INIT((c.rmaEagerInit = 1, c.numRmaSig = 16));
    INIT((c.rmaEagerInit = 1, c.numRmaCtx = 2, c.numRmaSig = 8));
    INIT((c.rmaEagerInit = 1, c.numRmaCtx = 8, c.numRmaSig = 8));
    INIT((c.rmaEagerInit = 1, c.numRmaCtx = 64, c.numRmaSig = 64));
    INIT(c.hostCftMode = 1);
    INIT(c.hostCftMode = 2);
    INIT(c.hostCftMode = 3);
    INIT(c.nvlsHostMode = INT_MAX);
    INIT(c.CTAPolicy = 3);
    INIT(c.maxP2pPeers = 1);
    INIT(c.trafficClass = -5);
    INIT(c.collnetEnable = 1);
    INIT(c.netName = "Socket");
    INIT(c.netName = "nosuch");
    INIT(c.netName = "");
    INIT(c.commName = "");
    INIT((c.graphUsageMode = 2, c.graphStreamOrdering = 0));
}

/* ---- Creating communicators ---------------------------------------------------------------------------- */

static int init_rank(int ranks, int rank) {
    static ncclComm_t comms[64];
    static int used;
    F(ncclGroupStart)();
    int code = F(ncclCommInitRank)(&comms[used++ % 64], ranks, id, rank);
    leave_groups();
    return code;
}

static int scalable(int ranks, int rank, int ids) {
    static ncclComm_t comms[64];
    static int used;
    ncclUniqueId all[4] = {id, id, id, id};
    F(ncclGroupStart)();
    int code = F(ncclCommInitRankScalable)(&comms[used++ % 64], ranks, rank, ids, all, NULL);
    leave_groups();
    return code;
}

static int init_all(int number, const int *devices) {
    ncclComm_t comms[128] = {NULL};
    int code = F(ncclCommInitAll)(comms, number, devices);
    for (int rank = 0; code == 0 && rank < number; rank++)
        F(ncclCommAbort)(comms[rank]);
    leave_groups();
    return code;
}

static void creation(void) {
    F(ncclGetUniqueId)(&id);
    CASE(("ncclGetVersion NULL"), F(ncclGetVersion)(NULL));
    CASE(("ncclGetUniqueId NULL"), F(ncclGetUniqueId)(NULL));
    CASE(("ncclCommInitRank comm=NULL"), (F(ncclCommInitRank)(NULL, 1, id, 0)));
    leave_groups();
    static const int ranks[][2] = {{0, 0}, {-1, 0}, {1, -1}, {1, 1}, {2, 2}, {2, 1}, {INT_MIN, 0}, {4, INT_MAX}};
    for (size_t pair = 0; pair < sizeof(ranks) / sizeof(*ranks); pair++)
        CASE(("ncclCommInitRank nranks=%d rank=%d", ranks[pair][0], ranks[pair][1]), init_rank(ranks[pair][0], ranks[pair][1]));
    for (int ids = -1; ids <= 3; ids++)
        CASE(("ncclCommInitRankScalable nranks=2 nId=%d", ids), scalable(2, 0, ids));
    CASE(("ncclCommInitRankScalable nranks=0 nId=0"), scalable(0, 0, 0));
    CASE(("ncclCommInitRankScalable nranks=2 myrank=2 nId=1"), scalable(2, 2, 1));
    CASE(("ncclCommInitAll comms=NULL"), F(ncclCommInitAll)(NULL, 1, NULL));
    leave_groups();
    CASE(("ncclCommInitAll ndev=-1"), init_all(-1, NULL));
    CASE(("ncclCommInitAll ndev=100"), init_all(100, NULL));
    int devices[4] = {-1};
    CASE(("ncclCommInitAll device=-1"), init_all(1, devices));
    devices[0] = 1000;
    CASE(("ncclCommInitAll device=1000"), init_all(1, devices));
    devices[0] = 0;
    CASE(("ncclCommInitAll devices=0,0"), init_all(2, devices));
    CASE(("ncclCommInitAll ndev=1"), init_all(1, devices));
}

static void creation_alone(void) {
    F(ncclGetUniqueId)(&id);
    CASE(("ncclCommInitAll ndev=0"), init_all(0, NULL));
    CASE(("ncclCommInitAll ndev=0 devices"), init_all(0, (int[]){0}));
    ncclComm_t comm = NULL;
    if (begin("ncclCommInitRankConfig comm=NULL")) {
        ncclConfig_t config = UNSET;
        end(F(ncclCommInitRankConfig)(NULL, 1, id, 0, &config));
    }
    CASE(("ncclCommInitRankScalable commIds=NULL"), F(ncclCommInitRankScalable)(&comm, 1, 0, 1, NULL, NULL));
    if (begin("group of a blocking and a nonblocking init")) {
        ncclComm_t comms[2] = {NULL, NULL};
        ncclConfig_t config = UNSET;
        ncclUniqueId other;
        F(ncclGetUniqueId)(&other);
        F(ncclGroupStart)();
        F(ncclCommInitRankConfig)(&comms[0], 1, id, 0, &config);
        config.blocking = 0;
        end(F(ncclCommInitRankConfig)(&comms[1], 1, other, 0, &config));
    }
}

/* ---- Queries, ends, NULL and foreign communicators ----------------------------------------------------- */

static void device_api(void) {
    void *pointer = NULL;
    const ncclMultimemHandle_t multimem = {zeros};
    const ncclTeam_t team = {1, 0, 1};
    ncclCftLeId endpoint = 0;
    size_t offset = 0;
    ncclWindow_t windows[2] = {NULL, (ncclWindow_t)zeros};
    for (int kind = 0; kind < 2; kind++) {
        ncclWindow_t window = windows[kind];
        const char *what = kind ? "zeros" : "NULL";
#define IN(function, call) CASE((#function " window=%s", what), F(function) call)
        IN(ncclGetPeerDevicePointer, (window, 0, 0, &pointer));
        IN(ncclGetLsaDevicePointer, (window, 0, 0, &pointer));
        IN(ncclGetLsaMultimemDevicePointer, (window, 0, &pointer));
        IN(ncclGetMultimemDevicePointer, (window, 0, multimem, &pointer));
        IN(ncclGetMultimemDeviceLeInfo, (window, 0, &endpoint, &offset));
        IN(ncclGetCftDeviceLeInfo, (window, 0, 0, team, &endpoint, &offset));
        IN(ncclGetPeerDeviceLeInfo, (window, 0, 0, &endpoint, &offset));
#undef IN
    }
    CASE(("ncclTeamWorld comm=NULL"), F(ncclTeamWorld)(NULL).nRanks);
    CASE(("ncclTeamLsa comm=NULL"), F(ncclTeamLsa)(NULL).nRanks);
    CASE(("ncclTeamRail comm=NULL"), F(ncclTeamRail)(NULL).nRanks);
    CASE(("ncclTeamCft comm=NULL"), F(ncclTeamCft)(NULL, NCCL_CFT_TEAM_FLAT).nRanks);
    CASE(("ncclTeamCftMultimem comm=NULL"), F(ncclTeamCftMultimem)(NULL).nRanks);
}

static void null_comm(void) {
    ncclComm_t comms[2] = {NULL, NO_COMM}, child = NULL;
    for (int kind = 0; kind < 2; kind++) {
        ncclComm_t comm = comms[kind];
        const char *what = kind ? "zeros" : "NULL";
        int value = 0, list[1] = {0};
        uint64_t number = 0;
        ncclResult_t state;
        void *pointer = NULL;
        ncclWindow_t window = NULL;
        ncclUniqueId other;
        float buffer[4] = {0};
        Properties properties = PROPERTIES(NCCL_API_MAGIC, NCCL_VERSION_CODE);
        ncclDevCommRequirements_t requirements = {
            .size = sizeof(requirements), .magic = NCCL_API_MAGIC, .version = NCCL_VERSION_CODE};
        ncclDevComm_t device_comm;
        memset(&device_comm, 0, sizeof(device_comm));
        ncclWaitSignalDesc_t signal = {1, 0, 0, 0};
        ncclRedOp_t op = ncclSum;
#define ON(function, call) \
    do { \
        CASE((#function " comm=%s", what), F(function) call); \
        leave_groups(); \
    } while (0)
        ON(ncclCommCount, (comm, &value));
        ON(ncclCommCuDevice, (comm, &value));
        ON(ncclCommUserRank, (comm, &value));
        ON(ncclCommGetAsyncError, (comm, &state));
        ON(ncclCommMemStats, (comm, ncclStatGpuMemTotal, &number));
        ON(ncclCommQueryProperties, (comm, &properties.known));
        ON(ncclDevCommCreate, (comm, &requirements, &device_comm));
        ON(ncclDevCommDestroy, (comm, &device_comm));
        ON(ncclCommRegister, (comm, buffer, sizeof(buffer), &pointer));
        ON(ncclCommDeregister, (comm, NULL));
        ON(ncclCommWindowRegister, (comm, buffer, sizeof(buffer), &window, 0));
        ON(ncclCommWindowDeregister, (comm, NULL));
        ON(ncclWinGetUserPtr, (comm, NULL, &pointer));
        ON(ncclCommSuspend, (comm, NCCL_SUSPEND_MEM));
        ON(ncclCommResume, (comm));
        ON(ncclCommGetUniqueId, (comm, &other));
        ON(ncclCommSplit, (comm, 0, 0, &child, NULL));
        ON(ncclRedOpCreatePreMulSum, (&op, buffer, ncclFloat, ncclScalarHostImmediate, comm));
        ON(ncclAllReduce, (buffer, buffer, 4, ncclFloat, ncclSum, comm, STREAM));
        ON(ncclReduce, (buffer, buffer, 4, ncclFloat, ncclSum, 0, comm, STREAM));
        ON(ncclBroadcast, (buffer, buffer, 4, ncclFloat, 0, comm, STREAM));
        ON(ncclBcast, (buffer, 4, ncclFloat, 0, comm, STREAM));
        ON(ncclReduceScatter, (buffer, buffer, 4, ncclFloat, ncclSum, comm, STREAM));
        ON(ncclAllGather, (buffer, buffer, 4, ncclFloat, comm, STREAM));
        ON(ncclAlltoAll, (buffer, buffer, 4, ncclFloat, comm, STREAM));
        ON(ncclGather, (buffer, buffer, 4, ncclFloat, 0, comm, STREAM));
        ON(ncclScatter, (buffer, buffer, 4, ncclFloat, 0, comm, STREAM));
        ON(ncclSend, (buffer, 4, ncclFloat, 0, comm, STREAM));
        ON(ncclRecv, (buffer, 4, ncclFloat, 0, comm, STREAM));
        ON(ncclAllReduceConfig, (buffer, buffer, 4, ncclFloat, ncclSum, comm, STREAM, NULL));
        ON(ncclPutSignal, (buffer, 4, ncclFloat, 0, NULL, 0, 0, 0, 0, comm, STREAM));
        ON(ncclSignal, (0, 0, 0, 0, comm, STREAM));
        ON(ncclWaitSignal, (1, &signal, comm, STREAM));
        if (!kind) {
            ON(ncclCommFinalize, (comm));
            ON(ncclCommDestroy, (comm));
            ON(ncclCommAbort, (comm));
            ON(ncclCommRevoke, (comm, 0));
            CASE(("ncclCommRevoke comm=NULL flags=1"), F(ncclCommRevoke)(NULL, 1));
            ON(ncclRedOpDestroy, ((ncclRedOp_t)5, comm));
            list[0] = 0;
        }
        CASE(("ncclCommShrink comm=%s", what), F(ncclCommShrink)(comm, list, 1, &child, NULL, 0));
        leave_groups();
    }
}

static void queries(void) {
    ncclComm_t comm = need();
    CASE(("ncclCommCount count=NULL"), F(ncclCommCount)(comm, NULL));
    CASE(("ncclCommCuDevice device=NULL"), F(ncclCommCuDevice)(comm, NULL));
    CASE(("ncclCommUserRank rank=NULL"), F(ncclCommUserRank)(comm, NULL));
    CASE(("ncclCommGetAsyncError asyncError=NULL"), F(ncclCommGetAsyncError)(comm, NULL));
    CASE(("ncclCommMemStats value=NULL"), F(ncclCommMemStats)(comm, ncclStatGpuMemTotal, NULL));
    for (int stat = -1; stat <= 5; stat++) {
        uint64_t value = 0;
        CASE(("ncclCommMemStats stat=%d", stat), F(ncclCommMemStats)(comm, (ncclCommMemStat_t)stat, &value));
    }
    CASE(("ncclCommMemStats stat=9 value=NULL"), F(ncclCommMemStats)(comm, (ncclCommMemStat_t)9, NULL));
    CASE(("ncclCommGetUniqueId uniqueId=NULL"), F(ncclCommGetUniqueId)(comm, NULL));
    CASE(("ncclCommQueryProperties props=NULL"), F(ncclCommQueryProperties)(comm, NULL));
    static const unsigned versions[] = {0, 22809, 22900, 22901, 22902, 22903, 22907, 23003, 23007, 23102, 23200, 23203, 23204, 999999};
    for (size_t version = 0; version < sizeof(versions) / sizeof(*versions); version++) {
        Properties properties = PROPERTIES(NCCL_API_MAGIC, versions[version]);
        CASE(("ncclCommQueryProperties version=%u", versions[version]), F(ncclCommQueryProperties)(comm, &properties.known));
    }
    Properties properties = PROPERTIES(0, NCCL_VERSION_CODE);
    CASE(("ncclCommQueryProperties magic=0"), F(ncclCommQueryProperties)(comm, &properties.known));
    properties.known.magic = NCCL_API_MAGIC;
    for (size_t size = 0; size <= 64; size += 16) {
        properties.known.size = size;
        CASE(("ncclCommQueryProperties size=%zu", size), F(ncclCommQueryProperties)(comm, &properties.known));
    }
    drop(comm);
}

static void endings(void) {
    ncclComm_t comm = need();
    float buffer[4];
    CASE(("ncclCommRevoke flags=1"), F(ncclCommRevoke)(comm, 1));
    CASE(("ncclCommRevoke flags=-1"), F(ncclCommRevoke)(comm, -1));
    F(ncclCommFinalize)(comm);
    CASE(("ncclCommFinalize twice"), F(ncclCommFinalize)(comm));
    leave_groups();
    CASE(("ncclCommRevoke after ncclCommFinalize"), F(ncclCommRevoke)(comm, 0));
    leave_groups();
    CASE(("ncclCommDestroy after ncclCommFinalize"), F(ncclCommDestroy)(comm));
    comm = need();
    F(ncclCommRevoke)(comm, 0);
    finish(comm);
    CASE(("ncclCommRevoke twice"), F(ncclCommRevoke)(comm, 0));
    leave_groups();
    CASE(("ncclCommFinalize after ncclCommRevoke"), F(ncclCommFinalize)(comm));
    leave_groups();
    CASE(("ncclAllReduce after ncclCommRevoke"), F(ncclAllReduce)(memory, memory, 4, ncclFloat, ncclSum, comm, STREAM));
    CASE(("ncclAllReduce count=0 after ncclCommRevoke"), F(ncclAllReduce)(buffer, buffer, 0, ncclFloat, ncclSum, comm, STREAM));
    CASE(("ncclSend peer=9 after ncclCommRevoke"), F(ncclSend)(memory, 4, ncclFloat, 9, comm, STREAM));
    leave_groups();
    int count;
    CASE(("ncclCommCount after ncclCommRevoke"), F(ncclCommCount)(comm, &count));
    ncclRedOp_t op;
    CASE(("ncclRedOpCreatePreMulSum after ncclCommRevoke"),
         F(ncclRedOpCreatePreMulSum)(&op, buffer, ncclFloat, ncclScalarHostImmediate, comm));
    ncclComm_t child = NULL;
    CASE(("ncclCommSplit after ncclCommRevoke"), F(ncclCommSplit)(comm, 0, 0, &child, NULL));
    leave_groups();
    CASE(("ncclCommDestroy after ncclCommRevoke"), F(ncclCommDestroy)(comm));
}

static void endings_alone(void) {
    ncclComm_t comm = need();
    if (begin("ncclAllReduce after ncclCommFinalize")) {
        F(ncclCommFinalize)(comm);
        end(F(ncclAllReduce)(memory, memory, 4, ncclFloat, ncclSum, comm, STREAM));
    }
    if (begin("ncclCommSplit after ncclCommFinalize")) {
        ncclComm_t child = NULL;
        F(ncclCommFinalize)(comm);
        end(F(ncclCommSplit)(comm, 0, 0, &child, NULL));
    }
    if (begin("ncclCommCount after ncclCommFinalize")) {
        int count;
        F(ncclCommFinalize)(comm);
        end(F(ncclCommCount)(comm, &count));
    }
    if (begin("ncclCommRegister after ncclCommFinalize")) {
        void *handle = NULL;
        F(ncclCommFinalize)(comm);
        end(F(ncclCommRegister)(comm, memory, BYTES, &handle));
    }
}

/* ---- Children ------------------------------------------------------------------------------------------ */

/* Splits, and destroys the child. */
static int split(ncclComm_t comm, int color, int key, ncclConfig_t *config) {
    ncclComm_t *child = calloc(1, sizeof(*child));
    int code = F(ncclCommSplit)(comm, color, key, child, config);
    if (code == 0 && *child)
        drop(*child);
    leave_groups();
    return code;
}

static void children(void) {
    ncclComm_t comm = need();
    ncclComm_t child = NULL;
    CASE(("ncclCommSplit newcomm=NULL"), F(ncclCommSplit)(comm, 0, 0, NULL, NULL));
    leave_groups();
    for (int color = -1; color <= 1; color++)
        CASE(("ncclCommSplit color=%d", color), split(comm, color, 0, NULL));
    CASE(("ncclCommSplit color=INT_MAX"), split(comm, INT_MAX, 0, NULL));
    CASE(("ncclCommSplit color=-2"), split(comm, -2, 0, NULL));
    CASE(("ncclCommSplit color=INT_MIN"), split(comm, INT_MIN, 0, NULL));
    CASE(("ncclCommSplit key=-1"), split(comm, 0, -1, NULL));
    CASE(("ncclCommSplit key=INT_MIN"), split(comm, 0, INT_MIN, NULL));
#define SPLIT(name, change) \
    do { \
        ncclConfig_t c = UNSET; \
        change; \
        CASE(("ncclCommSplit " name), split(comm, 0, 0, &c)); \
        CASE(("ncclCommSplit color=-1 " name), split(comm, -1, 0, &c)); \
    } while (0)
    SPLIT("config", c.blocking = 1);
    SPLIT("config magic=0", c.magic = 0);
    SPLIT("config minCTAs=4", c.minCTAs = 4);
    SPLIT("config numRmaCtx=0", c.numRmaCtx = 0);
    SPLIT("config splitShare=2", c.splitShare = 2);
    SPLIT("config splitShare=1", c.splitShare = 1);
    CASE(("ncclCommShrink newcomm=NULL"), F(ncclCommShrink)(comm, (int[]){0}, 1, NULL, NULL, 0));
    leave_groups();
    CASE(("ncclCommShrink list=NULL"), F(ncclCommShrink)(comm, NULL, 1, &child, NULL, 0));
    leave_groups();
    CASE(("ncclCommShrink count=0"), F(ncclCommShrink)(comm, (int[]){0}, 0, &child, NULL, 0));
    leave_groups();
    CASE(("ncclCommShrink count=-1"), F(ncclCommShrink)(comm, (int[]){0}, -1, &child, NULL, 0));
    leave_groups();
    CASE(("ncclCommShrink itself"), F(ncclCommShrink)(comm, (int[]){0}, 1, &child, NULL, 0));
    leave_groups();
    CASE(("ncclCommShrink itself flags=8"), F(ncclCommShrink)(comm, (int[]){0}, 1, &child, NULL, 8));
    leave_groups();
    CASE(("ncclCommShrink list=NULL count=0"), F(ncclCommShrink)(comm, NULL, 0, &child, NULL, 0));
    leave_groups();
#define GROW(name, ...) \
    do { \
        CASE(("ncclCommGrow " name), F(ncclCommGrow)(__VA_ARGS__)); \
        leave_groups(); \
    } while (0)
    GROW("newcomm=NULL", comm, 2, NULL, -1, NULL, NULL);
    GROW("nRanks=0", comm, 0, NULL, -1, &child, NULL);
    GROW("nRanks=-1", comm, -1, NULL, -1, &child, NULL);
    GROW("nRanks=1", comm, 1, NULL, -1, &child, NULL);
    GROW("rank=0", comm, 2, NULL, 0, &child, NULL);
    GROW("rank=-2", comm, 2, NULL, -2, &child, NULL);
    GROW("of a new rank nRanks=0", NULL, 0, &id, 0, &child, NULL);
    GROW("of a new rank uniqueId=NULL", NULL, 2, NULL, 1, &child, NULL);
    GROW("of a new rank rank=-1", NULL, 2, &id, -1, &child, NULL);
    GROW("of a new rank rank=nRanks", NULL, 2, &id, 2, &child, NULL);
    drop(comm);
}

static void children_alone(void) {
    ncclComm_t comm = need(), child = NULL;
    CASE(("ncclCommShrink rank=5 of 1"), F(ncclCommShrink)(comm, (int[]){5}, 1, &child, NULL, 0));
    CASE(("ncclCommShrink rank=-1 of 1"), F(ncclCommShrink)(comm, (int[]){-1}, 1, &child, NULL, 0));
    ncclUniqueId first, second;
    if (begin("ncclCommGetUniqueId")) {
        end(F(ncclCommGetUniqueId)(comm, &first));
    }
    if (begin("ncclCommGetUniqueId twice")) {
        F(ncclCommGetUniqueId)(comm, &first);
        end(F(ncclCommGetUniqueId)(comm, &second));
    }
    if (begin("ncclCommGrow of a new rank config")) {
        ncclConfig_t config = UNSET;
        F(ncclGroupStart)();
        end(F(ncclCommGrow)(NULL, 2, &id, 1, &child, &config));
    }
    if (begin("ncclCommGrow of a new rank config minCTAs=4")) {
        ncclConfig_t config = UNSET;
        config.minCTAs = 4;
        F(ncclGroupStart)();
        end(F(ncclCommGrow)(NULL, 2, &id, 1, &child, &config));
    }
}

/* Two ranks of one thread, on one device. */
static void two_ranks(void) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    ncclComm_t comms[2] = {NULL, NULL}, child = NULL;
    if (F(ncclCommInitAll)(comms, 2, (int[]){0, 0}) != 0 || F(ncclMemAlloc)((void **)&memory, BYTES) != 0)
        _exit(2);
#define SHRINK(name, list, number, flags) \
    do { \
        int excluded[] = list; \
        if (begin("ncclCommShrink of 2 " name)) { \
            child = NULL; \
            end(F(ncclCommShrink)(comms[0], excluded, number, &child, NULL, flags)); \
        } \
    } while (0)
#define LIST(...) {__VA_ARGS__}
    SHRINK("rank=1", LIST(1), 1, 0);
    SHRINK("rank=1 flags=2", LIST(1), 1, 2);
    SHRINK("rank=1 flags=3", LIST(1), 1, 3);
    SHRINK("rank=1 flags=-1", LIST(1), 1, -1);
    SHRINK("rank=1 abort", LIST(1), 1, 1);
    SHRINK("itself", LIST(0), 1, 0);
    SHRINK("rank=1 twice", LIST(1, 1), 2, 0);
    SHRINK("both", LIST(1, 0), 2, 0);
    SHRINK("rank=2", LIST(2), 1, 0);
    SHRINK("rank=-1", LIST(-1), 1, 0);
    SHRINK("count=3", LIST(1, 2, 3), 3, 0);
    if (begin("ncclBroadcast of 2 root=2"))
        end(F(ncclBroadcast)(memory, memory, 4, ncclFloat, 2, comms[0], STREAM));
    if (begin("ncclSend of 2 peer=2"))
        end(F(ncclSend)(memory, 4, ncclFloat, 2, comms[0], STREAM));
    if (begin("ncclCommGrow of 2 nRanks=2"))
        end(F(ncclCommGrow)(comms[0], 2, NULL, -1, &child, NULL));
}

/* ---- Operations ---------------------------------------------------------------------------------------- */

static void collectives(void) {
    ncclComm_t comm = need(), other = make(NULL);
    char *out = memory + BYTES / 2;
    static const int types[] = {-1, 12, 13, 1000};
    static const int ops[] = {-1, 5, 6, 100, INT_MAX};
    static const int roots[] = {-1, 0, 1, INT_MIN, INT_MAX};
    for (size_t count = 0; count <= 4; count += 4) {
#define EACH(values, member) for (size_t at = 0; at < sizeof(values) / sizeof(*values); at++) if ((member = values[at]), 1)
#define COLL(name, ...) CASE(("nccl" name, count, value), __VA_ARGS__)
        int value;
        EACH(types, value) {
            ncclDataType_t type = (ncclDataType_t)value;
            COLL("AllReduce count=%zu type=%d", F(ncclAllReduce)(memory, out, count, type, ncclSum, comm, STREAM));
            COLL("Reduce count=%zu type=%d", F(ncclReduce)(memory, out, count, type, ncclSum, 0, comm, STREAM));
            COLL("Broadcast count=%zu type=%d", F(ncclBroadcast)(memory, out, count, type, 0, comm, STREAM));
            COLL("Bcast count=%zu type=%d", F(ncclBcast)(memory, count, type, 0, comm, STREAM));
            COLL("ReduceScatter count=%zu type=%d", F(ncclReduceScatter)(memory, out, count, type, ncclSum, comm, STREAM));
            COLL("AllGather count=%zu type=%d", F(ncclAllGather)(memory, out, count, type, comm, STREAM));
            COLL("AlltoAll count=%zu type=%d", F(ncclAlltoAll)(memory, out, count, type, comm, STREAM));
            COLL("Gather count=%zu type=%d", F(ncclGather)(memory, out, count, type, 0, comm, STREAM));
            COLL("Scatter count=%zu type=%d", F(ncclScatter)(memory, out, count, type, 0, comm, STREAM));
            COLL("Send count=%zu type=%d", F(ncclSend)(memory, count, type, 0, comm, STREAM));
            COLL("Recv count=%zu type=%d", F(ncclRecv)(out, count, type, 0, comm, STREAM));
        }
        EACH(ops, value) {
            ncclRedOp_t op = (ncclRedOp_t)value;
            COLL("AllReduce count=%zu op=%d", F(ncclAllReduce)(memory, out, count, ncclFloat, op, comm, STREAM));
            COLL("Reduce count=%zu op=%d", F(ncclReduce)(memory, out, count, ncclFloat, op, 0, comm, STREAM));
            COLL("ReduceScatter count=%zu op=%d", F(ncclReduceScatter)(memory, out, count, ncclFloat, op, comm, STREAM));
        }
        EACH(roots, value) {
            COLL("Reduce count=%zu root=%d", F(ncclReduce)(memory, out, count, ncclFloat, ncclSum, value, comm, STREAM));
            COLL("Broadcast count=%zu root=%d", F(ncclBroadcast)(memory, out, count, ncclFloat, value, comm, STREAM));
            COLL("Bcast count=%zu root=%d", F(ncclBcast)(memory, count, ncclFloat, value, comm, STREAM));
            COLL("Gather count=%zu root=%d", F(ncclGather)(memory, out, count, ncclFloat, value, comm, STREAM));
            COLL("Scatter count=%zu root=%d", F(ncclScatter)(memory, out, count, ncclFloat, value, comm, STREAM));
            if (value != 0) {
                COLL("Send count=%zu peer=%d", F(ncclSend)(memory, count, ncclFloat, value, comm, STREAM));
                COLL("Recv count=%zu peer=%d", F(ncclRecv)(out, count, ncclFloat, value, comm, STREAM));
            }
        }
    }
    leave_groups();
    CASE(("ncclAllReduce count=0 buffers=NULL"), F(ncclAllReduce)(NULL, NULL, 0, ncclFloat, ncclSum, comm, STREAM));
    CASE(("ncclAllGather count=0 buffers=NULL"), F(ncclAllGather)(NULL, NULL, 0, ncclFloat, comm, STREAM));
    CASE(("ncclAllReduce count=4"), F(ncclAllReduce)(memory, out, 4, ncclFloat, ncclSum, comm, STREAM));
    for (int type = 0; type < 12; type++) {
        CASE(("ncclAllReduce type=%d ncclAvg", type), F(ncclAllReduce)(memory, out, 4, (ncclDataType_t)type, ncclAvg, comm, STREAM));
    }
    if (begin("ncclSend and ncclRecv count=0 buffers=NULL")) {
        F(ncclGroupStart)();
        F(ncclSend)(NULL, 0, ncclFloat, 0, comm, STREAM);
        F(ncclRecv)(NULL, 0, ncclFloat, 0, comm, STREAM);
        end(F(ncclGroupEnd)());
    }
    /* Reductions that a program makes. */
    float scalar = 2;
    ncclRedOp_t op, destroyed, foreign;
    F(ncclRedOpCreatePreMulSum)(&op, &scalar, ncclFloat, ncclScalarHostImmediate, comm);
    F(ncclRedOpCreatePreMulSum)(&destroyed, &scalar, ncclFloat, ncclScalarHostImmediate, comm);
    F(ncclRedOpDestroy)(destroyed, comm);
    F(ncclRedOpCreatePreMulSum)(&foreign, &scalar, ncclFloat, ncclScalarHostImmediate, other);
    for (size_t count = 0; count <= 4; count += 4) {
        CASE(("ncclAllReduce count=%zu own op", count), F(ncclAllReduce)(memory, out, count, ncclFloat, op, comm, STREAM));
        CASE(("ncclAllReduce count=%zu own op of another type", count), F(ncclAllReduce)(memory, out, count, ncclInt32, op, comm, STREAM));
        CASE(("ncclAllReduce count=%zu destroyed op", count), F(ncclAllReduce)(memory, out, count, ncclFloat, destroyed, comm, STREAM));
        CASE(("ncclAllReduce count=%zu op of another communicator", count), F(ncclAllReduce)(memory, out, count, ncclFloat, foreign, comm, STREAM));
    }
    leave_groups();
    for (int builtin = 0; builtin < 5; builtin++)
        CASE(("ncclRedOpDestroy op=%d", builtin), F(ncclRedOpDestroy)((ncclRedOp_t)builtin, comm));
    CASE(("ncclRedOpDestroy op=-1"), F(ncclRedOpDestroy)((ncclRedOp_t)-1, comm));
    CASE(("ncclRedOpDestroy op=INT_MAX"), F(ncclRedOpDestroy)((ncclRedOp_t)INT_MAX, comm));
    CASE(("ncclRedOpDestroy op=INT_MIN"), F(ncclRedOpDestroy)((ncclRedOp_t)INT_MIN, comm));
    CASE(("ncclRedOpDestroy destroyed"), F(ncclRedOpDestroy)(destroyed, comm));
    CASE(("ncclRedOpDestroy of another communicator"), F(ncclRedOpDestroy)(foreign, comm));
    CASE(("ncclRedOpDestroy"), F(ncclRedOpDestroy)(op, comm));
    CASE(("ncclRedOpDestroy builtin comm=NULL"), F(ncclRedOpDestroy)(ncclSum, NULL));
    for (int type = 12; type <= 13; type++)
        for (int residence = 0; residence <= 1; residence++) {
            CASE(("ncclRedOpCreatePreMulSum type=%d residence=%d", type, residence),
                 F(ncclRedOpCreatePreMulSum)(&op, residence ? (void *)&scalar : memory, (ncclDataType_t)type, (ncclScalarResidence_t)residence, comm));
        }
    for (int residence = -1; residence <= 2; residence++)
        CASE(("ncclRedOpCreatePreMulSum residence=%d", residence),
             F(ncclRedOpCreatePreMulSum)(&op, residence == 1 ? (void *)&scalar : memory, ncclFloat, (ncclScalarResidence_t)residence, comm));
    CASE(("ncclRedOpCreatePreMulSum residence=0 scalar=NULL"), F(ncclRedOpCreatePreMulSum)(&op, NULL, ncclFloat, ncclScalarDevice, comm));
    drop(other);
    drop(comm);
}

/* What may crash, or leave the device in an error. */
static void operations_alone(void) {
    ncclComm_t comm = need();
    char *out = memory + BYTES / 2;
    float scalar = 2;
    ncclRedOp_t op;
    CASE(("ncclRedOpCreatePreMulSum op=NULL"), F(ncclRedOpCreatePreMulSum)(NULL, &scalar, ncclFloat, ncclScalarHostImmediate, comm));
    CASE(("ncclRedOpCreatePreMulSum scalar=NULL"), F(ncclRedOpCreatePreMulSum)(&op, NULL, ncclFloat, ncclScalarHostImmediate, comm));
    CASE(("ncclAllReduce sendbuff=NULL"), F(ncclAllReduce)(NULL, out, 4, ncclFloat, ncclSum, comm, STREAM));
    CASE(("ncclAllReduce recvbuff=NULL"), F(ncclAllReduce)(memory, NULL, 4, ncclFloat, ncclSum, comm, STREAM));
    CASE(("ncclAllReduce buffers=NULL"), F(ncclAllReduce)(NULL, NULL, 4, ncclFloat, ncclSum, comm, STREAM));
    CASE(("ncclBroadcast buffers=NULL"), F(ncclBroadcast)(NULL, NULL, 4, ncclFloat, 0, comm, STREAM));
    CASE(("ncclAllReduce overlapping"), F(ncclAllReduce)(memory, memory + 4, 4, ncclFloat, ncclSum, comm, STREAM));
    CASE(("ncclAllReduce count=SIZE_MAX"), F(ncclAllReduce)(memory, out, SIZE_MAX, ncclFloat, ncclSum, comm, STREAM));
    CASE(("ncclAllReduce count=SIZE_MAX/4+1"), F(ncclAllReduce)(memory, memory, SIZE_MAX / 4 + 1, ncclFloat, ncclSum, comm, STREAM));
    CASE(("ncclAllReduce unaligned"), F(ncclAllReduce)(memory + 1, out + 1, 4, ncclFloat, ncclSum, comm, STREAM));
    CASE(("ncclMemAlloc ptr=NULL"), F(ncclMemAlloc)(NULL, 4096));
    void *pointer = NULL;
    CASE(("ncclMemAlloc size=0"), F(ncclMemAlloc)(&pointer, 0));
    CASE(("ncclMemAlloc size=SIZE_MAX"), F(ncclMemAlloc)(&pointer, SIZE_MAX));
    CASE(("ncclMemAlloc size=SIZE_MAX/2"), F(ncclMemAlloc)(&pointer, SIZE_MAX / 2));
    CASE(("ncclMemFree NULL"), F(ncclMemFree)(NULL));
    CASE(("ncclMemFree unknown"), F(ncclMemFree)(zeros));
    CASE(("ncclMemFree inside"), F(ncclMemFree)(memory + 4096));
    if (begin("ncclMemFree twice")) {
        F(ncclMemFree)(memory);
        end(F(ncclMemFree)(memory));
    }
}

/* With NCCL_CHECK_MODE, which has NCCL look at the buffers. */
static void operations_checked(void) {
    setenv("NCCL_CHECK_MODE", "DEBUG_LOCAL", 1);
    ncclComm_t comm = need();
    char *out = memory + BYTES / 2;
    void *handle = NULL;
    CASE(("checked ncclAllReduce sendbuff=NULL"), F(ncclAllReduce)(NULL, out, 4, ncclFloat, ncclSum, comm, STREAM));
    CASE(("checked ncclAllReduce recvbuff=NULL"), F(ncclAllReduce)(memory, NULL, 4, ncclFloat, ncclSum, comm, STREAM));
    CASE(("checked ncclAllReduce count=0 buffers=NULL"), F(ncclAllReduce)(NULL, NULL, 0, ncclFloat, ncclSum, comm, STREAM));
    CASE(("checked ncclSend buffer=NULL"), F(ncclSend)(NULL, 4, ncclFloat, 0, comm, STREAM));
    CASE(("checked ncclCommRegister buff=NULL"), F(ncclCommRegister)(comm, NULL, 4096, &handle));
}

static const ncclCollConfig_t COLL_UNSET = NCCL_COLLCONFIG_INITIALIZER;

static void collective_configs(void) {
    ncclComm_t comm = need();
    char *out = memory + BYTES / 2;
    for (size_t count = 4; count != (size_t)-4; count -= 4) {
        const char *none = count ? "" : "count=0 ";
#define WITH(config) F(ncclAllReduceConfig)(memory, out, count, ncclFloat, ncclSum, comm, STREAM, config)
#define COLL_CONFIG(name, change) \
    do { \
        ncclCollConfig_t c = COLL_UNSET; \
        change; \
        CASE(("coll config %s%s", none, name), WITH(&c)); \
        leave_groups(); \
    } while (0)
        CASE(("coll config %sNULL", none), WITH(NULL));
        COLL_CONFIG("unset", (void)c);
        COLL_CONFIG("magic=0", c.magic = 0);
        COLL_CONFIG("version=0", c.version = 0);
        COLL_CONFIG("version=23000", c.version = 23000);
        COLL_CONFIG("version=23100", c.version = 23100);
        COLL_CONFIG("version=23102", c.version = 23102);
        COLL_CONFIG("version=999999", c.version = 999999);
        static const int values[] = {INT_MIN + 1, -2, -1, 0, 1, 2, 3, 4, 5, 8, 9, 16, 64, 65, 1000, INT_MAX};
        for (size_t at = 0; at < sizeof(values) / sizeof(*values); at++) {
            char name[64];
            int value = values[at];
#define VALUE(field) \
    snprintf(name, sizeof(name), #field "=%d", value); \
    COLL_CONFIG(name, c.field = value)
            VALUE(minCTAs);
            VALUE(maxCTAs);
            VALUE(nvlsCTAs);
            VALUE(cgaClusterSize);
            VALUE(CTAPolicy);
            VALUE(forceAlgSelection);
        }
        COLL_CONFIG("forceAlgSelection=INT_MIN", c.forceAlgSelection = INT_MIN);
        COLL_CONFIG("minCTAs=4 maxCTAs=4", (c.minCTAs = 4, c.maxCTAs = 4));
        COLL_CONFIG("minCTAs=5 maxCTAs=4", (c.minCTAs = 5, c.maxCTAs = 4));
        COLL_CONFIG("minCTAs=1 maxCTAs=1000", (c.minCTAs = 1, c.maxCTAs = 1000));
        COLL_CONFIG("minCTAs=0 maxCTAs=4", (c.minCTAs = 0, c.maxCTAs = 4));
        static const char *const selections[] = {"", "ring", "RING", "Ring", "tree", "ring,tree", "^ring", "nosuch", "ring,nosuch", " ring", "pat", ","};
        for (size_t at = 0; at < sizeof(selections) / sizeof(*selections); at++) {
            char name[64];
            snprintf(name, sizeof(name), "algSelection='%s'", selections[at]);
            COLL_CONFIG(name, c.algSelection = selections[at]);
            snprintf(name, sizeof(name), "algSelection='%s' forceAlgSelection=0", selections[at]);
            COLL_CONFIG(name, (c.algSelection = selections[at], c.forceAlgSelection = 0));
        }
        COLL_CONFIG("userProfilerTag top bit", c.userProfilerTag = 1ull << 63);
        ncclConfigExt_t ext = {NULL, {-1, -1}, {0}};
        COLL_CONFIG("ext", c.ext = &ext);
        for (size_t size = 0; size <= sizeof(ncclCollConfig_t) + 8; size += 4)
            for (int old = 0; old < 2; old++) {
                char longer[sizeof(ncclCollConfig_t) + 64];
                ncclCollConfig_t c = COLL_UNSET;
                memset(longer, 0x5a, sizeof(longer));
                c.size = size;
                c.version = old ? 23102 : 23203;
                memcpy(longer, &c, sizeof(c));
                CASE(("coll config %ssize=%zu version=%u", none, size, c.version),
                     WITH(at_edge(longer, sizeof(longer), size < 16 ? 16 : size)));
                leave_groups();
            }
    }
    ncclCollConfig_t bad = COLL_UNSET;
    bad.minCTAs = 0;
#define ORDER(name, ...) \
    do { \
        CASE(("coll config bad " name), __VA_ARGS__); \
        leave_groups(); \
    } while (0)
    ORDER("comm=NULL", F(ncclAllReduceConfig)(memory, out, 4, ncclFloat, ncclSum, NULL, STREAM, &bad));
    ORDER("type=12", F(ncclAllReduceConfig)(memory, out, 4, (ncclDataType_t)12, ncclSum, comm, STREAM, &bad));
    ORDER("ncclBroadcastConfig", F(ncclBroadcastConfig)(memory, out, 4, ncclFloat, 0, comm, STREAM, &bad));
    ORDER("ncclReduceConfig", F(ncclReduceConfig)(memory, out, 4, ncclFloat, ncclSum, 0, comm, STREAM, &bad));
    ORDER("ncclAllGatherConfig", F(ncclAllGatherConfig)(memory, out, 4, ncclFloat, comm, STREAM, &bad));
    ORDER("ncclReduceScatterConfig", F(ncclReduceScatterConfig)(memory, out, 4, ncclFloat, ncclSum, comm, STREAM, &bad));
    ORDER("ncclAlltoAllConfig", F(ncclAlltoAllConfig)(memory, out, 4, ncclFloat, comm, STREAM, &bad));
    ORDER("ncclGatherConfig", F(ncclGatherConfig)(memory, out, 4, ncclFloat, 0, comm, STREAM, &bad));
    ORDER("ncclScatterConfig", F(ncclScatterConfig)(memory, out, 4, ncclFloat, 0, comm, STREAM, &bad));
    drop(comm);
}

static void collective_configs_alone(void) {
    ncclComm_t comm = need();
    char *out = memory + BYTES / 2;
    if (begin("coll config launchCompletionEvent=0x1")) {
        ncclCollConfig_t config = COLL_UNSET;
        config.launchCompletionEvent = (cudaEvent_t)1;
        end(F(ncclAllReduceConfig)(memory, out, 4, ncclFloat, ncclSum, comm, STREAM, &config));
    }
    if (begin("coll config version=23102 launchCompletionEvent=0x1")) {
        ncclCollConfig_t config = COLL_UNSET;
        config.version = 23102;
        config.launchCompletionEvent = (cudaEvent_t)1;
        end(F(ncclAllReduceConfig)(memory, out, 4, ncclFloat, ncclSum, comm, STREAM, &config));
    }
    for (int own = 0; own < 2; own++)
        if (begin("coll config cgaClusterSize=2 and %d in a group", own ? 2 : 4)) {
            ncclCollConfig_t first = COLL_UNSET, second = COLL_UNSET;
            first.cgaClusterSize = 2, second.cgaClusterSize = own ? 2 : 4;
            F(ncclGroupStart)();
            F(ncclAllReduceConfig)(memory, out, 4, ncclFloat, ncclSum, comm, STREAM, &first);
            F(ncclAllReduceConfig)(memory + 4096, out + 4096, 4, ncclFloat, ncclSum, comm, STREAM, &second);
            end(F(ncclGroupEnd)());
        }
}

/* ---- Registrations and windows ------------------------------------------------------------------------- */

static void registrations(void) {
    ncclComm_t comm = need();
    void *handle = NULL, *again = NULL;
    CASE(("ncclCommDeregister handle=NULL"), F(ncclCommDeregister)(comm, NULL));
    CASE(("ncclCommDeregister unknown"), F(ncclCommDeregister)(comm, (void *)0x99));
    CASE(("ncclCommDeregister zeros"), F(ncclCommDeregister)(comm, zeros));
    CASE(("ncclCommRegister"), F(ncclCommRegister)(comm, memory, BYTES, &handle));
    if (!handle)
        F(ncclCommRegister)(comm, memory, BYTES, &handle);
    CASE(("ncclCommRegister again"), F(ncclCommRegister)(comm, memory, BYTES, &again));
    CASE(("ncclCommDeregister"), F(ncclCommDeregister)(comm, handle));
    CASE(("ncclCommDeregister again"), F(ncclCommDeregister)(comm, again));
    CASE(("ncclCommDeregister too often"), F(ncclCommDeregister)(comm, again));
    CASE(("ncclCommRegister part"), F(ncclCommRegister)(comm, memory + 64, 64, &handle));
    drop(comm);
}

static void registrations_alone(void) {
    ncclComm_t comm = need();
    void *handle = NULL;
    CASE(("ncclCommRegister handle=NULL"), F(ncclCommRegister)(comm, memory, BYTES, NULL));
    CASE(("ncclCommRegister buff=NULL"), F(ncclCommRegister)(comm, NULL, 4096, &handle));
    CASE(("ncclCommRegister size=0"), F(ncclCommRegister)(comm, memory, 0, &handle));
    CASE(("ncclCommRegister size=SIZE_MAX"), F(ncclCommRegister)(comm, memory, SIZE_MAX, &handle));
    CASE(("ncclCommRegister host memory"), F(ncclCommRegister)(comm, zeros, sizeof(zeros), &handle));
    ncclWindow_t window = NULL;
    if (begin("ncclCommDeregister of a window")) {
        F(ncclCommWindowRegister)(comm, memory, BYTES, &window, NCCL_WIN_COLL_SYMMETRIC);
        end(F(ncclCommDeregister)(comm, window));
    }
    if (begin("ncclCommWindowDeregister of a registration")) {
        F(ncclCommRegister)(comm, memory, BYTES, &handle);
        end(F(ncclCommWindowDeregister)(comm, (ncclWindow_t)handle));
    }
    if (begin("ncclCommWindowDeregister unknown"))
        end(F(ncclCommWindowDeregister)(comm, (ncclWindow_t)0x1230));
    if (begin("ncclCommWindowDeregister twice")) {
        F(ncclCommWindowRegister)(comm, memory, BYTES, &window, NCCL_WIN_COLL_SYMMETRIC);
        F(ncclCommWindowDeregister)(comm, window);
        end(F(ncclCommWindowDeregister)(comm, window));
    }
    void *pointer = NULL;
    CASE(("ncclWinGetUserPtr unknown"), F(ncclWinGetUserPtr)(comm, (ncclWindow_t)0x1230, &pointer));
    if (begin("ncclCommDeregister on another communicator")) {
        ncclComm_t other = make(NULL);
        F(ncclCommRegister)(comm, memory, BYTES, &handle);
        end(F(ncclCommDeregister)(other, handle));
    }
}

static void registrations_disabled(void) {
    setenv("NCCL_LOCAL_REGISTER", "0", 1);
    ncclComm_t comm = need();
    void *handle = (void *)1;
    CASE(("NCCL_LOCAL_REGISTER=0 ncclCommRegister"), F(ncclCommRegister)(comm, memory, BYTES, &handle));
    CASE(("NCCL_LOCAL_REGISTER=0 ncclCommDeregister"), F(ncclCommDeregister)(comm, handle));
    CASE(("NCCL_LOCAL_REGISTER=0 ncclCommRegister comm=NULL"), F(ncclCommRegister)(NULL, memory, BYTES, &handle));
    drop(comm);
}

static int window(ncclComm_t comm, void *buffer, size_t size, int flags) {
    ncclWindow_t *made = calloc(1, sizeof(*made));
    int code = F(ncclCommWindowRegister)(comm, buffer, size, made, flags);
    if (code == 0 && *made)
        F(ncclCommWindowDeregister)(comm, *made);
    leave_groups();
    return code;
}

static void windows(void) {
    ncclComm_t comm = need();
    ncclWindow_t made = NULL;
    void *pointer = NULL;
    CASE(("ncclCommWindowRegister win=NULL"), F(ncclCommWindowRegister)(comm, memory, BYTES, NULL, 0));
    CASE(("ncclCommWindowRegister buff=NULL"), window(comm, NULL, 4096, 0));
    CASE(("ncclCommWindowRegister size=0"), window(comm, memory, 0, 0));
    for (int flags = 0; flags <= 0x1f; flags++)
        CASE(("ncclCommWindowRegister flags=%#x", flags), window(comm, memory, BYTES, flags));
    CASE(("ncclCommWindowRegister flags=0x100"), window(comm, memory, BYTES, 0x100));
    CASE(("ncclCommWindowRegister flags=0x101"), window(comm, memory, BYTES, 0x101));
    CASE(("ncclCommWindowRegister flags=-1"), window(comm, memory, BYTES, -1));
    CASE(("ncclCommWindowRegister part"), window(comm, memory, 8192, 1));
    CASE(("ncclCommWindowRegister size=100"), window(comm, memory, 100, 1));
    CASE(("ncclCommWindowRegister at 4096"), window(comm, memory + 4096, 4096, 1));
    CASE(("ncclCommWindowDeregister win=NULL"), F(ncclCommWindowDeregister)(comm, NULL));
    CASE(("ncclWinGetUserPtr win=NULL"), F(ncclWinGetUserPtr)(comm, NULL, &pointer));
    F(ncclCommWindowRegister)(comm, memory, BYTES, &made, NCCL_WIN_COLL_SYMMETRIC);
    CASE(("ncclWinGetUserPtr outUserPtr=NULL"), F(ncclWinGetUserPtr)(comm, made, NULL));
    CASE(("ncclWinGetUserPtr"), F(ncclWinGetUserPtr)(comm, made, &pointer));
    drop(comm);
}

static void windows_alone(void) {
    ncclComm_t comm = need();
    CASE(("ncclCommWindowRegister unaligned"), window(comm, memory + 64, 4096, 1));
    CASE(("ncclCommWindowRegister at 256"), window(comm, memory + 256, 4096, 0));
    CASE(("ncclCommWindowRegister size=SIZE_MAX"), window(comm, memory, SIZE_MAX, 1));
    CASE(("ncclCommWindowRegister host memory"), window(comm, (void *)(((uintptr_t)zeros + 4095) & -4096ul), 8192, 1));
    if (begin("ncclCommWindowRegister twice")) {
        ncclWindow_t first = NULL;
        F(ncclCommWindowRegister)(comm, memory, BYTES, &first, 1);
        end(window(comm, memory, BYTES, 1));
    }
}

/* ---- One-sided operations ------------------------------------------------------------------------------ */

static void one_sided(const char *kind, const ncclConfig_t *config, int with_window) {
    ncclComm_t comm = make(config);
    if (!comm || F(ncclMemAlloc)((void **)&memory, BYTES) != 0)
        _exit(2);
    ncclWindow_t win = NULL;
    if (with_window)
        F(ncclCommWindowRegister)(comm, memory, BYTES, &win, NCCL_WIN_COLL_SYMMETRIC);
#define PUT(name, ...) \
    do { \
        CASE(("%s ncclPutSignal " name, kind), F(ncclPutSignal)(__VA_ARGS__, comm, STREAM)); \
        leave_groups(); \
    } while (0)
    char *source = memory + BYTES / 2;
    PUT("win=NULL", source, 4, ncclFloat, 0, NULL, 0, 0, 0, 0);
    if (win) {
        PUT("peer=-1", source, 4, ncclFloat, -1, win, 0, 0, 0, 0);
        PUT("peer=1", source, 4, ncclFloat, 1, win, 0, 0, 0, 0);
        PUT("sigIdx=-1", source, 4, ncclFloat, 0, win, 0, -1, 0, 0);
        PUT("sigIdx=1", source, 4, ncclFloat, 0, win, 0, 1, 0, 0);
        PUT("ctx=-1", source, 4, ncclFloat, 0, win, 0, 0, -1, 0);
        PUT("ctx=1", source, 4, ncclFloat, 0, win, 0, 0, 1, 0);
        PUT("flags=1", source, 4, ncclFloat, 0, win, 0, 0, 0, 1);
        PUT("localbuff=NULL", NULL, 4, ncclFloat, 0, win, 0, 0, 0, 0);
        PUT("localbuff=NULL count=0", NULL, 0, ncclFloat, 0, win, 0, 0, 0, 0);
        PUT("localbuff outside", zeros, 4, ncclFloat, 0, win, 0, 0, 0, 0);
        PUT("localbuff outside count=0", zeros, 0, ncclFloat, 0, win, 0, 0, 0, 0);
        PUT("type=12", source, 4, (ncclDataType_t)12, 0, win, 0, 0, 0, 0);
        PUT("type=-1", source, 4, (ncclDataType_t)-1, 0, win, 0, 0, 0, 0);
    }
#define SIGNAL(name, ...) \
    do { \
        CASE(("%s ncclSignal " name, kind), F(ncclSignal)(__VA_ARGS__, comm, STREAM)); \
        leave_groups(); \
    } while (0)
    SIGNAL("peer=-1", -1, 0, 0, 0);
    SIGNAL("peer=1", 1, 0, 0, 0);
    SIGNAL("sigIdx=-1", 0, -1, 0, 0);
    SIGNAL("sigIdx=1", 0, 1, 0, 0);
    SIGNAL("sigIdx=16", 0, 16, 0, 0);
    SIGNAL("ctx=-1", 0, 0, -1, 0);
    SIGNAL("ctx=1", 0, 0, 1, 0);
    SIGNAL("ctx=16", 0, 0, 16, 0);
    SIGNAL("flags=1", 0, 0, 0, 1);
#define WAIT(name, number, ...) \
    do { \
        ncclWaitSignalDesc_t all[] = {__VA_ARGS__}; \
        CASE(("%s ncclWaitSignal " name, kind), F(ncclWaitSignal)(number, all, comm, STREAM)); \
        leave_groups(); \
    } while (0)
#define ONE {1, 0, 0, 0}
    CASE(("%s ncclWaitSignal descs=NULL", kind), F(ncclWaitSignal)(1, NULL, comm, STREAM));
    leave_groups();
    CASE(("%s ncclWaitSignal nDesc=0 descs=NULL", kind), F(ncclWaitSignal)(0, NULL, comm, STREAM));
    leave_groups();
    WAIT("nDesc=0", 0, ONE);
    WAIT("opCnt=0", 1, {0, 0, 0, 0});
    WAIT("opCnt=-1", 1, {-1, 0, 0, 0});
    WAIT("sigIdx=-1", 1, {1, 0, -1, 0});
    WAIT("sigIdx=1", 1, {1, 0, 1, 0});
    WAIT("ctx=-1", 1, {1, 0, 0, -1});
    WAIT("ctx=1", 1, {1, 0, 0, 1});
}

static void one_sided_plain(void) {
    one_sided("plain", &UNSET, 0);
}

static void one_sided_window(void) {
    one_sided("window", &UNSET, 1);
}

static void one_sided_eager(void) {
    ncclConfig_t config = UNSET;
    config.rmaEagerInit = 1, config.numRmaSig = 2, config.numRmaCtx = 2;
    one_sided("eager", &config, 0);
}

static void one_sided_none(void) {
    ncclConfig_t config = UNSET;
    config.numRmaCtx = 0;
    one_sided("numRmaCtx=0", &config, 1);
}

static void one_sided_alone(void) {
    ncclComm_t comm = need();
    ncclWindow_t win = NULL;
    F(ncclCommWindowRegister)(comm, memory, BYTES, &win, NCCL_WIN_COLL_SYMMETRIC);
    char *source = memory + BYTES / 2;
    ncclWaitSignalDesc_t one = {1, 0, 0, 0}, beyond = {1, 5, 0, 0}, below = {1, -1, 0, 0};
    if (!win)
        _exit(2);
    CASE(("ncclPutSignal"), F(ncclPutSignal)(source, 4, ncclFloat, 0, win, 0, 0, 0, 0, comm, STREAM));
    CASE(("ncclPutSignal offset beyond"), F(ncclPutSignal)(source, 4, ncclFloat, 0, win, BYTES, 0, 0, 0, comm, STREAM));
    CASE(("ncclPutSignal offset beyond count=0"), F(ncclPutSignal)(source, 0, ncclFloat, 0, win, BYTES + 1, 0, 0, 0, comm, STREAM));
    CASE(("ncclPutSignal length beyond"), F(ncclPutSignal)(source, BYTES, ncclInt8, 0, win, 8, 0, 0, 0, comm, STREAM));
    CASE(("ncclPutSignal count=SIZE_MAX"), F(ncclPutSignal)(source, SIZE_MAX, ncclFloat, 0, win, 0, 0, 0, 0, comm, STREAM));
    CASE(("ncclPutSignal overlapping"), F(ncclPutSignal)(memory, 4, ncclFloat, 0, win, 4, 0, 0, 0, comm, STREAM));
    CASE(("ncclPutSignal unknown window"), F(ncclPutSignal)(source, 4, ncclFloat, 0, (ncclWindow_t)0x1230, 0, 0, 0, 0, comm, STREAM));
    CASE(("ncclWaitSignal peer=5"), F(ncclWaitSignal)(1, &beyond, comm, STREAM));
    CASE(("ncclWaitSignal peer=-1"), F(ncclWaitSignal)(1, &below, comm, STREAM));
    CASE(("ncclWaitSignal nDesc=-1"), F(ncclWaitSignal)(-1, &one, comm, STREAM));
    if (begin("ncclSignal and ncclWaitSignal")) {
        F(ncclSignal)(0, 0, 0, 0, comm, STREAM);
        end(F(ncclWaitSignal)(1, &one, comm, STREAM));
    }
    CASE(("ncclSignal"), F(ncclSignal)(0, 0, 0, 0, comm, STREAM));
}

static void one_sided_symmetric(void) {
    ncclComm_t comm = need();
    ncclWindow_t win = NULL;
    F(ncclCommWindowRegister)(comm, memory, BYTES, &win, NCCL_WIN_DEFAULT);
    CASE(("ncclPutSignal in a window with flags=0"), F(ncclPutSignal)(memory + 64, 4, ncclFloat, 0, win, 0, 0, 0, 0, comm, STREAM));
    CASE(("ncclSignal with a window with flags=0"), F(ncclSignal)(0, 0, 0, 0, comm, STREAM));
}

/* ---- Memory of a communicator -------------------------------------------------------------------------- */

static void suspend(void) {
    ncclComm_t comm = need();
    CASE(("ncclCommResume of one not suspended"), F(ncclCommResume)(comm));
    leave_groups();
    CASE(("ncclCommSuspend flags=0"), F(ncclCommSuspend)(comm, 0));
    CASE(("ncclCommSuspend flags=2"), F(ncclCommSuspend)(comm, 2));
    CASE(("ncclCommSuspend flags=4"), F(ncclCommSuspend)(comm, 4));
    leave_groups();
    drop(comm);
}

static void suspend_alone(void) {
    ncclComm_t comm = need();
    uint64_t value;
    CASE(("ncclCommSuspend flags=1"), F(ncclCommSuspend)(comm, 1));
    CASE(("ncclCommSuspend flags=3"), F(ncclCommSuspend)(comm, 3));
    CASE(("ncclCommSuspend flags=-1"), F(ncclCommSuspend)(comm, -1));
#define SUSPENDED(name, call) \
    if (begin("suspended " name)) { \
        F(ncclCommSuspend)(comm, 1); \
        end(call); \
    }
    SUSPENDED("ncclCommSuspend", F(ncclCommSuspend)(comm, 1));
    SUSPENDED("ncclCommSuspend flags=0", F(ncclCommSuspend)(comm, 0));
    SUSPENDED("ncclCommResume", F(ncclCommResume)(comm));
    SUSPENDED("ncclCommMemStats", F(ncclCommMemStats)(comm, ncclStatGpuMemSuspended, &value));
    int count;
    SUSPENDED("ncclCommCount", F(ncclCommCount)(comm, &count));
    SUSPENDED("ncclCommDestroy", F(ncclCommDestroy)(comm));
}

/* ---- Groups -------------------------------------------------------------------------------------------- */

static int simulate(const void *info, int depth) {
    for (int at = 0; at < depth; at++)
        F(ncclGroupStart)();
    int code = F(ncclGroupSimulateEnd)((ncclSimInfo_t *)(uintptr_t)info);
    leave_groups();
    return code;
}

static void groups(void) {
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER, bad = info;
    bad.magic = NCCL_API_MAGIC;
    CASE(("ncclGroupEnd without a start"), F(ncclGroupEnd)());
    CASE(("ncclGroupSimulateEnd without a start"), simulate(&info, 0));
    CASE(("ncclGroupSimulateEnd bad magic without a start"), simulate(&bad, 0));
    CASE(("ncclGroupSimulateEnd NULL"), simulate(NULL, 1));
    CASE(("ncclGroupSimulateEnd empty"), simulate(&info, 1));
    CASE(("ncclGroupSimulateEnd bad magic"), simulate(&bad, 1));
    CASE(("ncclGroupSimulateEnd bad magic nested"), simulate(&bad, 2));
    if (begin("ncclGroupEnd after a bad magic")) {
        F(ncclGroupStart)();
        F(ncclGroupSimulateEnd)(&bad);
        end(F(ncclGroupEnd)());
    }
    static const unsigned versions[] = {0, 22203, 999999};
    for (size_t at = 0; at < 3; at++) {
        ncclSimInfo_t other = info;
        other.version = versions[at];
        CASE(("ncclGroupSimulateEnd version=%u", other.version), simulate(&other, 1));
    }
    for (size_t size = 0; size <= sizeof(info) + 8; size += 4) {
        struct {
            ncclSimInfo_t info;
            char more[64];
        } longer;
        memset(&longer, 0x5a, sizeof(longer));
        longer.info = info, longer.info.size = size;
        CASE(("ncclGroupSimulateEnd size=%zu", size), simulate(at_edge(&longer, sizeof(longer), size < 16 ? 16 : size), 1));
    }
    if (begin("ncclGroupEnd after a failed call")) {
        F(ncclGroupStart)();
        F(ncclAllReduce)(NULL, NULL, 4, ncclFloat, ncclSum, NULL, STREAM);
        end(F(ncclGroupEnd)());
    }
    if (begin("ncclGroupSimulateEnd bad magic after a failed call")) {
        F(ncclGroupStart)();
        F(ncclAllReduce)(NULL, NULL, 4, ncclFloat, ncclSum, NULL, STREAM);
        end(F(ncclGroupSimulateEnd)(&bad));
    }
    leave_groups();
}

/* ---- Parameters ---------------------------------------------------------------------------------------- */

static void parameters(void) {
    ncclParamHandle_t handle = NULL;
    const char **keys = NULL, *text = NULL;
    int number = 0, length = 0;
    int64_t value = 0;
    char bytes[64];
    CASE(("ncclParamGetAllParameterKeys table=NULL"), F(ncclParamGetAllParameterKeys)(NULL, &number));
    CASE(("ncclParamGetAllParameterKeys tableLen=NULL"), F(ncclParamGetAllParameterKeys)(&keys, NULL));
    CASE(("ncclParamGetAllParameterKeys"), F(ncclParamGetAllParameterKeys)(&keys, &number));
    CASE(("ncclParamBind out=NULL"), F(ncclParamBind)(NULL, "NCCL_DEBUG"));
    CASE(("ncclParamBind key=NULL"), F(ncclParamBind)(&handle, NULL));
    CASE(("ncclParamBind unknown"), F(ncclParamBind)(&handle, "NCCL_NO_SUCH"));
    CASE(("ncclParamBind empty"), F(ncclParamBind)(&handle, ""));
    F(ncclParamGetAllParameterKeys)(&keys, &number);
    if (!keys || number < 1 || F(ncclParamBind)(&handle, keys[0]) != 0)
        _exit(2);
#define GETTER(suffix) \
    CASE(("ncclParamGet" #suffix " h=NULL"), F(ncclParamGet##suffix)(NULL, (void *)&value)); \
    CASE(("ncclParamGet" #suffix " out=NULL"), F(ncclParamGet##suffix)(handle, NULL))
    GETTER(I8);
    GETTER(I16);
    GETTER(I32);
    GETTER(I64);
    GETTER(U8);
    GETTER(U16);
    GETTER(U32);
    GETTER(U64);
    GETTER(Str);
    CASE(("ncclParamGet h=NULL"), F(ncclParamGet)(NULL, bytes, sizeof(bytes), &length));
    CASE(("ncclParamGet out=NULL"), F(ncclParamGet)(handle, NULL, sizeof(bytes), &length));
    CASE(("ncclParamGet len=NULL"), F(ncclParamGet)(handle, bytes, sizeof(bytes), NULL));
    CASE(("ncclParamGet maxLen=0"), F(ncclParamGet)(handle, bytes, 0, &length));
    CASE(("ncclParamGet maxLen=-1"), F(ncclParamGet)(handle, bytes, -1, &length));
    CASE(("ncclParamGetParameter key=NULL"), F(ncclParamGetParameter)(NULL, &text, &length));
    CASE(("ncclParamGetParameter value=NULL"), F(ncclParamGetParameter)(keys[0], NULL, &length));
    CASE(("ncclParamGetParameter valueLen=NULL"), F(ncclParamGetParameter)(keys[0], &text, NULL));
    CASE(("ncclParamGetParameter unknown"), F(ncclParamGetParameter)("NCCL_NO_SUCH", &text, &length));
}

/* ---- Encryption ---------------------------------------------------------------------------------------- */

static void encryption(void) {
    static const char secret[] = "0123456789abcdef0123456789abcdef";
#define ENCRYPTION(name, change) \
    do { \
        ncclEncryptionConfig_t c = NCCL_ENCRYPTION_CONFIG_INITIALIZER; \
        change; \
        CASE(("ncclSetEncryption " name), F(ncclSetEncryption)(&c)); \
    } while (0)
    CASE(("ncclSetEncryption NULL"), F(ncclSetEncryption)(NULL));
    ENCRYPTION("none", c.mode = 0);
    ENCRYPTION("none psk", c.psk = secret);
    ENCRYPTION("magic=0", c.magic = 0);
    ENCRYPTION("mode=-1", c.mode = -1);
    ENCRYPTION("mode=2", c.mode = 2);
    ENCRYPTION("mode=1 psk=NULL", c.mode = 1);
    ENCRYPTION("mode=1 psk=''", (c.mode = 1, c.psk = ""));
    ENCRYPTION("mode=1 psk of 31", (c.mode = 1, c.psk = secret + 1));
    ENCRYPTION("mode=1 psk of 32", (c.mode = 1, c.psk = secret));
    ENCRYPTION("version=0", c.version = 0);
    ENCRYPTION("version=23200", c.version = 23200);
    ENCRYPTION("version=999999", c.version = 999999);
    ENCRYPTION("version=0 mode=2", (c.version = 0, c.mode = 2));
    for (size_t size = 0; size <= sizeof(ncclEncryptionConfig_t) + 8; size += 4) {
        struct {
            ncclEncryptionConfig_t config;
            char more[64];
        } longer;
        ncclEncryptionConfig_t config = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
        memset(&longer, 0x5a, sizeof(longer));
        config.size = size, longer.config = config;
        CASE(("ncclSetEncryption size=%zu", size), F(ncclSetEncryption)(at_edge(&longer, sizeof(longer), size < 16 ? 16 : size)));
        longer.config.mode = 2;
        CASE(("ncclSetEncryption size=%zu mode=2", size), F(ncclSetEncryption)(at_edge(&longer, sizeof(longer), size < 16 ? 16 : size)));
    }
}

/* ---- Processes ----------------------------------------------------------------------------------------- */

/* A group of cases, each of which may run in a process of its own. */
static const struct {
    const char *name;
    void (*run)(void);
    int alone;
} GROUPS[] = {
    {"device_api", device_api, 0},
    {"null_comm", null_comm, 0},
    {"groups", groups, 0},
    {"parameters", parameters, 0},
    {"encryption", encryption, 0},
    {"creation", creation, 0},
    {"creation_alone", creation_alone, 1},
    {"config_values", config_values, 0},
    {"config_versions", config_versions, 0},
    {"config_sizes", config_sizes, 0},
    {"queries", queries, 0},
    {"endings", endings, 0},
    {"endings_alone", endings_alone, 1},
    {"children", children, 0},
    {"children_alone", children_alone, 1},
    {"two_ranks", two_ranks, 1},
    {"collectives", collectives, 0},
    {"operations_alone", operations_alone, 1},
    {"operations_checked", operations_checked, 0},
    {"collective_configs", collective_configs, 0},
    {"collective_configs_alone", collective_configs_alone, 1},
    {"registrations", registrations, 0},
    {"registrations_alone", registrations_alone, 1},
    {"registrations_disabled", registrations_disabled, 0},
    {"windows", windows, 0},
    {"windows_alone", windows_alone, 1},
    {"one_sided_plain", one_sided_plain, 0},
    {"one_sided_window", one_sided_window, 0},
    {"one_sided_eager", one_sided_eager, 0},
    {"one_sided_none", one_sided_none, 0},
    {"one_sided_alone", one_sided_alone, 1},
    {"one_sided_symmetric", one_sided_symmetric, 1},
    {"suspend", suspend, 0},
    {"suspend_alone", suspend_alone, 1},
    {"config_garbage_name", config_garbage_name, 1},
    {"inits", inits, 0},
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void run_group(size_t group, double limit) {
    for (from = 0;;) {
        progress->any = 0;
        progress->next = from;
        progress->name[0] = 0;
        pid_t child = fork();
        if (child == 0) {
            alarm(600);
            opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
            if (!opened) {
                fprintf(stderr, "%s\n", dlerror());
                _exit(1);
            }
            alone = GROUPS[group].alone;
            GROUPS[group].run();
            _exit(0);
        }
        int status = 0, last = -1;
        double since = now();
        const char *how = NULL;
        while (waitpid(child, &status, WNOHANG) == 0) {
            if (progress->next != last)
                last = progress->next, since = now();
            if (now() - since > limit) {
                kill(child, SIGKILL);
                waitpid(child, &status, 0);
                how = "hang";
                break;
            }
            usleep(500);
        }
        if (!how && (WIFSIGNALED(status) || WEXITSTATUS(status) != 0))
            how = "crash";
        if (progress->name[0]) {
            printf("%s\t%s\t\n", progress->name, how ? how : "crash");
            fflush(stdout);
        } else if (how && WIFEXITED(status) && WEXITSTATUS(status) == 2) {
            fprintf(stderr, "# %s: not run, a communicator is needed\n", GROUPS[group].name);
            return;
        } else if (how && !progress->any) {
            fprintf(stderr, "# %s: %s outside of a case\n", GROUPS[group].name, how);
            return;
        }
        /* All are done if the process came to its end, or found no case. */
        if (!progress->any || (!how && !GROUPS[group].alone))
            return;
        from = progress->next;
    }
}

int main(int count, char **arguments) {
    library = count > 1 ? arguments[1] : "libnccl.so.2";
    /* One rank needs no network; what would cost each initialization time is off. */
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    setenv("NCCL_IB_DISABLE", "1", 0);
    setenv("NCCL_RAS_ENABLE", "0", 0);
    progress = mmap(NULL, sizeof(*progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (size_t group = 0; group < sizeof(GROUPS) / sizeof(*GROUPS); group++)
        if (count < 3 || strcmp(arguments[2], GROUPS[group].name) == 0)
            run_group(group, count > 3 ? atof(arguments[3]) : 20);
    return 0;
}
