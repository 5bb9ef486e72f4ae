/* One-sided operations: ranks put numbers into each other's windows, and a signal announces them. */

#include "device_rank.h"

enum { DEVICES = 4, COUNT = 4096, ROUNDS = 3 };

static void *rank_main(void *argument) {
    const Rank *me = argument;
    const int next = (me->rank + 1) % DEVICES, previous = (me->rank + DEVICES - 1) % DEVICES;
    const size_t bytes = COUNT * sizeof(int32_t);
    const DeviceRank joined = join_on_device(me);
    const ncclComm_t comm = joined.comm;
    const cudaStream_t stream = joined.stream;
    ncclWindow_t window = NULL;
    int32_t *memory = allocate(2 * bytes), *send = memory + COUNT, *host = malloc(bytes);
    REQUIRE(host != NULL);
    CHECK(ncclCommWindowRegister(comm, memory, 2 * bytes, &window, NCCL_WIN_COLL_SYMMETRIC));
    ncclWaitSignalDesc_t from_previous = {1, previous, 0, 0}, from_next = {1, next, 0, 0};
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < COUNT; i++)
            host[i] = me->rank * 1000003 + round * 17 + i;
        TO_DEVICE(send, host, COUNT);
        CHECK(ncclPutSignal(send, COUNT, ncclInt32, next, window, 0, 0, 0, 0, comm, stream));
        CHECK(ncclWaitSignal(1, &from_previous, comm, stream));
        CUDA(cudaMemcpyAsync(host, memory, bytes, cudaMemcpyDeviceToHost, stream));
        /* Signals the previous rank that it may put again. */
        CHECK(ncclSignal(previous, 0, 0, 0, comm, stream));
        CHECK(ncclWaitSignal(1, &from_next, comm, stream));
        CUDA(cudaStreamSynchronize(stream));
        for (int i = 0; i < COUNT; i++)
            REQUIRE_EQUAL(previous * 1000003 + round * 17 + i, host[i]);
    }
    CHECK(ncclCommWindowDeregister(comm, window));
    CHECK(ncclMemFree(memory));
    leave_device(joined);
    free(host);
    return NULL;
}

int main(void) {
    on_threads(DEVICES, rank_main);
    puts("ok: numbers and signals put into windows");
    return 0;
}
