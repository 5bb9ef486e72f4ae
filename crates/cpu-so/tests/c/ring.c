/* Point to point: every rank sends to the next one and receives from the previous one, in one group. */

#include "threads.h"

enum { RANKS = 4, COUNT = 200000 };

static int value_of(int rank, int hop, int i) {
    return rank * 7919 + hop * 104729 + i;
}

static void *rank_main(void *argument) {
    const Rank *me = argument;
    const int next = (me->rank + 1) % me->ranks, before = (me->rank + me->ranks - 1) % me->ranks;
    ncclComm_t comm = NULL;
    CHECK(ncclCommInitRank(&comm, me->ranks, me->id, me->rank));

    int *send = plain_memory(COUNT * sizeof *send), *receive = device_memory(COUNT * sizeof *receive);
    for (int hop = 0; hop < 3; hop++) {
        for (int i = 0; i < COUNT; i++)
            send[i] = value_of(me->rank, hop, i);
        CHECK(ncclGroupStart());
        CHECK(ncclSend(send, COUNT, ncclInt, next, comm, STREAM));
        CHECK(ncclRecv(receive, COUNT, ncclInt, before, comm, STREAM));
        CHECK(ncclGroupEnd());
        for (int i = 0; i < COUNT; i++)
            REQUIRE_EQUAL(value_of(before, hop, i), receive[i]);
    }

    /* Messages to one peer arrive in order. */
    int small[3] = {me->rank, me->rank + 10, me->rank + 20}, got[3] = {0};
    CHECK(ncclGroupStart());
    for (int i = 0; i < 3; i++)
        CHECK(ncclSend(&small[i], 1, ncclInt, next, comm, STREAM));
    for (int i = 0; i < 3; i++)
        CHECK(ncclRecv(&got[i], 1, ncclInt, before, comm, STREAM));
    CHECK(ncclGroupEnd());
    for (int i = 0; i < 3; i++)
        REQUIRE_EQUAL(before + 10 * i, got[i]);

    /* Without a group, one direction at a time; and to itself, in a group. */
    if (me->rank % 2 == 0) {
        CHECK(ncclSend(send, COUNT, ncclInt, next, comm, STREAM));
    } else {
        CHECK(ncclRecv(receive, COUNT, ncclInt, before, comm, STREAM));
        for (int i = 0; i < COUNT; i++)
            REQUIRE_EQUAL(value_of(before, 2, i), receive[i]);
    }
    CHECK(ncclGroupStart());
    CHECK(ncclSend(send, COUNT, ncclInt, me->rank, comm, STREAM));
    CHECK(ncclRecv(receive, COUNT, ncclInt, me->rank, comm, STREAM));
    CHECK(ncclGroupEnd());
    for (int i = 0; i < COUNT; i++)
        REQUIRE_EQUAL(value_of(me->rank, 2, i), receive[i]);

    free(send);
    CHECK(ncclMemFree(receive));
    CHECK(ncclCommDestroy(comm));
    return NULL;
}

int main(void) {
    on_threads(RANKS, rank_main);
    puts("ok: a ring of sends and receives");
    return 0;
}
