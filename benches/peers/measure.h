/*
 * What is measured, whichever library does it: mpi.c and nccl.c say how theirs does, measure.c does the rest. So
 * the two programs have one command line, one loop, one check and one form of output.
 */
#ifndef MEASURE_H
#define MEASURE_H

#include "support.h"

#include <stddef.h>

enum operation { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, ALL_TO_ALL, OPERATIONS };

/* Where nccl.c puts its ranks, and what it does with them; mpirun decides for mpi.c. */
enum mode { THREADS, PROCESSES, LIFECYCLE };

struct options {
    enum operation operation;
    enum mode mode;
    int ranks;
    size_t least, most, factor; /* sizes in bytes */
    int batches;
    double batch_seconds;
    unsigned limit;      /* in seconds; who still runs then is killed */
    int library_memory;  /* buffers from ncclMemAlloc instead of malloc */
    int rank, shared;    /* set by nccl.c for the processes that it starts, else -1 */
};

struct rank {
    int index;
    int ranks;
    int in_process;  /* how many of the ranks share this process */
    void *communicator;
};

/* ---- What each program supplies; all of it ends the process on failure. --------------------------------- */

/* One operation on float32. `elements` is what one rank contributes to, or gets from, each other one: the count
   argument of the library. A broadcast has `send` and `receive` equal; other operations know no root. */
void operate(const struct rank *rank, enum operation operation, const float *send, float *receive,
             size_t elements, int root);

/* The largest of the values that the ranks call this with. Nobody returns before all have called. */
double largest(const struct rank *rank, double value);

/* ---- measure.c ------------------------------------------------------------------------------------------ */

struct options parse(int argc, char **argv);

/* Checks and measures each size, in buffers of `most` bytes. The first rank prints a line for each:
   operation, ranks, bytes, nanoseconds, peak resident bytes of a process, bytes of it that are buffers, ranks in
   that process. */
void measure(const struct rank *rank, const struct options *options, float *send, float *receive);

/* The elements that a rank contributes if the larger buffer has `bytes`; 0 if there is not one for each rank. */
size_t elements(enum operation operation, size_t bytes, int ranks);

#endif
