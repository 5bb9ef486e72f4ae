/* A custom reduction: every rank's values are multiplied by that rank's scalar, and the products added. */

#include "threads.h"

enum { RANKS = 3, COUNT = 20000 };

static void *rank_main(void *argument) {
    const Rank *me = argument;
    ncclComm_t comm = NULL;
    CHECK(ncclCommInitRank(&comm, me->ranks, me->id, me->rank));
    float *values = plain_memory(COUNT * sizeof *values), *sums = plain_memory(COUNT * sizeof *sums);
    for (int i = 0; i < COUNT; i++)
        values[i] = (float)(i % 100);

    /* A scalar in host memory is read by the call that creates the operator. */
    ncclRedOp_t op;
    float scalar = (float)(me->rank + 2);
    CHECK(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat, ncclScalarHostImmediate, comm));
    REQUIRE((unsigned)op >= ncclNumOps && (unsigned)op <= ncclMaxRedOp);
    scalar = -1;
    CHECK(ncclAllReduce(values, sums, COUNT, ncclFloat, op, comm, STREAM));
    for (int i = 0; i < COUNT; i++)
        REQUIRE_EQUAL((2 + 3 + 4) * (i % 100), sums[i]);
    /* An operator works only with the type that it was created for. */
    REQUIRE_RESULT(ncclInvalidArgument, ncclAllReduce(values, sums, COUNT, ncclInt, op, comm, STREAM));
    /* It may be destroyed as soon as the last call that uses it has returned. */
    CHECK(ncclRedOpDestroy(op, comm));
    REQUIRE_RESULT(ncclInvalidArgument, ncclAllReduce(values, sums, COUNT, ncclFloat, op, comm, STREAM));
    REQUIRE_RESULT(ncclInvalidArgument, ncclRedOpDestroy(op, comm));
    REQUIRE_RESULT(ncclInvalidArgument, ncclRedOpDestroy(ncclSum, comm));

    /* A scalar in device memory is read when the operation runs. */
    float *later = device_memory(sizeof *later);
    *later = 100;
    CHECK(ncclRedOpCreatePreMulSum(&op, later, ncclFloat, ncclScalarDevice, comm));
    *later = 0.5f;
    CHECK(ncclReduce(values, sums, COUNT, ncclFloat, op, 2, comm, STREAM));
    if (me->rank == 2)
        for (int i = 0; i < COUNT; i++)
            REQUIRE(sums[i] == 1.5f * (float)(i % 100));
    CHECK(ncclRedOpDestroy(op, comm));
    CHECK(ncclMemFree(later));

    free(values);
    free(sums);
    CHECK(ncclCommDestroy(comm));
    return NULL;
}

int main(void) {
    on_threads(RANKS, rank_main);
    puts("ok: sums of products");
    return 0;
}
