/* User buffer registration: memory of `ncclMemAlloc`, registered with the communicator. */

#include "device_rank.h"

enum { DEVICES = 4, COUNT = 65536 };

static void *rank_main(void *argument) {
    const Rank *me = argument;
    const DeviceRank joined = join_on_device(me);
    const ncclComm_t comm = joined.comm;
    const cudaStream_t stream = joined.stream;
    void *send_handle = NULL, *receive_handle = NULL;
    float *send = allocate(COUNT * sizeof *send), *receive = allocate(COUNT * sizeof *receive);
    float *host = malloc(COUNT * sizeof *host);
    REQUIRE(host != NULL);
    struct cudaPointerAttributes attributes;
    CUDA(cudaPointerGetAttributes(&attributes, send));
    REQUIRE_EQUAL(cudaMemoryTypeDevice, attributes.type);
    REQUIRE_EQUAL(me->rank, attributes.device);
    CHECK(ncclCommRegister(comm, send, COUNT * sizeof *send, &send_handle));
    CHECK(ncclCommRegister(comm, receive, COUNT * sizeof *receive, &receive_handle));
    for (int i = 0; i < COUNT; i++)
        host[i] = (float)(me->rank + i % 64);
    TO_DEVICE(send, host, COUNT);
    for (int round = 0; round < 3; round++)
        CHECK(ncclAllReduce(send, receive, COUNT, ncclFloat, ncclMax, comm, stream));
    CUDA(cudaStreamSynchronize(stream));
    TO_HOST(host, receive, COUNT);
    for (int i = 0; i < COUNT; i++)
        REQUIRE_EQUAL(DEVICES - 1 + i % 64, host[i]);
    CHECK(ncclCommDeregister(comm, send_handle));
    CHECK(ncclCommDeregister(comm, receive_handle));
    CHECK(ncclMemFree(send));
    CHECK(ncclMemFree(receive));
    leave_device(joined);
    free(host);
    return NULL;
}

int main(void) {
    on_threads(DEVICES, rank_main);
    puts("ok: registered buffers");
    return 0;
}
