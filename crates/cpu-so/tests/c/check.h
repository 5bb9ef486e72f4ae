/*
 * What the programs share: a program ends at its first mistake, with a line that says where and what.
 *
 * Host memory stands for device memory, and the default stream for all streams: on the CPU an operation has
 * ended when its call, or the group it is in, has returned.
 */
#ifndef CHECK_H
#define CHECK_H

#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl.h"

#define STREAM ((cudaStream_t)NULL)

/* The program's end at a mistake. `_Exit` also where other threads or the parent's buffers are around. */
#define FAIL(...) \
    do { \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
        fprintf(stderr, __VA_ARGS__); \
        fprintf(stderr, "\n"); \
        _Exit(1); \
    } while (0)

/* A condition that has to hold. */
#define HOLDS(condition) \
    do { \
        if (!(condition)) \
            FAIL("this does not hold: %s", #condition); \
    } while (0)

/* A call that has to answer `expected`. */
#define ANSWERS(expected, call) \
    do { \
        ncclResult_t answer_ = (call); \
        if (answer_ != (expected)) \
            FAIL("%s: %d (%s), expected %d; last error: %s", #call, (int)answer_, \
                 ncclGetErrorString(answer_), (int)(expected), ncclGetLastError(NULL)); \
    } while (0)

/* A call that has to succeed. */
#define CHECK(call) ANSWERS(ncclSuccess, call)

/* A number that has to have a value. */
#define EQUALS(expected, value) \
    do { \
        long long expected_ = (long long)(expected), value_ = (long long)(value); \
        if (value_ != expected_) \
            FAIL("%s is %lld, expected %lld", #value, value_, expected_); \
    } while (0)

/* Memory that ranks of other processes can reach, all zero. */
static inline void *device_memory(size_t size) {
    void *memory = NULL;
    CHECK(ncclMemAlloc(&memory, size));
    HOLDS(memory != NULL);
    memset(memory, 0, size);
    return memory;
}

/* Plain memory, all zero. */
static inline void *plain_memory(size_t size) {
    void *memory = calloc(1, size);
    HOLDS(memory != NULL);
    return memory;
}

/* Checks what a communicator says of itself. */
static inline void check_identity(ncclComm_t comm, int ranks, int rank) {
    int value = -1;
    CHECK(ncclCommCount(comm, &value));
    EQUALS(ranks, value);
    CHECK(ncclCommUserRank(comm, &value));
    EQUALS(rank, value);
}

/* Waits, as the documentation says, until a non-blocking call on `comm` is over, and returns its end. */
static inline ncclResult_t settle(ncclComm_t comm) {
    const struct timespec pause = {0, 100 * 1000};
    ncclResult_t state = ncclInProgress;
    for (;;) {
        CHECK(ncclCommGetAsyncError(comm, &state));
        if (state != ncclInProgress)
            return state;
        nanosleep(&pause, NULL);
    }
}

/* A non-blocking call: it answers success or "in progress", and once it is over, success. */
#define SETTLES(comm, call) \
    do { \
        ncclResult_t begun_ = (call); \
        if (begun_ != ncclSuccess && begun_ != ncclInProgress) \
            FAIL("%s: %d (%s); last error: %s", #call, (int)begun_, ncclGetErrorString(begun_), \
                 ncclGetLastError(NULL)); \
        ANSWERS(ncclSuccess, settle(comm)); \
    } while (0)

#endif
