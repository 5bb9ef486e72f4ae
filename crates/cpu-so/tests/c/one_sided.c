/* One-sided operations: ranks put values into each other's windows, and signals announce them. */

#include "threads.h"

enum { RANKS = 3, COUNT = 10000, ROUNDS = 5 };

/* A window has a block to send from, and one for each rank to put into. */
enum { SIZE = (RANKS + 1) * COUNT * sizeof(int) };

static int value_of(int from, int to, int round, int i) {
    return from * 1000003 + to * 4567 + round * 89 + i;
}

static void *rank_main(void *argument) {
    const Rank *me = argument;
    ncclComm_t comm = NULL;
    ncclWindow_t window = NULL;
    void *address = NULL;
    CHECK(ncclCommInitRank(&comm, me->ranks, me->id, me->rank));
    int *memory = device_memory(SIZE), *send = memory + RANKS * COUNT;
    CHECK(ncclCommWindowRegister(comm, memory, SIZE, &window, NCCL_WIN_COLL_SYMMETRIC));
    REQUIRE(window != NULL);
    CHECK(ncclWinGetUserPtr(comm, window, &address));
    REQUIRE(address == memory);

    ncclWaitSignalDesc_t everyone[RANKS - 1];
    for (int peer = 0, n = 0; peer < RANKS; peer++)
        if (peer != me->rank)
            everyone[n++] = (ncclWaitSignalDesc_t){1, peer, 0, 0};
    for (int round = 0; round < ROUNDS; round++) {
        const size_t offset = (size_t)me->rank * COUNT * sizeof(int);
        for (int peer = 0; peer < RANKS; peer++) {
            if (peer == me->rank)
                continue;
            for (int i = 0; i < COUNT; i++)
                send[i] = value_of(me->rank, peer, round, i);
            CHECK(ncclPutSignal(send, COUNT, ncclInt, peer, window, offset, 0, 0, 0, comm, STREAM));
        }
        CHECK(ncclWaitSignal(RANKS - 1, everyone, comm, STREAM));
        for (int peer = 0; peer < RANKS; peer++)
            for (int i = 0; peer != me->rank && i < COUNT; i++)
                REQUIRE_EQUAL(value_of(peer, me->rank, round, i), memory[peer * COUNT + i]);
        /* Signals without values tell that a rank has checked its values, so that all may put again. */
        for (int peer = 0; peer < RANKS; peer++)
            if (peer != me->rank)
                CHECK(ncclSignal(peer, 0, 0, 0, comm, STREAM));
        CHECK(ncclWaitSignal(RANKS - 1, everyone, comm, STREAM));
    }
    CHECK(ncclCommWindowDeregister(comm, window));
    CHECK(ncclMemFree(memory));
    CHECK(ncclCommDestroy(comm));
    return NULL;
}

int main(void) {
    on_threads(RANKS, rank_main);
    puts("ok: values and signals put into windows");
    return 0;
}
