/* Prints the nanoseconds of an operation: cost CALLS [COMMUNICATORS]. */
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv) {
    long calls = argc > 1 ? atol(argv[1]) : 0;
    int count = argc > 2 ? atoi(argv[2]) : 1;
    ncclComm_t comms[8];
    float value = 0;
    struct timespec start, end;
    if (count < 1 || count > 8 || ncclCommInitAll(comms, count, NULL)) return 1;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (long i = 0; i < calls; i++)
        if (ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comms[i % count], NULL)) return 2;
    clock_gettime(CLOCK_MONOTONIC, &end);
    double elapsed = (end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec);
    printf("%.1f\n", calls ? elapsed / calls : 0);
    return 0;
}
