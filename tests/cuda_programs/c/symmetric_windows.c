/* Symmetric windows: memory that all ranks register together. */

#include "check.h"
#include "cuda_check.h"
#include "nccl_device_host.h"
#include "threads.h"

enum { DEVICES = 4, COUNT = 32768 };

static void *rank_main(void *argument) {
    const Rank *me = argument;
    const size_t bytes = COUNT * sizeof(int32_t);
    ncclComm_t comm = NULL;
    cudaStream_t stream = NULL;
    ncclWindow_t send_window = NULL, receive_window = NULL;
    int32_t *send = NULL, *receive = NULL, *host = malloc(bytes);
    REQUIRE(host != NULL);
    CUDA(cudaSetDevice(me->rank));
    CHECK(ncclCommInitRank(&comm, me->ranks, me->id, me->rank));
    CUDA(cudaStreamCreate(&stream));
    CHECK(ncclMemAlloc((void **)&send, bytes));
    CHECK(ncclMemAlloc((void **)&receive, bytes));
    CHECK(ncclCommWindowRegister(comm, send, bytes, &send_window, NCCL_WIN_COLL_SYMMETRIC));
    CHECK(ncclCommWindowRegister(comm, receive, bytes, &receive_window, NCCL_WIN_COLL_SYMMETRIC));
    for (int i = 0; i < COUNT; i++)
        host[i] = me->rank * 3 + i;
    TO_DEVICE(send, host, COUNT);
    CHECK(ncclAllReduce(send, receive, COUNT, ncclInt32, ncclSum, comm, stream));
    CUDA(cudaStreamSynchronize(stream));
    TO_HOST(host, receive, COUNT);
    for (int i = 0; i < COUNT; i++)
        REQUIRE_EQUAL(DEVICES * (DEVICES - 1) / 2 * 3 + DEVICES * i, host[i]);
    /* Device memory of another rank of this process, at the address that NCCL gives. */
    for (int peer = 0; peer < DEVICES; peer++) {
        void *theirs = NULL;
        CHECK(ncclGetPeerDevicePointer(send_window, sizeof(int32_t), peer, &theirs));
        REQUIRE((theirs == send + 1) == (peer == me->rank));
        TO_HOST(host, (int32_t *)theirs, COUNT - 1);
        for (int i = 1; i < COUNT; i++)
            REQUIRE_EQUAL(peer * 3 + i, host[i - 1]);
    }
    REQUIRE_EQUAL(DEVICES, ncclTeamLsa(comm).nRanks);
    /* The others have read this rank's part when its sum is theirs. */
    CHECK(ncclAllReduce(receive, receive, 1, ncclInt32, ncclSum, comm, stream));
    CUDA(cudaStreamSynchronize(stream));
    CHECK(ncclCommWindowDeregister(comm, send_window));
    CHECK(ncclCommWindowDeregister(comm, receive_window));
    CHECK(ncclMemFree(send));
    CHECK(ncclMemFree(receive));
    CHECK(ncclCommDestroy(comm));
    CUDA(cudaStreamDestroy(stream));
    free(host);
    return NULL;
}

int main(void) {
    on_threads(DEVICES, rank_main);
    puts("ok: symmetric windows");
    return 0;
}
