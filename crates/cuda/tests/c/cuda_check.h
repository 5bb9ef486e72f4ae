/* Helpers of the programs, in addition to those of NCCL's: a program ends at its first error. */
#ifndef CUDA_CHECK_H
#define CUDA_CHECK_H

#include "check.h"

#include <cuda_runtime.h>
#include <stdint.h>

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

/* Requires a call to fail, and the thread's last error to tell it once. */
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
