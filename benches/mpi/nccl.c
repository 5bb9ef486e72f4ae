/*
 * The measurement with NCCL's C ABI. Options: see measure.c.
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

enum { MAX_RANKS = 64 };

/* The state shared by the ranks, in memory that processes share too. */
struct shared {
    pthread_barrier_t barrier;
    ncclUniqueId id;
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

static void work(struct rank *rank, const struct options *options, struct shared *shared) {
    float *send = allocate(options), *receive = allocate(options);
    if (rank->index == 0) require(ncclGetUniqueId(&shared->id), "ncclGetUniqueId");
    pthread_barrier_wait(&shared->barrier);
    ncclComm_t comm = NULL;
    require(ncclCommInitRank(&comm, rank->ranks, shared->id, rank->index), "ncclCommInitRank");
    rank->communicator = comm;
    measure(rank, options, send, receive);
    require(ncclCommDestroy(comm), "ncclCommDestroy");
    release(options, send);
    release(options, receive);
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
        threads[i] = (struct thread){.rank = {.index = i, .ranks = options->ranks},
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
        struct rank rank = {.index = options.rank, .ranks = options.ranks};
        work(&rank, &options, shared);
        return EXIT_SUCCESS;
    }
    int shared = create_shared(options.ranks);
    if (options.threads) {
        run_threads(&options, map(shared));
    } else {
        run_processes(&options, shared, argc, argv);
    }
    return EXIT_SUCCESS;
}
