/*
 * The measurement, independent of the library: mpi.c and nccl.c supply the operations, measure.c does the rest. So the programs share
 * the command line, the loop, the check of the results and the output format.
 */
#ifndef MEASURE_H
#define MEASURE_H

#include "support.h"

#include <stddef.h>

enum operation { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, ALL_TO_ALL, OPERATIONS };

struct options {
    enum operation operation;
    int threads;         /* the ranks of nccl.c are threads instead of processes */
    int ranks;
    size_t min, max, factor; /* sizes in bytes */
    int batches;
    double batch_seconds;
    unsigned limit;      /* in seconds, after which the program is killed */
    int library_memory;  /* buffers from ncclMemAlloc instead of malloc */
    int rank, shared;    /* for the processes that nccl.c starts, else -1 */
};

struct rank {
    int index;
    int ranks;
    void *communicator;
};

/* ---- Supplied by mpi.c and nccl.c; exits the process on failure ---------------------------------------- */

/* Runs one operation on float32. `elements` is the count argument of the library. `send` and `receive` of a broadcast
   are the same buffer; only a broadcast has a root. */
void operate(const struct rank *rank, enum operation operation, const float *send, float *receive,
             size_t elements, int root);

/* Returns the maximum of all ranks' values. Serves as a barrier. */
double max_over_ranks(const struct rank *rank, double value);

/* ---- measure.c ------------------------------------------------------------------------------------------ */

struct options parse(int argc, char **argv);

/* Checks and measures each size, in buffers of `max` bytes. The first rank prints a line for each size: operation,
   ranks, bytes, nanoseconds. */
void measure(const struct rank *rank, const struct options *options, float *send, float *receive);

/* Returns the count argument for a larger buffer of `bytes`; 0 if that is less than one element for each rank. */
size_t elements(enum operation operation, size_t bytes, int ranks);

#endif
