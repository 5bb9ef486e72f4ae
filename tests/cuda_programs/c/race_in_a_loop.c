/* A missing synchronization before a loop: a memset on the default stream, and collectives on streams that do not wait for it.
 * The program also leaks a communicator and its other objects. */

#include "check.h"
#include "cuda_check.h"

enum { DEVICES = 2, COUNT = 1024, TIMES = 400 };

int main(void) {
    ncclComm_t comms[DEVICES];
    cudaStream_t streams[DEVICES];
    float *memory[DEVICES];
    CHECK(ncclCommInitAll(comms, DEVICES, NULL));
    for (int i = 0; i < DEVICES; i++) {
        CUDA(cudaSetDevice(i));
        CUDA(cudaMalloc((void **)&memory[i], COUNT * sizeof *memory[i]));
        CUDA(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        CUDA(cudaMemset(memory[i], 0, COUNT * sizeof *memory[i]));
    }
    for (int k = 0; k < TIMES; k++) {
        CHECK(ncclGroupStart());
        for (int i = 0; i < DEVICES; i++)
            CHECK(ncclAllReduce(memory[i], memory[i], COUNT - k, ncclFloat, ncclSum, comms[i], streams[i]));
        CHECK(ncclGroupEnd());
    }
    for (int i = 0; i < DEVICES; i++)
        CUDA(cudaStreamSynchronize(streams[i]));
    CHECK(ncclCommDestroy(comms[0]));
    puts("ok: a race in a loop");
    return 0;
}
