/*
 * The measurement with NCCL's C ABI, or with --lifecycle that of the time to create and split communicators, and of
 * the memory that they use. Options: see measure.c.
 *
 * Ranks are threads of this process, or processes: then the program starts itself once for each rank.
 */
#define _GNU_SOURCE
#include "measure.h"

#include <errno.h>
#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_RANKS = 64, REPETITIONS = 20 };

/* The state shared by the ranks, in memory that processes share too. */
struct shared {
    pthread_barrier_t barrier;
    ncclUniqueId id;
    double begin[MAX_RANKS], end[MAX_RANKS];
    double resident[MAX_RANKS], proportional[MAX_RANKS];
    int split_unsupported;
};

static void require(ncclResult_t result, const char *call) {
    if (result != ncclSuccess) {
        fail("%s failed: %s (code %d): %s", call, ncclGetErrorString(result), (int)result, ncclGetLastError(NULL));
    }
}

void operate(const struct rank *rank, enum operation operation, const float *send, float *receive,
             size_t elements, int root) {
    ncclComm_t comm = rank->communicator;
    switch (operation) {
    case ALL_REDUCE:
        require(ncclAllReduce(send, receive, elements, ncclFloat32, ncclSum, comm, NULL), "ncclAllReduce");
        break;
    case ALL_GATHER:
        require(ncclAllGather(send, receive, elements, ncclFloat32, comm, NULL), "ncclAllGather");
        break;
    case REDUCE_SCATTER:
        require(ncclReduceScatter(send, receive, elements, ncclFloat32, ncclSum, comm, NULL), "ncclReduceScatter");
        break;
    case BROADCAST:
        require(ncclBroadcast(receive, receive, elements, ncclFloat32, root, comm, NULL), "ncclBroadcast");
        break;
    case ALL_TO_ALL:
        require(ncclAlltoAll(send, receive, elements, ncclFloat32, comm, NULL), "ncclAlltoAll");
        break;
    default:
        fail("unsupported operation %d", (int)operation);
    }
}

double max_over_ranks(const struct rank *rank, double value) {
    double result;
    require(ncclAllReduce(&value, &result, 1, ncclFloat64, ncclMax, rank->communicator, NULL), "ncclAllReduce");
    return result;
}

/* ---- Buffers -------------------------------------------------------------------------------------------- */

static float *allocate(const struct options *options) {
    void *memory = NULL;
    if (options->library_memory) {
        require(ncclMemAlloc(&memory, options->max), "ncclMemAlloc");
    } else if (posix_memalign(&memory, 64, options->max) != 0) {
        fail("cannot allocate %zu bytes", options->max);
    }
    return memory;
}

static void release(const struct options *options, float *memory) {
    if (options->library_memory) {
        require(ncclMemFree(memory), "ncclMemFree");
    } else {
        free(memory);
    }
}

/* ---- Ranks ---------------------------------------------------------------------------------------------- */

static void barrier(struct shared *shared) {
    pthread_barrier_wait(&shared->barrier);
}

/* Creates an id for all ranks, which all have to call this. */
static void create_id(const struct rank *rank, struct shared *shared) {
    barrier(shared);
    if (rank->index == 0) require(ncclGetUniqueId(&shared->id), "ncclGetUniqueId");
    barrier(shared);
}

static void create(struct rank *rank, struct shared *shared) {
    ncclComm_t comm = NULL;
    require(ncclCommInitRank(&comm, rank->ranks, shared->id, rank->index), "ncclCommInitRank");
    rank->communicator = comm;
}

static void destroy(struct rank *rank) {
    require(ncclCommDestroy(rank->communicator), "ncclCommDestroy");
    rank->communicator = NULL;
}

static void work(struct rank *rank, const struct options *options, struct shared *shared) {
    float *send = allocate(options), *receive = allocate(options);
    create_id(rank, shared);
    create(rank, shared);
    measure(rank, options, send, receive);
    destroy(rank);
    release(options, send);
    release(options, receive);
}

/* ---- Lifecycle ------------------------------------------------------------------------------------------ */

/* Returns the seconds from the first rank's start to the last one's end. */
static double elapsed(const struct rank *rank, struct shared *shared, double begin) {
    shared->begin[rank->index] = begin;
    shared->end[rank->index] = now();
    barrier(shared);
    double first = shared->begin[0], last = shared->end[0];
    for (int other = 1; other < rank->ranks; other++) {
        if (shared->begin[other] < first) first = shared->begin[other];
        if (shared->end[other] > last) last = shared->end[other];
    }
    barrier(shared);
    return last - first;
}

static double time_to_create(struct rank *rank, struct shared *shared) {
    double times[REPETITIONS];
    for (int i = 0; i < REPETITIONS; i++) {
        create_id(rank, shared);
        double begin = now();
        create(rank, shared);
        times[i] = elapsed(rank, shared, begin);
        destroy(rank);
    }
    return median(times, REPETITIONS);
}

/* Returns a negative value if the library does not support splitting. */
static double time_to_split(const struct rank *rank, struct shared *shared) {
    double times[REPETITIONS];
    for (int i = 0; i < REPETITIONS; i++) {
        ncclComm_t half = NULL;
        barrier(shared);
        double begin = now();
        ncclResult_t result = ncclCommSplit(rank->communicator, rank->index < rank->ranks / 2 ? 0 : 1, rank->index,
                                            &half, NULL);
        if (result == ncclInvalidUsage) shared->split_unsupported = 1;
        times[i] = elapsed(rank, shared, begin);
        if (shared->split_unsupported) return -1;
        require(result, "ncclCommSplit");
        require(ncclCommDestroy(half), "ncclCommDestroy");
    }
    return median(times, REPETITIONS);
}

static void touch(float *memory, size_t bytes) {
    for (size_t i = 0; i < bytes / sizeof(float); i++) memory[i] = 0;
}

/* Adds this process's memory, times `sign`, to the rank's figures. The barriers ensure that all ranks have mapped the
   shared memory while any rank reads. */
static void add_memory(const struct rank *rank, struct shared *shared, double sign) {
    barrier(shared);
    shared->resident[rank->index] += sign * proc_bytes("/proc/self/smaps_rollup", "Rss:");
    shared->proportional[rank->index] += sign * proc_bytes("/proc/self/smaps_rollup", "Pss:");
    barrier(shared);
}

/* Runs each operation at each size. */
static void run_operations(const struct rank *rank, const struct options *options, float *send, float *receive) {
    for (int operation = 0; operation < OPERATIONS; operation++) {
        for (size_t size = options->min; size <= options->max; size *= options->factor) {
            size_t count = elements(operation, size, rank->ranks);
            if (count > 0) operate(rank, operation, send, receive, count, 0);
        }
    }
}

static double mean(const double *values, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) sum += values[i];
    return sum / count;
}

/* Prints a line for each figure: name, ranks, value. Times are in seconds, memory is in bytes for each rank; "-" is a
   function that the library does not support. */
static void measure_lifecycle(struct rank *rank, const struct options *options, struct shared *shared) {
    double created = time_to_create(rank, shared);

    float *send = allocate(options), *receive = allocate(options);
    touch(send, options->max);
    touch(receive, options->max);
    add_memory(rank, shared, -1);
    create_id(rank, shared);
    create(rank, shared);
    run_operations(rank, options, send, receive);
    add_memory(rank, shared, 1);

    double split = time_to_split(rank, shared);
    destroy(rank);
    release(options, send);
    release(options, receive);
    if (rank->index != 0) return;
    printf("create\t%d\t%g\n", rank->ranks, created);
    if (split < 0) {
        printf("split\t%d\t-\n", rank->ranks);
    } else {
        printf("split\t%d\t%g\n", rank->ranks, split);
    }
    printf("proportional\t%d\t%.0f\n", rank->ranks, mean(shared->proportional, rank->ranks));
    printf("resident\t%d\t%.0f\n", rank->ranks, mean(shared->resident, rank->ranks));
}

/* ---- Threads -------------------------------------------------------------------------------------------- */

struct thread {
    pthread_t thread;
    struct rank rank;
    const struct options *options;
    struct shared *shared;
};

static void *run_thread(void *argument) {
    struct thread *thread = argument;
    work(&thread->rank, thread->options, thread->shared);
    return NULL;
}

static void run_threads(const struct options *options, struct shared *shared) {
    struct thread threads[MAX_RANKS];
    for (int i = 0; i < options->ranks; i++) {
        threads[i] = (struct thread){.rank = {.index = i, .ranks = options->ranks, .in_process = options->ranks},
                                     .options = options, .shared = shared};
        int error = pthread_create(&threads[i].thread, NULL, run_thread, &threads[i]);
        if (error != 0) fail("cannot start thread %d: %s", i, strerror(error));
    }
    for (int i = 0; i < options->ranks; i++) pthread_join(threads[i].thread, NULL);
}

/* ---- Processes ------------------------------------------------------------------------------------------ */

/* Replaces this process with the program as one rank. */
static void exec_rank(int rank, int shared, int argc, char **argv) {
    char rank_text[16], shared_text[16];
    snprintf(rank_text, sizeof rank_text, "%d", rank);
    snprintf(shared_text, sizeof shared_text, "%d", shared);
    char **arguments = calloc(argc + 5, sizeof *arguments);
    if (arguments == NULL) fail("cannot allocate %d arguments", argc + 5);
    memcpy(arguments, argv, argc * sizeof *arguments);
    arguments[argc] = "--rank";
    arguments[argc + 1] = rank_text;
    arguments[argc + 2] = "--shared";
    arguments[argc + 3] = shared_text;
    execv("/proc/self/exe", arguments);
    fail("cannot start rank %d: %s", rank, strerror(errno));
}

static void run_processes(const struct options *options, int shared, int argc, char **argv) {
    pid_t children[MAX_RANKS];
    for (int i = 0; i < options->ranks; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* no rank outlives the launcher */
            exec_rank(i, shared, argc, argv);
        }
        if (children[i] < 0) fail("cannot start rank %d: %s", i, strerror(errno));
    }
    /* The first failure ends the program, and the kernel kills the other ranks with it. */
    for (int running = options->ranks; running > 0; running--) {
        int status;
        pid_t ended = wait(&status);
        if (ended < 0) fail("cannot wait for the ranks: %s", strerror(errno));
        int rank = 0;
        while (children[rank] != ended) rank++;
        if (WIFSIGNALED(status)) fail("rank %d: %s", rank, strsignal(WTERMSIG(status)));
        if (WEXITSTATUS(status) != 0) fail("rank %d exited with status %d", rank, WEXITSTATUS(status));
    }
}

/* ---- Start ---------------------------------------------------------------------------------------------- */

static struct shared *map(int file) {
    void *memory = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) fail("cannot map shared memory: %s", strerror(errno));
    return memory;
}

/* Creates shared memory as a file that child processes inherit. */
static int create_shared(int ranks) {
    int file = memfd_create("ranks", 0);
    if (file < 0 || ftruncate(file, sizeof(struct shared)) != 0) {
        fail("cannot create shared memory: %s", strerror(errno));
    }
    struct shared *shared = map(file);
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    int error = pthread_barrier_init(&shared->barrier, &attributes, ranks);
    if (error != 0) fail("cannot create a barrier of %d ranks: %s", ranks, strerror(error));
    return file;
}

int main(int argc, char **argv) {
    struct options options = parse(argc, argv);
    if (options.ranks > MAX_RANKS) fail("--ranks: expected at most %d", MAX_RANKS);
    if (options.rank >= 0) {
        struct shared *shared = map(options.shared);
        struct rank rank = {.index = options.rank, .ranks = options.ranks, .in_process = 1};
        (options.mode == LIFECYCLE ? measure_lifecycle : work)(&rank, &options, shared);
        return EXIT_SUCCESS;
    }
    int shared = create_shared(options.ranks);
    if (options.mode == THREADS) {
        run_threads(&options, map(shared));
    } else {
        run_processes(&options, shared, argc, argv);
    }
    return EXIT_SUCCESS;
}
