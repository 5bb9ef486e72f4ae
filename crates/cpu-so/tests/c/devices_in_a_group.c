/* One process, one thread, several devices: ncclCommInitAll, and ncclCommInitRank for each in a group. */

#include "check.h"

enum { DEVICES = 4, COUNT = 100003 };

static void reduce_and_broadcast(ncclComm_t *comms) {
    float *send[DEVICES], *receive[DEVICES];
    for (int device = 0; device < DEVICES; device++) {
        send[device] = device_memory(COUNT * sizeof(float));
        receive[device] = device_memory(COUNT * sizeof(float));
        for (int i = 0; i < COUNT; i++)
            send[device][i] = (float)(device + i % 7);
    }
    CHECK(ncclGroupStart());
    for (int device = 0; device < DEVICES; device++)
        CHECK(ncclAllReduce(send[device], receive[device], COUNT, ncclFloat, ncclSum, comms[device], STREAM));
    CHECK(ncclGroupEnd());
    for (int device = 0; device < DEVICES; device++)
        for (int i = 0; i < COUNT; i++)
            REQUIRE_EQUAL(DEVICES * (DEVICES - 1) / 2 + DEVICES * (i % 7), receive[device][i]);

    /* Several operations in one group, and nested groups. */
    CHECK(ncclGroupStart());
    for (int device = 0; device < DEVICES; device++) {
        CHECK(ncclGroupStart());
        CHECK(ncclBroadcast(send[device], receive[device], COUNT, ncclFloat, 2, comms[device], STREAM));
        CHECK(ncclReduce(receive[device], send[device], COUNT, ncclFloat, ncclMax, 1, comms[device], STREAM));
        CHECK(ncclGroupEnd());
    }
    CHECK(ncclGroupEnd());
    for (int i = 0; i < COUNT; i++) {
        for (int device = 0; device < DEVICES; device++)
            REQUIRE_EQUAL(2 + i % 7, receive[device][i]);
        REQUIRE_EQUAL(2 + i % 7, send[1][i]);
    }
    for (int device = 0; device < DEVICES; device++) {
        CHECK(ncclMemFree(send[device]));
        CHECK(ncclMemFree(receive[device]));
    }
}

static void destroy(ncclComm_t *comms) {
    for (int device = 0; device < DEVICES; device++)
        CHECK(ncclCommFinalize(comms[device]));
    for (int device = 0; device < DEVICES; device++)
        CHECK(ncclCommDestroy(comms[device]));
}

int main(void) {
    const int devices[DEVICES] = {3, 1, 0, 2};
    ncclComm_t comms[DEVICES];
    int device = -1;

    CHECK(ncclCommInitAll(comms, DEVICES, devices));
    for (int rank = 0; rank < DEVICES; rank++) {
        check_identity(comms[rank], DEVICES, rank);
        CHECK(ncclCommCuDevice(comms[rank], &device));
        REQUIRE_EQUAL(devices[rank], device);
    }
    reduce_and_broadcast(comms);
    destroy(comms);

    ncclUniqueId id;
    CHECK(ncclGetUniqueId(&id));
    CHECK(ncclGroupStart());
    for (int rank = 0; rank < DEVICES; rank++)
        CHECK(ncclCommInitRank(&comms[rank], DEVICES, id, rank));
    CHECK(ncclGroupEnd());
    for (int rank = 0; rank < DEVICES; rank++)
        check_identity(comms[rank], DEVICES, rank);
    reduce_and_broadcast(comms);
    destroy(comms);

    puts("ok: one process drives several devices in groups");
    return 0;
}
