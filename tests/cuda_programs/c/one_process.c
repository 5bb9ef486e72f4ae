/* One process with several devices: communicators of `ncclCommInitAll`, and a group for each step. */

#include "check.h"
#include "cuda_check.h"
#include "gate.h"

enum { DEVICES = 4, COUNT = 50021, ROUNDS = 5 };

int main(void) {
    ncclComm_t comms[DEVICES];
    cudaStream_t streams[DEVICES];
    float *send[DEVICES], *receive[DEVICES], *host = malloc(COUNT * sizeof *host);
    const int devices[DEVICES] = {0, 1, 2, 3};
    REQUIRE(host != NULL);
    for (int i = 0; i < DEVICES; i++) {
        CUDA(cudaSetDevice(i));
        CUDA(cudaMalloc((void **)&send[i], COUNT * sizeof(float)));
        CUDA(cudaMalloc((void **)&receive[i], COUNT * sizeof(float)));
        CUDA(cudaMemset(receive[i], 0, COUNT * sizeof(float)));
        CUDA(cudaStreamCreate(&streams[i]));
    }
    CHECK(ncclCommInitAll(comms, DEVICES, devices));
    for (int i = 0; i < DEVICES; i++) {
        int device = -1;
        check_identity(comms[i], DEVICES, i);
        CHECK(ncclCommCuDevice(comms[i], &device));
        REQUIRE_EQUAL(i, device);
    }

    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < DEVICES; i++) {
            CUDA(cudaSetDevice(i));
            for (int k = 0; k < COUNT; k++)
                host[k] = (float)(k % 100 + i + round);
            TO_DEVICE(send[i], host, COUNT);
        }
        Gate gate = CLOSED_GATE;
        CUDA(cudaLaunchHostFunc(streams[round % DEVICES], wait_for_gate, &gate));
        CHECK(ncclGroupStart());
        for (int i = 0; i < DEVICES; i++)
            CHECK(ncclAllReduce(send[i], receive[i], COUNT, ncclFloat, ncclSum, comms[i], streams[i]));
        CHECK(ncclGroupEnd());
        /* Behind the sum in its stream, without synchronizing. */
        CHECK(ncclGroupStart());
        for (int i = 0; i < DEVICES; i++)
            CHECK(ncclBroadcast(receive[i], send[i], COUNT, ncclFloat, round % DEVICES, comms[i], streams[i]));
        CHECK(ncclGroupEnd());
        /* One device waits for the host, and the others for that one, but the calls have returned. */
        for (int i = 0; i < DEVICES; i++)
            REQUIRE_CUDA(cudaErrorNotReady, cudaStreamQuery(streams[i]));
        open_gate(&gate);
        for (int i = 0; i < DEVICES; i++) {
            CUDA(cudaSetDevice(i));
            CUDA(cudaStreamSynchronize(streams[i]));
            float *const results[2] = {receive[i], send[i]};
            for (int result = 0; result < 2; result++) {
                memset(host, 0, COUNT * sizeof *host);
                TO_HOST(host, results[result], COUNT);
                for (int k = 0; k < COUNT; k++)
                    REQUIRE_EQUAL(DEVICES * (k % 100 + round) + DEVICES * (DEVICES - 1) / 2, host[k]);
            }
        }
    }

    for (int i = 0; i < DEVICES; i++) {
        CUDA(cudaSetDevice(i));
        CUDA(cudaFree(send[i]));
        CUDA(cudaFree(receive[i]));
        CUDA(cudaStreamDestroy(streams[i]));
        CHECK(ncclCommFinalize(comms[i]));
    }
    for (int i = 0; i < DEVICES; i++)
        CHECK(ncclCommDestroy(comms[i]));
    free(host);
    puts("ok: one process with several devices");
    return 0;
}
