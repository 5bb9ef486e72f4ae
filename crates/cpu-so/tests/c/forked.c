/*
 * A rank forks: the child cannot use the communicators and groups that it inherits, but can create new ones. The parent
 * continues.
 */

#include "processes.h"

/* The last two elements of the memory are sent from and put into. */
enum { RANKS = 2, COUNT = 70001, SIZE = (COUNT + 2) * sizeof(int) };

/* Requires a call in a forked child to be refused, with the process that forked it. */
static void refused(pid_t parent, ncclResult_t result) {
    char name[32];
    snprintf(name, sizeof name, "process %d forked", (int)parent);
    if (result != ncclInvalidUsage || strstr(ncclGetLastError(NULL), name) == NULL)
        FAIL("%d instead of ncclInvalidUsage: %s", (int)result, ncclGetLastError(NULL));
}

/* The state of a rank when it forks. */
static ncclComm_t comm;
static ncclWindow_t window;
static ncclRedOp_t op;
static int *memory;
static pid_t parent;

static void use_what_is_inherited(void) {
    int number, value[2] = {1, 2};
    ncclResult_t state;
    ncclComm_t child = NULL;
    void *address;
    refused(parent, ncclAllReduce(value, value, 1, ncclInt, ncclSum, comm, STREAM));
    refused(parent, ncclSend(value, 1, ncclInt, 1, comm, STREAM));
    refused(parent, ncclRecv(value, 1, ncclInt, 1, comm, STREAM));
    refused(parent, ncclPutSignal(memory, 1, ncclInt, 1, window, 0, 0, 0, 0, comm, STREAM));
    refused(parent, ncclCommSplit(comm, 0, 0, &child, NULL));
    refused(parent, ncclCommCount(comm, &number));
    refused(parent, ncclCommGetAsyncError(comm, &state));
    refused(parent, ncclWinGetUserPtr(comm, window, &address));
    refused(parent, ncclCommWindowDeregister(comm, window));
    refused(parent, ncclRedOpDestroy(op, comm));
    refused(parent, ncclCommRevoke(comm, 0));
    refused(parent, ncclCommFinalize(comm));
    refused(parent, ncclCommDestroy(comm));
    refused(parent, ncclCommAbort(comm));
    refused(parent, ncclCommDestroy(comm));
}

/* A child that misuses what it inherits, then makes valid calls, and exits normally. */
static int misuse(void) {
    use_what_is_inherited();
    CHECK(ncclMemFree(memory));

    ncclUniqueId id;
    ncclComm_t own = NULL;
    int value = 5;
    CHECK(ncclGetUniqueId(&id));
    CHECK(ncclCommInitRank(&own, 1, id, 0));
    check_sum(own, 1, &value, 1);
    /* A grandchild can use neither. */
    const pid_t before = parent;
    parent = getpid();
    REQUIRE(parent != before);
    pid_t grandchild;
    const ncclComm_t inherited = comm;
    FORK(grandchild, (use_what_is_inherited(), comm = own, use_what_is_inherited(), 0));
    expect_exit(grandchild, 0);
    REQUIRE(comm == inherited);
    CHECK(ncclCommDestroy(own));
    exit(0);
}

/* A child that joins a communicator, as its parent does. */
static int join_parent(int from) {
    int values[3];
    ncclComm_t both = join(2, 1, from);
    check_sum(both, 2, values, 3);
    CHECK(ncclCommDestroy(both));
    return 0;
}

/* A child of a process with an open group, which is not the child's. */
static int end_group(void) {
    int number;
    REQUIRE_RESULT(ncclInvalidArgument, ncclCommCount(NULL, &number));
    REQUIRE(strstr(ncclGetLastError(NULL), "group is open") == NULL);
    REQUIRE_RESULT(ncclInvalidUsage, ncclGroupEnd());
    CHECK(ncclGroupStart());
    CHECK(ncclGroupEnd());
    return 0;
}

static int rank_main(int rank, int from) {
    int values[8], ends[2], half = 2;
    pid_t child;
    comm = join(RANKS, rank, from);
    check_sum(comm, RANKS, values, 8);
    memory = device_memory(SIZE);
    CHECK(ncclCommWindowRegister(comm, memory, SIZE, &window, NCCL_WIN_COLL_SYMMETRIC));
    REQUIRE(window != NULL);
    CHECK(ncclRedOpCreatePreMulSum(&op, &half, ncclInt, ncclScalarHostImmediate, comm));
    if (rank == 0) {
        parent = getpid();
        FORK(child, misuse());
        expect_exit(child, 0);

        REQUIRE_EQUAL(0, pipe(ends));
        FORK(child, join_parent(ends[0]));
        ncclUniqueId id;
        ncclComm_t both = NULL;
        CHECK(ncclGetUniqueId(&id));
        write_all(ends[1], id.internal, sizeof id.internal);
        CHECK(ncclCommInitRank(&both, 2, id, 0));
        check_sum(both, 2, values, 3);
        expect_exit(child, 0);
        CHECK(ncclCommDestroy(both));

        values[0] = 1;
        CHECK(ncclGroupStart());
        CHECK(ncclAllReduce(values, values, 1, ncclInt, ncclSum, comm, STREAM));
        ncclComm_t early = NULL;
        CHECK(ncclGetUniqueId(&id));
        CHECK(ncclCommInitRank(&early, 1, id, 0));
        FORK(child, end_group());
        expect_exit(child, 0);
        CHECK(ncclGroupEnd());
        CHECK(ncclCommDestroy(early));
        REQUIRE_EQUAL(3, values[0]);
    } else {
        values[0] = 2;
        CHECK(ncclAllReduce(values, values, 1, ncclInt, ncclSum, comm, STREAM));
    }
    /* Nothing is lost: the communicator, the memory, the window, the reduction. */
    check_sum(comm, RANKS, values, 8);
    check_sum(comm, RANKS, memory, COUNT);
    ncclWaitSignalDesc_t other = {1, 1 - rank, 0, 0};
    memory[COUNT] = rank + 10;
    CHECK(ncclPutSignal(memory + COUNT, 1, ncclInt, 1 - rank, window, SIZE - sizeof *memory, 0, 0, 0, comm, STREAM));
    CHECK(ncclWaitSignal(1, &other, comm, STREAM));
    REQUIRE_EQUAL(1 - rank + 10, memory[COUNT + 1]);
    values[0] = 3;
    CHECK(ncclAllReduce(values, values, 1, ncclInt, op, comm, STREAM));
    REQUIRE_EQUAL(12, values[0]);
    CHECK(ncclCommWindowDeregister(comm, window));
    CHECK(ncclRedOpDestroy(op, comm));
    CHECK(ncclCommDestroy(comm));
    CHECK(ncclMemFree(memory));
    return 0;
}

int main(void) {
    pid_t children[RANKS];
    int to[RANKS];
    fork_ranks(RANKS, rank_main, children, to);
    send_id(RANKS, to);
    for (int rank = 0; rank < RANKS; rank++)
        expect_exit(children[rank], 0);
    puts("ok: forked children of a rank");
    return 0;
}
