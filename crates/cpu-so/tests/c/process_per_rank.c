/* One process per rank: rank 0 creates the id and sends it to the others over pipes. */

#include "processes.h"

enum { RANKS = 3, COUNT = 300007 };

static void check_collectives(ncclComm_t comm, int rank, int32_t *buffer) {
    for (int i = 0; i < COUNT; i++)
        buffer[i] = rank + i;
    CHECK(ncclAllReduce(buffer, buffer, COUNT, ncclInt32, ncclSum, comm, STREAM));
    for (int i = 0; i < COUNT; i++)
        REQUIRE_EQUAL(RANKS * (RANKS - 1) / 2 + RANKS * i, buffer[i]);
    for (int root = 0; root < RANKS; root++) {
        if (rank == root)
            for (int i = 0; i < COUNT; i++)
                buffer[i] = 100 * root + i;
        CHECK(ncclBcast(buffer, COUNT, ncclInt32, root, comm, STREAM));
        for (int i = 0; i < COUNT; i++)
            REQUIRE_EQUAL(100 * root + i, buffer[i]);
    }
}

static int rank_main(int rank, ncclComm_t comm) {
    check_identity(comm, RANKS, rank);
    int32_t *shared = device_memory(COUNT * sizeof *shared);
    check_collectives(comm, rank, shared);
    CHECK(ncclMemFree(shared));
    int32_t *plain = plain_memory(COUNT * sizeof *plain);
    check_collectives(comm, rank, plain);
    free(plain);
    CHECK(ncclCommFinalize(comm));
    CHECK(ncclCommDestroy(comm));
    return 0;
}

int main(void) {
    int pipes[RANKS][2];
    pid_t children[RANKS];
    for (int rank = 1; rank < RANKS; rank++) {
        REQUIRE_EQUAL(0, pipe(pipes[rank]));
        FORK(children[rank], rank_main(rank, join(RANKS, rank, pipes[rank][0])));
    }
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    CHECK(ncclGetUniqueId(&id));
    for (int rank = 1; rank < RANKS; rank++)
        write_all(pipes[rank][1], id.internal, sizeof id.internal);
    CHECK(ncclCommInitRank(&comm, RANKS, id, 0));
    rank_main(0, comm);
    for (int rank = 1; rank < RANKS; rank++)
        expect_exit(children[rank], 0);
    puts("ok: a process for each rank");
    return 0;
}
