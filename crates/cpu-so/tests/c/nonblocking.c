/*
 * Non-blocking communicators: every call may answer ncclInProgress, and ncclCommGetAsyncError says when it is
 * over. Once with a thread for each rank, once with one thread and groups.
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
        EQUALS(RANKS * (RANKS - 1) / 2 + RANKS * i, values[i]);
}

static void *rank_main(void *argument) {
    const Rank *me = argument;
    ncclConfig_t config = nonblocking();
    ncclComm_t comm = NULL;
    ncclResult_t begun = ncclCommInitRankConfig(&comm, me->ranks, me->id, me->rank, &config);
    HOLDS(begun == ncclSuccess || begun == ncclInProgress);
    HOLDS(comm != NULL);
    ANSWERS(ncclSuccess, settle(comm));
    check_identity(comm, me->ranks, me->rank);

    double *values = plain_memory(COUNT * sizeof *values);
    for (int round = 0; round < 5; round++) {
        fill(me->rank, values);
        SETTLES(comm, ncclAllReduce(values, values, COUNT, ncclDouble, ncclSum, comm, STREAM));
        check_sum(values);
    }
    /* Grouped operations: only the end of the group begins them. */
    double next = 0, mine = me->rank;
    CHECK(ncclGroupStart());
    CHECK(ncclSend(&mine, 1, ncclDouble, (me->rank + 1) % me->ranks, comm, STREAM));
    CHECK(ncclRecv(&next, 1, ncclDouble, (me->rank + me->ranks - 1) % me->ranks, comm, STREAM));
    SETTLES(comm, ncclGroupEnd());
    EQUALS((me->rank + me->ranks - 1) % me->ranks, next);

    SETTLES(comm, ncclCommFinalize(comm));
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
        HOLDS(begun == ncclSuccess || begun == ncclInProgress);
    }
    begun = ncclGroupEnd();
    HOLDS(begun == ncclSuccess || begun == ncclInProgress);
    for (int rank = 0; rank < RANKS; rank++) {
        HOLDS(comms[rank] != NULL);
        ANSWERS(ncclSuccess, settle(comms[rank]));
        check_identity(comms[rank], RANKS, rank);
        values[rank] = plain_memory(COUNT * sizeof(double));
        fill(rank, values[rank]);
    }
    CHECK(ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) {
        begun = ncclAllReduce(values[rank], values[rank], COUNT, ncclDouble, ncclSum, comms[rank], STREAM);
        HOLDS(begun == ncclSuccess || begun == ncclInProgress);
    }
    begun = ncclGroupEnd();
    HOLDS(begun == ncclSuccess || begun == ncclInProgress);
    for (int rank = 0; rank < RANKS; rank++) {
        ANSWERS(ncclSuccess, settle(comms[rank]));
        check_sum(values[rank]);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        begun = ncclCommFinalize(comms[rank]);
        HOLDS(begun == ncclSuccess || begun == ncclInProgress);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        ANSWERS(ncclSuccess, settle(comms[rank]));
        CHECK(ncclCommDestroy(comms[rank]));
        free(values[rank]);
    }
}

int main(void) {
    on_threads(RANKS, rank_main);
    in_groups();
    puts("ok: non-blocking communicators, polled");
    return 0;
}
