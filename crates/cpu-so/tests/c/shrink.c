/*
 * Going on without some ranks: after the loss of one, with NCCL_SHRINK_ABORT, and of one's own free will from
 * a healthy communicator.
 */

#include "processes.h"

enum { RANKS = 4, LOST = 1, COUNT = 50000 };

static void check_sum(ncclComm_t comm, int ranks, int *values) {
    for (int i = 0; i < COUNT; i++)
        values[i] = i;
    CHECK(ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, comm, STREAM));
    for (int i = 0; i < COUNT; i++)
        EQUALS(ranks * i, values[i]);
}

static int rank_main(int rank, int from) {
    ncclUniqueId id;
    ncclComm_t comm = NULL, three = NULL, two = NULL;
    int *values = plain_memory(COUNT * sizeof *values);
    read_all(from, id.internal, sizeof id.internal);
    CHECK(ncclCommInitRank(&comm, RANKS, id, rank));
    check_sum(comm, RANKS, values);

    /* One rank goes without a word, once all have their sums. */
    report();
    if (rank == LOST) {
        wait_for_word(from);
        return 7;
    }
    ANSWERS(ncclRemoteError, ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, comm, STREAM));
    int lost[] = {LOST};
    CHECK(ncclCommShrink(comm, lost, 1, &three, NULL, NCCL_SHRINK_ABORT));
    CHECK(ncclCommAbort(comm));
    /* The ranks that are left close ranks. */
    const int place = rank < LOST ? rank : rank - 1;
    check_identity(three, RANKS - 1, place);
    check_sum(three, RANKS - 1, values);

    /* A rank that is excluded does not call. */
    if (place > 0) {
        int first[] = {0};
        CHECK(ncclCommShrink(three, first, 1, &two, NULL, NCCL_SHRINK_DEFAULT));
        check_identity(two, RANKS - 2, place - 1);
        check_sum(two, RANKS - 2, values);
        CHECK(ncclCommDestroy(two));
    }
    /* The parent is as it was. */
    check_sum(three, RANKS - 1, values);
    CHECK(ncclCommDestroy(three));
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
    for (int rank = 0; rank < RANKS; rank++)
        expect_exit(children[rank], rank == LOST ? 7 : 0);
    puts("ok: on with fewer ranks");
    return 0;
}
