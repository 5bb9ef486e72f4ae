/* A process for each rank. */
#ifndef PROCESSES_H
#define PROCESSES_H

#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

static inline void write_all(int file, const void *bytes, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t written = write(file, (const char *)bytes + done, length - done);
        HOLDS(written > 0);
        done += (size_t)written;
    }
}

static inline void read_all(int file, void *bytes, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t taken = read(file, (char *)bytes + done, length - done);
        HOLDS(taken > 0);
        done += (size_t)taken;
    }
}

/* A pipe on which the ranks tell the parent how far they are. */
static int reports[2];

/* A rank says that it has come this far, and waits for the word to go on if it needs to. */
static inline void report(void) {
    write_all(reports[1], "!", 1);
}

static inline void wait_for_word(int from) {
    char word;
    read_all(from, &word, 1);
}

/* The parent waits until so many ranks have reported, and then gives one of them the word. */
static inline void collect_reports(int ranks, int to) {
    char report_;
    for (int rank = 0; rank < ranks; rank++)
        read_all(reports[0], &report_, 1);
    write_all(to, "!", 1);
}

/* Forks a process that runs `body` and exits with what it returns. */
#define FORK(child, body) \
    do { \
        fflush(NULL); \
        (child) = fork(); \
        HOLDS((child) >= 0); \
        if ((child) == 0) { \
            int status_ = (body); \
            fflush(NULL); \
            _Exit(status_); \
        } \
    } while (0)

/* Forks a process for each rank, and keeps the end of a pipe to each. */
static inline void fork_ranks(int ranks, int (*rank_main)(int rank, int from), pid_t *children, int *to) {
    EQUALS(0, pipe(reports));
    for (int rank = 0; rank < ranks; rank++) {
        int ends[2];
        EQUALS(0, pipe(ends));
        FORK(children[rank], rank_main(rank, ends[0]));
        to[rank] = ends[1];
    }
}

/* Sends the ranks an id, with which they join each other. */
static inline void send_id(int ranks, const int *to) {
    ncclUniqueId id;
    CHECK(ncclGetUniqueId(&id));
    for (int rank = 0; rank < ranks; rank++)
        write_all(to[rank], id.internal, sizeof id.internal);
}

static inline ncclComm_t join(int ranks, int rank, int from) {
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    read_all(from, id.internal, sizeof id.internal);
    CHECK(ncclCommInitRank(&comm, ranks, id, rank));
    return comm;
}

/* Adds up the same values of all ranks. */
static inline void check_sum(ncclComm_t comm, int ranks, int *values, int count) {
    for (int i = 0; i < count; i++)
        values[i] = i;
    CHECK(ncclAllReduce(values, values, (size_t)count, ncclInt, ncclSum, comm, STREAM));
    for (int i = 0; i < count; i++)
        EQUALS(ranks * i, values[i]);
}

/* Waits for a child, which has to exit with `expected`. */
static inline void expect_exit(pid_t child, int expected) {
    int status = 0;
    HOLDS(waitpid(child, &status, 0) == child);
    HOLDS(WIFEXITED(status));
    EQUALS(expected, WEXITSTATUS(status));
}

#endif
