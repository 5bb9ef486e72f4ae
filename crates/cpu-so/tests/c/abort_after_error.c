/*
 * Errors: an invalid argument leaves the communicator usable; after the loss of a rank the others abort their
 * communicators and continue with a new one of the survivors.
 */

#include "processes.h"

enum { RANKS = 4, LOST = 2, COUNT = 100000 };

static int rank_main(int rank, int from) {
    ncclComm_t comm = join(RANKS, rank, from);
    ncclResult_t state = ncclSuccess;
    int *values = plain_memory(COUNT * sizeof *values);

    REQUIRE_RESULT(ncclInvalidArgument, ncclBroadcast(values, values, COUNT, ncclInt, RANKS, comm, STREAM));
    REQUIRE(strlen(ncclGetLastError(comm)) > 0);
    CHECK(ncclCommGetAsyncError(comm, &state));
    REQUIRE_EQUAL(ncclSuccess, state);
    check_sum(comm, RANKS, values, COUNT);

    /* One rank exits without ending its communicator, once all have their sums. */
    report();
    if (rank == LOST) {
        wait_for_signal(from);
        return 7;
    }
    REQUIRE_RESULT(ncclRemoteError, ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, comm, STREAM));
    REQUIRE(strlen(ncclGetLastError(comm)) > 0);
    CHECK(ncclCommGetAsyncError(comm, &state));
    REQUIRE_EQUAL(ncclRemoteError, state);
    CHECK(ncclCommAbort(comm));

    comm = join(RANKS - 1, rank < LOST ? rank : rank - 1, from);
    check_sum(comm, RANKS - 1, values, COUNT);

    /* A rank that aborts is lost to the others, too. */
    report();
    if (rank == 0)
        wait_for_signal(from);
    else
        REQUIRE_RESULT(ncclRemoteError, ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, comm, STREAM));
    CHECK(ncclCommAbort(comm));
    free(values);
    return 0;
}

int main(void) {
    int to[RANKS];
    pid_t children[RANKS];
    fork_ranks(RANKS, rank_main, children, to);
    send_id(RANKS, to);
    collect_reports(RANKS, to[LOST]);
    /* The lost rank gets no second id. */
    to[LOST] = to[RANKS - 1];
    send_id(RANKS - 1, to);
    collect_reports(RANKS - 1, to[0]);
    for (int rank = 0; rank < RANKS; rank++)
        expect_exit(children[rank], rank == LOST ? 7 : 0);
    puts("ok: abort after an error, and a new communicator of the survivors");
    return 0;
}
