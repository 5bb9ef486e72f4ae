/*
 * Errors: one that a call finds by itself leaves the communicator as it was; after the loss of a rank the
 * others abort theirs and go on with a new communicator of those that are left.
 */

#include "processes.h"

enum { RANKS = 4, LOST = 2, COUNT = 100000 };

static void check_sum(ncclComm_t comm, int ranks, int *values) {
    for (int i = 0; i < COUNT; i++)
        values[i] = i;
    CHECK(ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, comm, STREAM));
    for (int i = 0; i < COUNT; i++)
        EQUALS(ranks * i, values[i]);
}

static int rank_main(int rank, int from) {
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    ncclResult_t state = ncclSuccess;
    int *values = plain_memory(COUNT * sizeof *values);
    read_all(from, id.internal, sizeof id.internal);
    CHECK(ncclCommInitRank(&comm, RANKS, id, rank));

    ANSWERS(ncclInvalidArgument, ncclBroadcast(values, values, COUNT, ncclInt, RANKS, comm, STREAM));
    HOLDS(strlen(ncclGetLastError(comm)) > 0);
    CHECK(ncclCommGetAsyncError(comm, &state));
    EQUALS(ncclSuccess, state);
    check_sum(comm, RANKS, values);

    /* One rank goes without a word, once all have their sums. */
    report();
    if (rank == LOST) {
        wait_for_word(from);
        return 7;
    }
    ANSWERS(ncclRemoteError, ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, comm, STREAM));
    HOLDS(strlen(ncclGetLastError(comm)) > 0);
    CHECK(ncclCommGetAsyncError(comm, &state));
    EQUALS(ncclRemoteError, state);
    CHECK(ncclCommAbort(comm));

    comm = NULL;
    read_all(from, id.internal, sizeof id.internal);
    CHECK(ncclCommInitRank(&comm, RANKS - 1, id, rank < LOST ? rank : rank - 1));
    check_sum(comm, RANKS - 1, values);

    /* A rank that aborts is lost for the others, too. */
    report();
    if (rank == 0)
        wait_for_word(from);
    else
        ANSWERS(ncclRemoteError, ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, comm, STREAM));
    CHECK(ncclCommAbort(comm));
    free(values);
    return 0;
}

int main(void) {
    int pipes[RANKS][2];
    pid_t children[RANKS];
    ncclUniqueId id;
    EQUALS(0, pipe(reports));
    for (int rank = 0; rank < RANKS; rank++) {
        EQUALS(0, pipe(pipes[rank]));
        FORK(children[rank], rank_main(rank, pipes[rank][0]));
    }
    CHECK(ncclGetUniqueId(&id));
    for (int rank = 0; rank < RANKS; rank++)
        write_all(pipes[rank][1], id.internal, sizeof id.internal);
    collect_reports(RANKS, pipes[LOST][1]);
    CHECK(ncclGetUniqueId(&id));
    for (int rank = 0; rank < RANKS; rank++)
        if (rank != LOST)
            write_all(pipes[rank][1], id.internal, sizeof id.internal);
    collect_reports(RANKS - 1, pipes[0][1]);
    for (int rank = 0; rank < RANKS; rank++)
        expect_exit(children[rank], rank == LOST ? 7 : 0);
    puts("ok: abort after an error, and on with those that are left");
    return 0;
}
