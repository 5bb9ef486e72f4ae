/* One process with a thread for each device. Each thread has a stream, and uses events across two streams. */

#include "check.h"
#include "cuda_check.h"
#include "threads.h"

enum { DEVICES = 4, COUNT = 20011, ROUNDS = 20 };

static void *rank_main(void *argument) {
    const Rank *me = argument;
    ncclComm_t comm = NULL;
    cudaStream_t copies = NULL, collectives = NULL;
    cudaEvent_t copied = NULL, reduced = NULL;
    int64_t *host = NULL, *back = NULL, *device = NULL;
    CUDA(cudaSetDevice(me->rank));
    CHECK(ncclCommInitRank(&comm, me->ranks, me->id, me->rank));
    CUDA(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&collectives, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&reduced, cudaEventDisableTiming));
    CUDA(cudaMallocHost((void **)&host, COUNT * sizeof *host));
    CUDA(cudaMallocHost((void **)&back, COUNT * sizeof *back));
    CUDA(cudaMalloc((void **)&device, COUNT * sizeof *device));
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < COUNT; i++)
            host[i] = (int64_t)me->rank * 1000003 + round * 17 + i;
        CUDA(cudaMemcpyAsync(device, host, COUNT * sizeof *host, cudaMemcpyHostToDevice, copies));
        CUDA(cudaEventRecord(copied, copies));
        CUDA(cudaStreamWaitEvent(collectives, copied, 0));
        CHECK(ncclAllReduce(device, device, COUNT, ncclInt64, ncclSum, comm, collectives));
        CUDA(cudaEventRecord(reduced, collectives));
        CUDA(cudaStreamWaitEvent(copies, reduced, 0));
        CUDA(cudaMemcpyAsync(back, device, COUNT * sizeof *back, cudaMemcpyDeviceToHost, copies));
        CUDA(cudaStreamSynchronize(copies));
        for (int i = 0; i < COUNT; i++)
            REQUIRE_EQUAL((int64_t)DEVICES * (DEVICES - 1) / 2 * 1000003 + DEVICES * (round * 17 + i), back[i]);
    }
    CHECK(ncclCommFinalize(comm));
    CHECK(ncclCommDestroy(comm));
    CUDA(cudaEventDestroy(copied));
    CUDA(cudaEventDestroy(reduced));
    CUDA(cudaStreamDestroy(copies));
    CUDA(cudaStreamDestroy(collectives));
    CUDA(cudaFree(device));
    CUDA(cudaFreeHost(host));
    CUDA(cudaFreeHost(back));
    return NULL;
}

int main(void) {
    on_threads(DEVICES, rank_main);
    puts("ok: a thread for each device");
    return 0;
}
