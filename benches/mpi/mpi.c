/* The measurement with MPI; mpirun starts the ranks. Options: see measure.c. */
#include "measure.h"

#include <mpi.h>
#include <stdlib.h>

static void require(int result, const char *call) {
    if (result != MPI_SUCCESS) fail("%s failed with code %d", call, result);
}

void operate(const struct rank *rank, enum operation operation, const float *send, float *receive,
             size_t elements, int root) {
    (void)rank;
    int count = (int)elements;
    switch (operation) {
    case ALL_REDUCE:
        require(MPI_Allreduce(send, receive, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD), "MPI_Allreduce");
        break;
    case ALL_GATHER:
        require(MPI_Allgather(send, count, MPI_FLOAT, receive, count, MPI_FLOAT, MPI_COMM_WORLD),
                "MPI_Allgather");
        break;
    case REDUCE_SCATTER:
        require(MPI_Reduce_scatter_block(send, receive, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
                "MPI_Reduce_scatter_block");
        break;
    case BROADCAST:
        require(MPI_Bcast(receive, count, MPI_FLOAT, root, MPI_COMM_WORLD), "MPI_Bcast");
        break;
    case ALL_TO_ALL:
        require(MPI_Alltoall(send, count, MPI_FLOAT, receive, count, MPI_FLOAT, MPI_COMM_WORLD),
                "MPI_Alltoall");
        break;
    default:
        fail("unsupported operation %d", (int)operation);
    }
}

double max_over_ranks(const struct rank *rank, double value) {
    (void)rank;
    double result;
    require(MPI_Allreduce(&value, &result, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD), "MPI_Allreduce");
    return result;
}

static float *allocate(size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, 64, bytes) != 0) fail("cannot allocate %zu bytes", bytes);
    return memory;
}

int main(int argc, char **argv) {
    struct options options = parse(argc, argv);
    require(MPI_Init(NULL, NULL), "MPI_Init");
    struct rank rank = {0};
    require(MPI_Comm_rank(MPI_COMM_WORLD, &rank.index), "MPI_Comm_rank");
    require(MPI_Comm_size(MPI_COMM_WORLD, &rank.ranks), "MPI_Comm_size");
    if (rank.ranks != options.ranks) fail("mpirun started %d ranks, not %d", rank.ranks, options.ranks);
    float *send = allocate(options.max), *receive = allocate(options.max);
    measure(&rank, &options, send, receive);
    require(MPI_Finalize(), "MPI_Finalize");
    free(send);
    free(receive);
    return EXIT_SUCCESS;
}
