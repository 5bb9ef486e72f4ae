/* A ring of sends and receives: each device sends to the next and receives from the one before, in a group. */

#include "device_rank.h"

enum { DEVICES = 4, COUNT = 70001 };

static void *rank_main(void *argument) {
    const Rank *me = argument;
    const int next = (me->rank + 1) % DEVICES, previous = (me->rank + DEVICES - 1) % DEVICES;
    const DeviceRank joined = join_on_device(me);
    const ncclComm_t comm = joined.comm;
    const cudaStream_t stream = joined.stream;
    int32_t *buffers[2], *host = malloc(COUNT * sizeof *host);
    REQUIRE(host != NULL);
    for (int i = 0; i < 2; i++)
        CUDA(cudaMalloc((void **)&buffers[i], COUNT * sizeof *host));
    for (int i = 0; i < COUNT; i++)
        host[i] = me->rank * 1000003 + i;
    TO_DEVICE(buffers[0], host, COUNT);
    /* All the way round, with each step behind the last in the stream. */
    for (int step = 0; step < DEVICES; step++) {
        CHECK(ncclGroupStart());
        CHECK(ncclSend(buffers[step % 2], COUNT, ncclInt32, next, comm, stream));
        CHECK(ncclRecv(buffers[(step + 1) % 2], COUNT, ncclInt32, previous, comm, stream));
        CHECK(ncclGroupEnd());
    }
    CUDA(cudaStreamSynchronize(stream));
    memset(host, 0, COUNT * sizeof *host);
    TO_HOST(host, buffers[(DEVICES - 1) % 2], COUNT);
    const int before_last = (me->rank + 1) % DEVICES;
    for (int i = 0; i < COUNT; i++)
        REQUIRE_EQUAL(before_last * 1000003 + i, host[i]);
    TO_HOST(host, buffers[DEVICES % 2], COUNT);
    for (int i = 0; i < COUNT; i++)
        REQUIRE_EQUAL(me->rank * 1000003 + i, host[i]);
    for (int i = 0; i < 2; i++)
        CUDA(cudaFree(buffers[i]));
    leave_device(joined);
    free(host);
    return NULL;
}

int main(void) {
    on_threads(DEVICES, rank_main);
    puts("ok: a ring of sends and receives");
    return 0;
}
