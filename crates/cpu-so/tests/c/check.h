/*
 * Helpers of the programs: a program exits at its first error, with a line that names the place and the error.
 *
 * Host memory represents device memory, and the default stream all streams: on the CPU an operation has
 * completed when its call, or the group around it, has returned.
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

/* Ends the program with an error. `_Exit`, because other threads may run and buffers may be the parent's. */
#define FAIL(...) \
    do { \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
        fprintf(stderr, __VA_ARGS__); \
        fprintf(stderr, "\n"); \
        _Exit(1); \
    } while (0)

/* Requires a condition. */
#define REQUIRE(condition) \
    do { \
        if (!(condition)) \
            FAIL("not true: %s", #condition); \
    } while (0)

/* Requires a call to return `expected`. */
#define REQUIRE_RESULT(expected, call) \
    do { \
        ncclResult_t result_ = (call); \
        if (result_ != (expected)) \
            FAIL("%s: %d (%s), expected %d; last error: %s", #call, (int)result_, \
                 ncclGetErrorString(result_), (int)(expected), ncclGetLastError(NULL)); \
    } while (0)

/* Requires a call to succeed. */
#define CHECK(call) REQUIRE_RESULT(ncclSuccess, call)

/* Requires a number to have a value. */
#define REQUIRE_EQUAL(expected, value) \
    do { \
        long long expected_ = (long long)(expected), value_ = (long long)(value); \
        if (value_ != expected_) \
            FAIL("%s is %lld, expected %lld", #value, value_, expected_); \
    } while (0)

/* Allocates zeroed memory that ranks of other processes can access. */
static inline void *device_memory(size_t size) {
    void *memory = NULL;
    CHECK(ncclMemAlloc(&memory, size));
    REQUIRE(memory != NULL);
    memset(memory, 0, size);
    return memory;
}

/* Allocates zeroed memory without NCCL. */
static inline void *plain_memory(size_t size) {
    void *memory = calloc(1, size);
    REQUIRE(memory != NULL);
    return memory;
}

/* Polls, as documented, until a nonblocking call on `comm` has ended, and returns its result. */
static inline ncclResult_t wait_async(ncclComm_t comm) {
    const struct timespec pause = {0, 100 * 1000};
    ncclResult_t state = ncclInProgress;
    for (;;) {
        CHECK(ncclCommGetAsyncError(comm, &state));
        if (state != ncclInProgress)
            return state;
        nanosleep(&pause, NULL);
    }
}

/* Requires a nonblocking call to return success or "in progress", and in the end success. */
#define CHECK_ASYNC(comm, call) \
    do { \
        ncclResult_t begun_ = (call); \
        if (begun_ != ncclSuccess && begun_ != ncclInProgress) \
            FAIL("%s: %d (%s); last error: %s", #call, (int)begun_, ncclGetErrorString(begun_), \
                 ncclGetLastError(NULL)); \
        REQUIRE_RESULT(ncclSuccess, wait_async(comm)); \
    } while (0)

#endif
