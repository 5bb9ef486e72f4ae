/* The in-place form of every collective that has one, and of ncclAlltoAll, whose result is undefined in NCCL. */

#include "threads.h"

enum { RANKS = 3, ROOT = 1, COUNT = 70001 };

/* A rank's value at an index of its buffer of several blocks. */
static int64_t value_of(int rank, int64_t i) {
    return (rank + 1) * INT64_C(1000000007) + i * 13;
}

static int64_t sum_of(int64_t i) {
    int64_t sum = 0;
    for (int rank = 0; rank < RANKS; rank++)
        sum += value_of(rank, i);
    return sum;
}

static void fill(int rank, int64_t *buffer) {
    for (int64_t i = 0; i < RANKS * COUNT; i++)
        buffer[i] = value_of(rank, i);
}

/* Checks that everything but the written blocks is as `fill` left it. */
static void check_rest(int rank, const int64_t *buffer, int from, int to) {
    for (int64_t i = 0; i < RANKS * COUNT; i++)
        if (i < from * COUNT || i >= to * COUNT)
            REQUIRE_EQUAL(value_of(rank, i), buffer[i]);
}

static void *rank_main(void *argument) {
    const Rank *me = argument;
    ncclComm_t comm = NULL;
    CHECK(ncclCommInitRank(&comm, me->ranks, me->id, me->rank));
    for (int shared = 0; shared < 2; shared++) {
        const size_t size = RANKS * COUNT * sizeof(int64_t);
        int64_t *buffer = shared ? device_memory(size) : plain_memory(size);
        int64_t *mine = buffer + me->rank * COUNT;

        fill(me->rank, buffer);
        CHECK(ncclAllReduce(buffer, buffer, COUNT, ncclInt64, ncclSum, comm, STREAM));
        for (int i = 0; i < COUNT; i++)
            REQUIRE_EQUAL(sum_of(i), buffer[i]);
        check_rest(me->rank, buffer, 0, 1);

        fill(me->rank, buffer);
        CHECK(ncclReduce(buffer, buffer, COUNT, ncclInt64, ncclSum, ROOT, comm, STREAM));
        for (int i = 0; i < COUNT; i++)
            REQUIRE_EQUAL(me->rank == ROOT ? sum_of(i) : value_of(me->rank, i), buffer[i]);
        check_rest(me->rank, buffer, 0, 1);

        fill(me->rank, buffer);
        CHECK(ncclBroadcast(buffer, buffer, COUNT, ncclInt64, ROOT, comm, STREAM));
        for (int i = 0; i < COUNT; i++)
            REQUIRE_EQUAL(value_of(ROOT, i), buffer[i]);
        check_rest(me->rank, buffer, 0, 1);

        fill(me->rank, buffer);
        CHECK(ncclAllGather(mine, buffer, COUNT, ncclInt64, comm, STREAM));
        for (int64_t i = 0; i < RANKS * COUNT; i++)
            REQUIRE_EQUAL(value_of((int)(i / COUNT), i), buffer[i]);

        fill(me->rank, buffer);
        CHECK(ncclReduceScatter(buffer, mine, COUNT, ncclInt64, ncclSum, comm, STREAM));
        for (int64_t i = 0; i < COUNT; i++)
            REQUIRE_EQUAL(sum_of(me->rank * COUNT + i), mine[i]);

        fill(me->rank, buffer);
        CHECK(ncclGather(mine, buffer, COUNT, ncclInt64, ROOT, comm, STREAM));
        for (int64_t i = 0; i < RANKS * COUNT; i++)
            REQUIRE_EQUAL(value_of(me->rank == ROOT ? (int)(i / COUNT) : me->rank, i), buffer[i]);

        fill(me->rank, buffer);
        CHECK(ncclScatter(buffer, mine, COUNT, ncclInt64, ROOT, comm, STREAM));
        for (int64_t i = 0; i < COUNT; i++)
            REQUIRE_EQUAL(value_of(ROOT, me->rank * COUNT + i), mine[i]);
        check_rest(me->rank, buffer, me->rank, me->rank + 1);

        fill(me->rank, buffer);
        CHECK(ncclAlltoAll(buffer, buffer, COUNT, ncclInt64, comm, STREAM));
        for (int64_t i = 0; i < RANKS * COUNT; i++)
            REQUIRE_EQUAL(value_of((int)(i / COUNT), me->rank * COUNT + i % COUNT), buffer[i]);

        if (shared)
            CHECK(ncclMemFree(buffer));
        else
            free(buffer);
    }
    CHECK(ncclCommDestroy(comm));
    return NULL;
}

int main(void) {
    on_threads(RANKS, rank_main);
    puts("ok: collectives in place");
    return 0;
}
