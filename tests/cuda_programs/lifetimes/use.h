/* Uses functions of every library, and prints where one fails. */
#ifndef USE_H
#define USE_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <nccl.h>

#include "cuda.h"

#define PER_THREAD ((void *)2)

/* Requires a call to return this code. */
#define EXPECT(code, call)                                                                  \
    do {                                                                                    \
        int returned_ = (int)(call);                                                        \
        if (returned_ != (code)) {                                                          \
            printf("%s: %s is %d, expected %d\n", moment, #call, returned_, (int)(code));   \
            bad = 1;                                                                        \
        }                                                                                   \
    } while (0)
#define OK(call) EXPECT(0, call)
#define IS(condition) EXPECT(1, condition)

static void set_number(void *number) { *(volatile int *)number = 7; }

static int use_runtime(const char *moment) {
    int bad = 0, count = 0, number = 0;
    void *memory = NULL, *host = NULL, *pooled = NULL, *stream = NULL, *event = NULL, *graph = NULL, *executable = NULL;
    unsigned char bytes[64] = {0};
    OK(cudaGetDeviceCount(&count));
    IS(count == 2);
    OK(cudaSetDevice(1));
    OK(cudaStreamCreate(&stream));
    OK(cudaEventCreate(&event));
    OK(cudaMalloc(&memory, 64));
    OK(cudaMallocHost(&host, 64));
    OK(cudaMallocAsync(&pooled, 64, stream));
    OK(cudaMemsetAsync(memory, 3, 64, stream));
    OK(cudaMemcpyAsync(pooled, memory, 64, 3, stream));
    OK(cudaMemcpyAsync(host, pooled, 64, TO_HOST, stream));
    OK(cudaLaunchHostFunc(stream, set_number, &number));
    OK(cudaEventRecord(event, stream));
    OK(cudaEventSynchronize(event));
    IS(host && ((unsigned char *)host)[63] == 3);
    IS(number == 7);
    OK(cudaMemsetAsync(memory, 4, 64, PER_THREAD));
    OK(cudaStreamSynchronize(PER_THREAD));
    OK(cudaMemcpy(bytes, memory, 64, TO_HOST));
    IS(bytes[63] == 4);
    OK(cudaStreamBeginCapture(stream, 0));
    OK(cudaMemsetAsync(memory, 5, 64, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&executable, graph, 0));
    OK(cudaGraphLaunch(executable, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(bytes, memory, 64, TO_HOST));
    IS(bytes[63] == 5);
    OK(cudaGraphExecDestroy(executable));
    OK(cudaGraphDestroy(graph));
    EXPECT(INVALID_VALUE, cudaMalloc(NULL, 64));
    EXPECT(INVALID_VALUE, cudaGetLastError());
    OK(cudaGetLastError());
    OK(cudaFreeAsync(pooled, stream));
    OK(cudaDeviceSynchronize());
    OK(cudaFreeHost(host));
    OK(cudaFree(memory));
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(stream));
    return bad;
}

static int use_driver(const char *moment) {
    int bad = 0;
    void *context = NULL, *popped = NULL;
    OK(cuCtxGetCurrent(&context));
    IS(context != NULL);
    OK(cuCtxPushCurrent_v2(context));
    OK(cuCtxPopCurrent_v2(&popped));
    IS(popped == context);
    return bad;
}

static int use_others(const char *moment) {
    int bad = 0;
    unsigned count = 0;
    void *handle = NULL;
    OK(nvmlInit_v2());
    OK(nvmlDeviceGetCount_v2(&count));
    IS(count == 2);
    OK(nvmlShutdown());
    OK(cublasCreate_v2(&handle));
    OK(cublasDestroy_v2(handle));
    return bad;
}

static int use_nccl(const char *moment) {
    int bad = 0, count = 0;
    float seven = 7, result = 0, two = 2;
    void *buffer = NULL, *stream = NULL, *memory = NULL;
    ncclUniqueId id;
    ncclComm_t comm = NULL, child = NULL;
    ncclRedOp_t doubled;
    ncclResult_t state = ncclInternalError;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    OK(cudaSetDevice(0));
    OK(cudaStreamCreate(&stream));
    OK(cudaMalloc(&buffer, 4));
    OK(cudaMemcpy(buffer, &seven, 4, TO_DEVICE));
    OK(ncclGetUniqueId(&id));
    OK(ncclCommInitRank(&comm, 1, id, 0));
    OK(ncclCommCount(comm, &count));
    IS(count == 1);
    OK(ncclRedOpCreatePreMulSum(&doubled, &two, ncclFloat, ncclScalarHostImmediate, comm));
    OK(ncclGroupStart());
    OK(ncclAllReduce(buffer, buffer, 1, ncclFloat, doubled, comm, (cudaStream_t)stream));
    OK(ncclGroupEnd());
    OK(ncclRedOpDestroy(doubled, comm));
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(&result, buffer, 4, TO_HOST));
    IS(result == 14);
    OK(ncclMemAlloc(&memory, 64));
    OK(ncclMemFree(memory));
    EXPECT(ncclInvalidArgument, ncclCommCount(NULL, &count));
    IS(strlen(ncclGetLastError(NULL)) > 0);
    EXPECT(ncclInvalidUsage, ncclGroupEnd());
    OK(ncclCommSplit(comm, 0, 0, &child, NULL));
    OK(ncclCommDestroy(child));
    OK(ncclCommGetAsyncError(comm, &state));
    IS(state == ncclSuccess);
    OK(ncclCommDestroy(comm));
    /* A nonblocking communicator has a thread. */
    config.blocking = 0;
    OK(ncclGetUniqueId(&id));
    state = ncclCommInitRankConfig(&comm, 1, id, 0, &config);
    while (state == ncclInProgress && ncclCommGetAsyncError(comm, &state) == ncclSuccess) {
    }
    IS(state == ncclSuccess);
    OK(ncclCommAbort(comm));
    OK(cudaFree(buffer));
    OK(cudaStreamDestroy(stream));
    return bad;
}

/* Prints whether all libraries can be used. */
static void use_all(const char *moment) {
    int bad = use_runtime(moment);
    bad |= use_driver(moment);
    bad |= use_others(moment);
    bad |= use_nccl(moment);
    printf("%s: %s\n", moment, bad ? "wrong" : "right");
    fflush(stdout);
}

#endif
