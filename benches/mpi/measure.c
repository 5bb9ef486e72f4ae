/* The measurement: see measure.h. */
#define _GNU_SOURCE
#include "measure.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Seconds of warm-up before the first measurement. */
static const double WARMUP = 0.1;

static const char *const names[OPERATIONS] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                              "all_to_all"};

/* ---- Sizes ---------------------------------------------------------------------------------------------- */

/* Returns whether the larger buffer holds one block for each rank; `bytes` is then the size of all blocks. */
static int has_blocks(enum operation operation) {
    return operation == ALL_GATHER || operation == REDUCE_SCATTER || operation == ALL_TO_ALL;
}

size_t elements(enum operation operation, size_t bytes, int ranks) {
    return bytes / sizeof(float) / (has_blocks(operation) ? ranks : 1);
}

static size_t sent(enum operation operation, size_t elements, int ranks) {
    return operation == REDUCE_SCATTER || operation == ALL_TO_ALL ? elements * ranks : elements;
}

static size_t received(enum operation operation, size_t elements, int ranks) {
    return operation == ALL_GATHER || operation == ALL_TO_ALL ? elements * ranks : elements;
}

/* ---- Values --------------------------------------------------------------------------------------------- */

/* Small whole numbers, whose sum is exact in any order. */
static float input(int rank, size_t index) {
    return (float)((index * 5 + (size_t)rank * 7) % 61);
}

static float expected(const struct rank *rank, enum operation operation, size_t elements, size_t index, int root) {
    size_t in_block = index % elements;
    int block = (int)(index / elements);
    float sum = 0;
    switch (operation) {
    case ALL_GATHER:
        return input(block, in_block);
    case ALL_TO_ALL:
        return input(block, rank->index * elements + in_block);
    case BROADCAST:
        return input(root, index);
    case REDUCE_SCATTER:
        index += rank->index * elements;
        break;
    default:
        break;
    }
    for (int other = 0; other < rank->ranks; other++) sum += input(other, index);
    return sum;
}

static void check(const struct rank *rank, enum operation operation, float *send, float *receive, size_t elements,
                  int root) {
    size_t out = sent(operation, elements, rank->ranks), in = received(operation, elements, rank->ranks);
    for (size_t i = 0; i < in; i++) receive[i] = -1;
    for (size_t i = 0; i < out; i++) send[i] = input(rank->index, i);
    operate(rank, operation, send, receive, elements, root);
    for (size_t i = 0; i < in; i++) {
        float wanted = expected(rank, operation, elements, i, root);
        if (receive[i] != wanted) {
            fail("%s of %zu elements among %d ranks: element %zu of rank %d is %g, expected %g",
                 names[operation], elements, rank->ranks, i, rank->index, receive[i], wanted);
        }
    }
}

/* ---- Time ----------------------------------------------------------------------------------------------- */

/* Returns the slowest rank's time for a number of operations. The root of a broadcast changes with each operation: a
   fixed root could run ahead of the other ranks, so that several operations would be in flight. */
static double batch(const struct rank *rank, enum operation operation, const float *send, float *receive,
                    size_t elements, long iterations) {
    max_over_ranks(rank, 0);
    double start = now();
    for (long i = 0; i < iterations; i++) {
        operate(rank, operation, send, receive, elements, (int)(i % rank->ranks));
    }
    return max_over_ranks(rank, now() - start);
}

/* The kernel may start two ranks on one core, and takes a while to migrate one to a free core. */
static void warm_up(const struct rank *rank, enum operation operation, const float *send, float *receive,
                   size_t elements) {
    for (double spent = 0; spent < WARMUP;) spent += batch(rank, operation, send, receive, elements, 10);
}

/* Returns the time of one operation in seconds: the median of batches of about `batch_seconds`. All ranks see the
   same times and so decide alike. */
static double median_time(const struct rank *rank, const struct options *options, const float *send, float *receive,
                      size_t elements) {
    double *times = calloc(options->batches, sizeof *times);
    if (times == NULL) fail("cannot allocate %d times", options->batches);
    batch(rank, options->operation, send, receive, elements, 2);
    long iterations = 1;
    for (int taken = 0; taken < options->batches;) {
        double seconds = batch(rank, options->operation, send, receive, elements, iterations);
        if (seconds >= options->batch_seconds / 2) {
            times[taken++] = seconds / iterations;
        } else {
            double factor = options->batch_seconds / seconds;
            iterations *= factor > 10 ? 10 : (long)factor;
        }
    }
    double result = median(times, options->batches);
    free(times);
    return result;
}

void measure(const struct rank *rank, const struct options *options, float *send, float *receive) {
    enum operation operation = options->operation;
    if (operation == BROADCAST) send = receive;
    int warm = 0;
    for (size_t size = options->min; size <= options->max; size *= options->factor) {
        size_t count = elements(operation, size, rank->ranks);
        if (count == 0) continue;
        int roots = operation == BROADCAST ? rank->ranks : 1;
        for (int root = 0; root < roots; root++) check(rank, operation, send, receive, count, root);
        if (!warm) warm_up(rank, operation, send, receive, count);
        warm = 1;
        double seconds = median_time(rank, options, send, receive, count);
        size_t out = sent(operation, count, rank->ranks), in = received(operation, count, rank->ranks);
        if (rank->index == 0) {
            printf("%s\t%d\t%zu\t%.1f\n", names[operation], rank->ranks, (out > in ? out : in) * sizeof(float),
                   seconds * 1e9);
            fflush(stdout);
        }
    }
}

/* ---- Options -------------------------------------------------------------------------------------------- */

static enum operation operation_named(const char *name) {
    for (int operation = 0; operation < OPERATIONS; operation++) {
        if (strcmp(name, names[operation]) == 0) return operation;
    }
    fail("unknown operation %s", name);
}

struct options parse(int argc, char **argv) {
    struct options options = {.ranks = 2, .min = 4, .max = 64 << 20, .factor = 4,
                              .batches = 7, .batch_seconds = 0.05, .limit = 120, .rank = -1, .shared = -1};
    const struct option known[] = {
        {"operation", required_argument, NULL, 'o'}, {"ranks", required_argument, NULL, 'n'},
        {"sizes", required_argument, NULL, 's'},     {"batches", required_argument, NULL, 'b'},
        {"seconds", required_argument, NULL, 't'},   {"limit", required_argument, NULL, 'l'},
        {"memory", required_argument, NULL, 'm'},    {"threads", no_argument, NULL, 'T'},
        {"processes", no_argument, NULL, 'P'},       {"rank", required_argument, NULL, 'r'},
        {"shared", required_argument, NULL, 'f'},
        {NULL, 0, NULL, 0}};
    for (int letter; (letter = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (letter) {
        case 'o': options.operation = operation_named(optarg); break;
        case 'n': options.ranks = atoi(optarg); break;
        case 's':
            if (sscanf(optarg, "%zu:%zu:%zu", &options.min, &options.max, &options.factor) != 3) {
                fail("--sizes: expected MIN:MAX:FACTOR in bytes, not %s", optarg);
            }
            break;
        case 'b': options.batches = atoi(optarg); break;
        case 't': options.batch_seconds = atof(optarg); break;
        case 'l': options.limit = (unsigned)atoi(optarg); break;
        case 'm':
            options.library_memory = strcmp(optarg, "nccl") == 0;
            if (!options.library_memory && strcmp(optarg, "malloc") != 0) {
                fail("--memory: expected malloc or nccl, not %s", optarg);
            }
            break;
        case 'T': options.threads = 1; break;
        case 'P': options.threads = 0; break;
        case 'r': options.rank = atoi(optarg); break;
        case 'f': options.shared = atoi(optarg); break;
        default: exit(EXIT_FAILURE); /* getopt has printed the error */
        }
    }
    if (optind < argc) fail("unexpected argument %s", argv[optind]);
    if (options.ranks < 1 || options.min < sizeof(float) || options.max < options.min ||
        options.factor < 2 || options.batches < 1 || options.batch_seconds <= 0) {
        fail("--ranks, --batches: 1 or more; --sizes: 4 bytes or more, a factor of 2 or more; --seconds: above 0");
    }
    /* The launcher kills this program at the same limit, but may not reach every rank. */
    alarm(options.limit);
    return options;
}
