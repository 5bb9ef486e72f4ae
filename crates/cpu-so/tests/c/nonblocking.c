/*
 * Nonblocking communicators: every call may return ncclInProgress, and ncclCommGetAsyncError tells when it has
 * ended. Once with a thread for each rank, once with one thread and groups.
 */

#include "threads.h"

enum { RANKS = 3, COUNT = 40000 };

static ncclConfig_t nonblocking(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return config;
}

static void fill(int rank, double *values) {
    for (int i = 0; i < COUNT; i++)
        values[i] = rank + i;
}

static void check_sum(const double *values) {
    for (int i = 0; i < COUNT; i++)
        REQUIRE_EQUAL(RANKS * (RANKS - 1) / 2 + RANKS * i, values[i]);
}

static void *rank_main(void *argument) {
    const Rank *me = argument;
    ncclConfig_t config = nonblocking();
    ncclComm_t comm = NULL;
    ncclResult_t begun = ncclCommInitRankConfig(&comm, me->ranks, me->id, me->rank, &config);
    REQUIRE(begun == ncclSuccess || begun == ncclInProgress);
    REQUIRE(comm != NULL);
    REQUIRE_RESULT(ncclSuccess, wait_async(comm));
    check_identity(comm, me->ranks, me->rank);

    double *values = plain_memory(COUNT * sizeof *values);
    for (int round = 0; round < 5; round++) {
        fill(me->rank, values);
        CHECK_ASYNC(comm, ncclAllReduce(values, values, COUNT, ncclDouble, ncclSum, comm, STREAM));
        check_sum(values);
    }
    /* Grouped operations begin at the end of the group. */
    double next = 0, mine = me->rank;
    CHECK(ncclGroupStart());
    CHECK(ncclSend(&mine, 1, ncclDouble, (me->rank + 1) % me->ranks, comm, STREAM));
    CHECK(ncclRecv(&next, 1, ncclDouble, (me->rank + me->ranks - 1) % me->ranks, comm, STREAM));
    CHECK_ASYNC(comm, ncclGroupEnd());
    REQUIRE_EQUAL((me->rank + me->ranks - 1) % me->ranks, next);

    CHECK_ASYNC(comm, ncclCommFinalize(comm));
    CHECK(ncclCommDestroy(comm));
    free(values);
    return NULL;
}

static void in_groups(void) {
    ncclConfig_t config = nonblocking();
    ncclComm_t comms[RANKS] = {NULL};
    double *values[RANKS];
    ncclUniqueId id;
    ncclResult_t begun;
    CHECK(ncclGetUniqueId(&id));
    CHECK(ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) {
        begun = ncclCommInitRankConfig(&comms[rank], RANKS, id, rank, &config);
        REQUIRE(begun == ncclSuccess || begun == ncclInProgress);
    }
    begun = ncclGroupEnd();
    REQUIRE(begun == ncclSuccess || begun == ncclInProgress);
    for (int rank = 0; rank < RANKS; rank++) {
        REQUIRE(comms[rank] != NULL);
        REQUIRE_RESULT(ncclSuccess, wait_async(comms[rank]));
        check_identity(comms[rank], RANKS, rank);
        values[rank] = plain_memory(COUNT * sizeof(double));
        fill(rank, values[rank]);
    }
    CHECK(ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) {
        begun = ncclAllReduce(values[rank], values[rank], COUNT, ncclDouble, ncclSum, comms[rank], STREAM);
        REQUIRE(begun == ncclSuccess || begun == ncclInProgress);
    }
    begun = ncclGroupEnd();
    REQUIRE(begun == ncclSuccess || begun == ncclInProgress);
    for (int rank = 0; rank < RANKS; rank++) {
        REQUIRE_RESULT(ncclSuccess, wait_async(comms[rank]));
        check_sum(values[rank]);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        begun = ncclCommFinalize(comms[rank]);
        REQUIRE(begun == ncclSuccess || begun == ncclInProgress);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        REQUIRE_RESULT(ncclSuccess, wait_async(comms[rank]));
        CHECK(ncclCommDestroy(comms[rank]));
        free(values[rank]);
    }
}

int main(void) {
    on_threads(RANKS, rank_main);
    in_groups();
    puts("ok: nonblocking communicators, polled");
    return 0;
}
