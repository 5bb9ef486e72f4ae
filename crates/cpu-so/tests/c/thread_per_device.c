/* One process, one thread per device. */

#include "threads.h"

enum { RANKS = 4, ROUNDS = 30, COUNT = 5000 };

static void *rank_main(void *argument) {
    const Rank *me = argument;
    ncclComm_t comm = NULL;
    CHECK(ncclCommInitRank(&comm, me->ranks, me->id, me->rank));
    check_identity(comm, me->ranks, me->rank);

    int64_t *send = plain_memory(COUNT * sizeof *send);
    int64_t *receive = plain_memory((size_t)me->ranks * COUNT * sizeof *receive);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < COUNT; i++)
            send[i] = (int64_t)me->rank * 1000003 + round * 17 + i;
        CHECK(ncclAllGather(send, receive, COUNT, ncclInt64, comm, STREAM));
        for (int rank = 0; rank < me->ranks; rank++)
            for (int i = 0; i < COUNT; i++)
                REQUIRE_EQUAL((int64_t)rank * 1000003 + round * 17 + i, receive[rank * COUNT + i]);
        CHECK(ncclReduceScatter(receive, send, COUNT, ncclInt64, ncclSum, comm, STREAM));
        for (int i = 0; i < COUNT; i++)
            REQUIRE_EQUAL(me->ranks * ((int64_t)me->rank * 1000003 + round * 17 + i), send[i]);
    }
    free(send);
    free(receive);
    CHECK(ncclCommFinalize(comm));
    CHECK(ncclCommDestroy(comm));
    return NULL;
}

int main(void) {
    on_threads(RANKS, rank_main);
    puts("ok: a thread for each device");
    return 0;
}
