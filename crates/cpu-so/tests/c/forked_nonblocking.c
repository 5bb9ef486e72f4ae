/* A rank forks while a nonblocking call is in progress: the child neither waits for it nor
   affects it (the program `forknb`). */

#include "processes.h"

enum { RANKS = 2 };

static int end_inherited(ncclComm_t comm, pid_t parent) {
    char name[32];
    snprintf(name, sizeof name, "process %d forked", (int)parent);
    REQUIRE_RESULT(ncclInvalidUsage, ncclCommDestroy(comm));
    REQUIRE(strstr(ncclGetLastError(NULL), name) != NULL);
    REQUIRE_RESULT(ncclInvalidUsage, ncclCommAbort(comm));
    return 0;
}

static int rank_main(int rank, int from) {
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int value = rank + 1;
    config.blocking = 0;
    read_all(from, id.internal, sizeof id.internal);
    CHECK_ASYNC(comm, ncclCommInitRankConfig(&comm, RANKS, id, rank, &config));
    if (rank == 0) {
        pid_t child;
        ncclResult_t begun = ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, STREAM);
        REQUIRE(begun == ncclSuccess || begun == ncclInProgress);
        FORK(child, end_inherited(comm, getppid()));
        expect_exit(child, 0);
        report();
        REQUIRE_RESULT(ncclSuccess, wait_async(comm));
    } else {
        wait_for_signal(from);
        CHECK_ASYNC(comm, ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, STREAM));
    }
    REQUIRE_EQUAL(3, value);
    CHECK(ncclCommDestroy(comm));
    return 0;
}

int main(void) {
    pid_t children[RANKS];
    int to[RANKS];
    fork_ranks(RANKS, rank_main, children, to);
    send_id(RANKS, to);
    collect_reports(1, to[1]);
    for (int rank = 0; rank < RANKS; rank++)
        expect_exit(children[rank], 0);
    puts("ok: a fork during a nonblocking call");
    return 0;
}
