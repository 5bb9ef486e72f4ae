/* A program that calls NCCL before any function of CUDA: its communicators are on devices nevertheless. */

#include "check.h"
#include "cuda_check.h"

enum { DEVICES = 4, COUNT = 1009 };

int main(void) {
    ncclComm_t comms[DEVICES];
    int32_t *memory[DEVICES], host[COUNT];
    CHECK(ncclCommInitAll(comms, DEVICES, NULL));
    for (int i = 0; i < DEVICES; i++) {
        CUDA(cudaSetDevice(i));
        CUDA(cudaMalloc((void **)&memory[i], sizeof host));
        for (int k = 0; k < COUNT; k++)
            host[k] = i * 1000 + k;
        TO_DEVICE(memory[i], host, COUNT);
    }
    CHECK(ncclGroupStart());
    for (int i = 0; i < DEVICES; i++)
        CHECK(ncclAllReduce(memory[i], memory[i], COUNT, ncclInt32, ncclSum, comms[i], 0));
    CHECK(ncclGroupEnd());
    for (int i = 0; i < DEVICES; i++) {
        CUDA(cudaSetDevice(i));
        CUDA(cudaDeviceSynchronize());
        TO_HOST(host, memory[i], COUNT);
        for (int k = 0; k < COUNT; k++)
            REQUIRE_EQUAL(DEVICES * (DEVICES - 1) / 2 * 1000 + DEVICES * k, host[k]);
        CUDA(cudaFree(memory[i]));
    }
    for (int i = 0; i < DEVICES; i++)
        CHECK(ncclCommDestroy(comms[i]));
    puts("ok: NCCL before CUDA");
    return 0;
}
