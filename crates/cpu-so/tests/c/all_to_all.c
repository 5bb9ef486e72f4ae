/* All to all, once by grouped sends and receives with different counts, once by ncclAlltoAll. */

#include "threads.h"

enum { RANKS = 4, BLOCK = 30000 };

/* The number of elements from one rank to another: 0 for some pairs. */
static int count_of(int from, int to) {
    return (from * 3 + to) % 4 * (BLOCK / 4);
}

static unsigned value_of(int from, int to, int i) {
    return (unsigned)from * 1000003u + (unsigned)to * 4567u + (unsigned)i * 89u;
}

static void *rank_main(void *argument) {
    const Rank *me = argument;
    const size_t size = (size_t)me->ranks * BLOCK * sizeof(unsigned);
    ncclComm_t comm = NULL;
    CHECK(ncclCommInitRank(&comm, me->ranks, me->id, me->rank));
    unsigned *send = plain_memory(size), *receive = plain_memory(size);
    for (int peer = 0; peer < me->ranks; peer++)
        for (int i = 0; i < BLOCK; i++)
            send[peer * BLOCK + i] = value_of(me->rank, peer, i);

    CHECK(ncclGroupStart());
    for (int peer = 0; peer < me->ranks; peer++) {
        const size_t to = (size_t)count_of(me->rank, peer), from = (size_t)count_of(peer, me->rank);
        CHECK(ncclSend(send + peer * BLOCK, to, ncclUint32, peer, comm, STREAM));
        CHECK(ncclRecv(receive + peer * BLOCK, from, ncclUint32, peer, comm, STREAM));
    }
    CHECK(ncclGroupEnd());
    for (int peer = 0; peer < me->ranks; peer++)
        for (int i = 0; i < BLOCK; i++)
            REQUIRE_EQUAL(i < count_of(peer, me->rank) ? value_of(peer, me->rank, i) : 0, receive[peer * BLOCK + i]);

    CHECK(ncclAlltoAll(send, receive, BLOCK, ncclUint32, comm, STREAM));
    for (int peer = 0; peer < me->ranks; peer++)
        for (int i = 0; i < BLOCK; i++)
            REQUIRE_EQUAL(value_of(peer, me->rank, i), receive[peer * BLOCK + i]);

    free(send);
    free(receive);
    CHECK(ncclCommDestroy(comm));
    return NULL;
}

int main(void) {
    on_threads(RANKS, rank_main);
    puts("ok: all to all");
    return 0;
}
