/* Operations that fail on a stream, which CUDA reports: after a rank's death until the others have shrunk the communicator, and
 * after a peer's revocation until this rank revokes too. */

#include "check.h"
#include "cuda_check.h"
#include "processes.h"

enum { RANKS = 3, LOST = 1, COUNT = 50000 };

/* Enqueues a sum, and returns the stream's result. */
static cudaError_t sum(ncclComm_t comm, int *values, int count) {
    CHECK(ncclAllReduce(values, values, (size_t)count, ncclInt, ncclSum, comm, STREAM));
    return cudaStreamSynchronize(STREAM);
}

/* Requires a new communicator of the ranks to work. */
static void check_ranks(ncclComm_t comm, int ranks, int *values) {
    int one = 1;
    TO_DEVICE(values, &one, 1);
    CUDA(sum(comm, values, 1));
    TO_HOST(&one, values, 1);
    REQUIRE_EQUAL(ranks, one);
}

static int survivor_main(int rank, int from) {
    CUDA(cudaSetDevice(rank));
    ncclComm_t comm = join(RANKS, rank, from), two = NULL, same = NULL;
    int *values = NULL, host = 0, lost[] = {LOST};
    CUDA(cudaMalloc((void **)&values, COUNT * sizeof *values));
    check_ranks(comm, RANKS, values);
    report();
    if (rank == LOST) {
        wait_for_signal(from);
        return 7;
    }
    CUDA_FAILS(cudaErrorLaunchFailure, sum(comm, values, COUNT));
    CUDA_FAILS(cudaErrorLaunchFailure, cudaMemcpy(&host, values, sizeof host, cudaMemcpyDeviceToHost));
    CUDA_FAILS(cudaErrorLaunchFailure, cudaDeviceSynchronize());
    REQUIRE_RESULT(ncclRemoteError, ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, comm, STREAM));
    CHECK(ncclCommShrink(comm, lost, 1, &two, NULL, NCCL_SHRINK_ABORT));
    CUDA(cudaDeviceSynchronize());
    CHECK(ncclCommAbort(comm));
    check_ranks(two, RANKS - 1, values);

    /* Rank 0 waits when the other one revokes. */
    if (rank == 0)
        CUDA_FAILS(cudaErrorLaunchFailure, sum(two, values, COUNT));
    CHECK(ncclCommRevoke(two, NCCL_REVOKE_DEFAULT));
    CUDA(cudaDeviceSynchronize());
    CHECK(ncclCommSplit(two, 0, rank, &same, NULL));
    CHECK(ncclCommAbort(two));
    check_ranks(same, RANKS - 1, values);
    CHECK(ncclCommDestroy(same));
    CUDA(cudaFree(values));
    return 0;
}

int main(void) {
    int to[RANKS];
    pid_t children[RANKS];
    fork_ranks(RANKS, survivor_main, children, to);
    send_id(RANKS, to);
    collect_reports(RANKS, to[LOST]);
    for (int rank = 0; rank < RANKS; rank++)
        expect_exit(children[rank], rank == LOST ? 7 : 0);
    puts("ok: failures on streams");
    return 0;
}
