/* Helpers of the programs: a program exits at its first error, with a line that names the place and the error. */
#ifndef CUDA_CHECK_H
#define CUDA_CHECK_H

#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Programs of libraries on top of CUDA may have helpers of these names already. */
#ifndef FAIL
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

/* Requires a number to have a value. */
#define REQUIRE_EQUAL(expected, value) \
    do { \
        long long expected_ = (long long)(expected), value_ = (long long)(value); \
        if (value_ != expected_) \
            FAIL("%s is %lld, expected %lld", #value, value_, expected_); \
    } while (0)
#endif

/* Requires a call to return `expected`. */
#define REQUIRE_CUDA(expected, call) \
    do { \
        cudaError_t result_ = (call); \
        if (result_ != (expected)) \
            FAIL("%s: %d (%s, %s), expected %d", #call, (int)result_, cudaGetErrorName(result_), \
                 cudaGetErrorString(result_), (int)(expected)); \
    } while (0)

/* Requires a call to succeed. */
#define CUDA(call) REQUIRE_CUDA(cudaSuccess, call)

/* Requires a call to fail, and the thread's last error to return the failure once. */
#define CUDA_FAILS(expected, call) \
    do { \
        REQUIRE_CUDA(expected, call); \
        REQUIRE_CUDA(expected, cudaPeekAtLastError()); \
        REQUIRE_CUDA(expected, cudaGetLastError()); \
        CUDA(cudaGetLastError()); \
    } while (0)

/* Requires a call to return that something is not ready, which is no error that the thread keeps. */
#define CUDA_NOT_READY(call) \
    do { \
        REQUIRE_CUDA(cudaErrorNotReady, call); \
        CUDA(cudaPeekAtLastError()); \
    } while (0)

/* Copies numbers to the device through pageable memory. */
#define TO_DEVICE(device, host, count) \
    CUDA(cudaMemcpy(device, host, (count) * sizeof *(host), cudaMemcpyHostToDevice))

/* Copies numbers from the device through pageable memory. */
#define TO_HOST(host, device, count) \
    CUDA(cudaMemcpy(host, device, (count) * sizeof *(host), cudaMemcpyDeviceToHost))

#endif
