/* One thread per rank. */
#ifndef THREADS_H
#define THREADS_H

#include "check.h"

#include <pthread.h>

enum { MAX_THREADS = 16 };

/* The argument of a rank's thread. */
typedef struct {
    ncclUniqueId id;
    int ranks;
    int rank;
} Rank;

typedef void *(*RankBody)(void *);

/* Runs `body` on a thread for each rank of a new id, and waits for all. */
static inline void on_threads(int ranks, RankBody body) {
    pthread_t threads[MAX_THREADS];
    Rank arguments[MAX_THREADS];
    ncclUniqueId id;
    REQUIRE(ranks <= MAX_THREADS);
    memset(&id, 0, sizeof id);
    CHECK(ncclGetUniqueId(&id));
    for (int rank = 0; rank < ranks; rank++) {
        arguments[rank] = (Rank){id, ranks, rank};
        REQUIRE_EQUAL(0, pthread_create(&threads[rank], NULL, body, &arguments[rank]));
    }
    for (int rank = 0; rank < ranks; rank++)
        REQUIRE_EQUAL(0, pthread_join(threads[rank], NULL));
}

#endif
