/*
 * Splitting: two colors, keys that reverse the order, and a rank without a color.
 * Once with a thread for each rank, once with one thread and a group.
 */

#include "threads.h"

enum { RANKS = 5, COUNT = 1000, UNCOLORED = RANKS - 1 };

/* One color for the even ranks, one for the odd ones, and none for the last. */
static int color_of(int rank) {
    return rank == UNCOLORED ? NCCL_SPLIT_NOCOLOR : rank % 2;
}

/* Two ranks of each color: the key puts the later one first. */
static int place_of(int rank) {
    return rank < 2;
}

static void check_sum(int rank, const int *values) {
    int expected = rank % 2 == 0 ? 0 + 2 : 1 + 3;
    for (int i = 0; i < COUNT; i++)
        REQUIRE_EQUAL(expected + 2 * i, values[i]);
}

static void fill(int rank, int *values) {
    for (int i = 0; i < COUNT; i++)
        values[i] = rank + i;
}

static void *rank_main(void *argument) {
    const Rank *me = argument;
    int values[COUNT];
    ncclComm_t comm = NULL, child = NULL;
    CHECK(ncclCommInitRank(&comm, me->ranks, me->id, me->rank));
    CHECK(ncclCommSplit(comm, color_of(me->rank), -me->rank, &child, NULL));
    if (me->rank == UNCOLORED) {
        REQUIRE(child == NULL);
    } else {
        REQUIRE(child != NULL);
        check_identity(child, 2, place_of(me->rank));
        fill(me->rank, values);
        CHECK(ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, child, STREAM));
        check_sum(me->rank, values);
        /* Rank 0 of the child is the higher one. */
        values[0] = me->rank;
        CHECK(ncclBcast(values, 1, ncclInt, 0, child, STREAM));
        REQUIRE_EQUAL(2 + me->rank % 2, values[0]);
    }
    /* The parent is unchanged, before and after the child is destroyed. */
    for (int round = 0; round < 2; round++) {
        fill(me->rank, values);
        CHECK(ncclAllReduce(values, values, COUNT, ncclInt, ncclMax, comm, STREAM));
        for (int i = 0; i < COUNT; i++)
            REQUIRE_EQUAL(RANKS - 1 + i, values[i]);
        CHECK(ncclCommDestroy(child));
        child = NULL;
    }
    /* Equal keys keep the order of the parent. */
    CHECK(ncclCommSplit(comm, 7, 0, &child, NULL));
    check_identity(child, RANKS, me->rank);
    CHECK(ncclCommDestroy(child));
    CHECK(ncclCommDestroy(comm));
    return NULL;
}

static void in_a_group(void) {
    ncclComm_t comms[RANKS], children[RANKS];
    int values[RANKS][COUNT];
    CHECK(ncclCommInitAll(comms, RANKS, NULL));
    CHECK(ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) {
        children[rank] = NULL;
        CHECK(ncclCommSplit(comms[rank], color_of(rank), -rank, &children[rank], NULL));
    }
    CHECK(ncclGroupEnd());
    REQUIRE(children[UNCOLORED] == NULL);
    CHECK(ncclGroupStart());
    for (int rank = 0; rank < UNCOLORED; rank++) {
        REQUIRE(children[rank] != NULL);
        fill(rank, values[rank]);
        CHECK(ncclAllReduce(values[rank], values[rank], COUNT, ncclInt, ncclSum, children[rank], STREAM));
    }
    CHECK(ncclGroupEnd());
    for (int rank = 0; rank < UNCOLORED; rank++) {
        check_identity(children[rank], 2, place_of(rank));
        check_sum(rank, values[rank]);
        CHECK(ncclCommDestroy(children[rank]));
    }
    for (int rank = 0; rank < RANKS; rank++)
        CHECK(ncclCommDestroy(comms[rank]));
}

int main(void) {
    on_threads(RANKS, rank_main);
    in_a_group();
    puts("ok: split by color and key, and without a color");
    return 0;
}
