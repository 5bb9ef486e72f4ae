/* A revoked communicator runs no operations, but can still be split. */

#include "threads.h"

enum { RANKS = 3, COUNT = 1000 };

/* Revoking stops operations in progress on all ranks, so all have to finish theirs first. */
static pthread_barrier_t all_done;

static void *rank_main(void *argument) {
    const Rank *me = argument;
    int values[COUNT];
    ncclComm_t comm = NULL, child = NULL;
    CHECK(ncclCommInitRank(&comm, me->ranks, me->id, me->rank));
    for (int i = 0; i < COUNT; i++)
        values[i] = i;
    CHECK(ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, comm, STREAM));
    pthread_barrier_wait(&all_done);

    REQUIRE_RESULT(ncclInvalidArgument, ncclCommRevoke(comm, 1));
    CHECK_ASYNC(comm, ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
    REQUIRE_RESULT(ncclInvalidUsage, ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, comm, STREAM));
    REQUIRE_RESULT(ncclInvalidArgument, ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));

    CHECK(ncclCommSplit(comm, 0, me->rank, &child, NULL));
    check_identity(child, me->ranks, me->rank);
    CHECK(ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, child, STREAM));
    for (int i = 0; i < COUNT; i++)
        REQUIRE_EQUAL(RANKS * RANKS * i, values[i]);
    CHECK(ncclCommDestroy(child));
    CHECK(ncclCommDestroy(comm));
    return NULL;
}

int main(void) {
    REQUIRE_EQUAL(0, pthread_barrier_init(&all_done, NULL, RANKS));
    on_threads(RANKS, rank_main);
    CHECK(ncclCommRevoke(NULL, NCCL_REVOKE_DEFAULT));
    puts("ok: a revoked communicator");
    return 0;
}
