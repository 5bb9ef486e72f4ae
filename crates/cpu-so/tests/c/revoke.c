/* A revoked communicator does nothing any more, but others can be made of it. */

#include "threads.h"

enum { RANKS = 3, COUNT = 1000 };

/* Revoking stops what is going on, at the other ranks as well: all have to be through. */
static pthread_barrier_t all_through;

static void *rank_main(void *argument) {
    const Rank *me = argument;
    int values[COUNT];
    ncclComm_t comm = NULL, child = NULL;
    CHECK(ncclCommInitRank(&comm, me->ranks, me->id, me->rank));
    for (int i = 0; i < COUNT; i++)
        values[i] = i;
    CHECK(ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, comm, STREAM));
    pthread_barrier_wait(&all_through);

    ANSWERS(ncclInvalidArgument, ncclCommRevoke(comm, 1));
    SETTLES(comm, ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
    ANSWERS(ncclInvalidUsage, ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, comm, STREAM));
    ANSWERS(ncclInvalidArgument, ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));

    CHECK(ncclCommSplit(comm, 0, me->rank, &child, NULL));
    check_identity(child, me->ranks, me->rank);
    CHECK(ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, child, STREAM));
    for (int i = 0; i < COUNT; i++)
        EQUALS(RANKS * RANKS * i, values[i]);
    CHECK(ncclCommDestroy(child));
    CHECK(ncclCommDestroy(comm));
    return NULL;
}

int main(void) {
    EQUALS(0, pthread_barrier_init(&all_through, NULL, RANKS));
    on_threads(RANKS, rank_main);
    CHECK(ncclCommRevoke(NULL, NCCL_REVOKE_DEFAULT));
    puts("ok: a revoked communicator");
    return 0;
}
