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

/* Waits for a child, which has to exit with `expected`. */
static inline void expect_exit(pid_t child, int expected) {
    int status = 0;
    HOLDS(waitpid(child, &status, 0) == child);
    HOLDS(WIFEXITED(status));
    EQUALS(expected, WEXITSTATUS(status));
}

#endif
