/* One process per rank. */
#ifndef PROCESSES_H
#define PROCESSES_H

#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

static inline void write_all(int file, const void *bytes, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t written = write(file, (const char *)bytes + done, length - done);
        REQUIRE(written > 0);
        done += (size_t)written;
    }
}

static inline void read_all(int file, void *bytes, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t taken = read(file, (char *)bytes + done, length - done);
        REQUIRE(taken > 0);
        done += (size_t)taken;
    }
}

/* A pipe on which the ranks report their progress to the parent. */
static int reports[2];

/* Reports that this rank has reached a point of the test. */
static inline void report(void) {
    write_all(reports[1], "!", 1);
}

/* Waits for the parent's signal. */
static inline void wait_for_signal(int from) {
    char signal_;
    read_all(from, &signal_, 1);
}

/* Waits until `ranks` ranks have reported, and then signals one of them. */
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
        REQUIRE((child) >= 0); \
        if ((child) == 0) { \
            int status_ = (body); \
            fflush(NULL); \
            _Exit(status_); \
        } \
    } while (0)

/* Forks a process for each rank, with a pipe to each. */
static inline void fork_ranks(int ranks, int (*rank_main)(int rank, int from), pid_t *children, int *to) {
    REQUIRE_EQUAL(0, pipe(reports));
    for (int rank = 0; rank < ranks; rank++) {
        int ends[2];
        REQUIRE_EQUAL(0, pipe(ends));
        FORK(children[rank], rank_main(rank, ends[0]));
        to[rank] = ends[1];
    }
}

/* Sends a new id to the ranks. */
static inline void send_id(int ranks, const int *to) {
    ncclUniqueId id;
    CHECK(ncclGetUniqueId(&id));
    for (int rank = 0; rank < ranks; rank++)
        write_all(to[rank], id.internal, sizeof id.internal);
}

/* Receives an id, and creates a rank's communicator. */
static inline ncclComm_t join(int ranks, int rank, int from) {
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    read_all(from, id.internal, sizeof id.internal);
    CHECK(ncclCommInitRank(&comm, ranks, id, rank));
    return comm;
}

/* Sums the same values of all ranks, and checks the sums. */
static inline void check_sum(ncclComm_t comm, int ranks, int *values, int count) {
    for (int i = 0; i < count; i++)
        values[i] = i;
    CHECK(ncclAllReduce(values, values, (size_t)count, ncclInt, ncclSum, comm, STREAM));
    for (int i = 0; i < count; i++)
        REQUIRE_EQUAL(ranks * i, values[i]);
}

/* Requires a child to exit with `expected`. */
static inline void expect_exit(pid_t child, int expected) {
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    REQUIRE_EQUAL(expected, WEXITSTATUS(status));
}

#endif
