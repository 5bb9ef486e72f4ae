/*
 * Shrinking: after the loss of a rank, with NCCL_SHRINK_ABORT, and from a healthy communicator.
 */

#include "processes.h"

enum { RANKS = 4, LOST = 1, COUNT = 50000 };

static int rank_main(int rank, int from) {
    ncclComm_t comm = join(RANKS, rank, from), three = NULL, two = NULL;
    int *values = plain_memory(COUNT * sizeof *values);
    check_sum(comm, RANKS, values, COUNT);

    /* One rank exits without ending its communicator, once all have their sums. */
    report();
    if (rank == LOST) {
        wait_for_signal(from);
        return 7;
    }
    REQUIRE_RESULT(ncclRemoteError, ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, comm, STREAM));
    int lost[] = {LOST};
    CHECK(ncclCommShrink(comm, lost, 1, &three, NULL, NCCL_SHRINK_ABORT));
    CHECK(ncclCommAbort(comm));
    /* The remaining ranks are renumbered. */
    const int place = rank < LOST ? rank : rank - 1;
    check_identity(three, RANKS - 1, place);
    check_sum(three, RANKS - 1, values, COUNT);

    /* An excluded rank makes no call. */
    if (place > 0) {
        int first[] = {0};
        CHECK(ncclCommShrink(three, first, 1, &two, NULL, NCCL_SHRINK_DEFAULT));
        check_identity(two, RANKS - 2, place - 1);
        check_sum(two, RANKS - 2, values, COUNT);
        CHECK(ncclCommDestroy(two));
    }
    /* The parent is unchanged. */
    check_sum(three, RANKS - 1, values, COUNT);
    CHECK(ncclCommDestroy(three));
    free(values);
    return 0;
}

int main(void) {
    int to[RANKS];
    pid_t children[RANKS];
    fork_ranks(RANKS, rank_main, children, to);
    send_id(RANKS, to);
    collect_reports(RANKS, to[LOST]);
    for (int rank = 0; rank < RANKS; rank++)
        expect_exit(children[rank], rank == LOST ? 7 : 0);
    puts("ok: shrunk communicators");
    return 0;
}
