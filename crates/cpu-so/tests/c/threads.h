/* A thread for each rank. */
#ifndef THREADS_H
#define THREADS_H

#include "check.h"

#include <pthread.h>

enum { MOST_THREADS = 16 };

/* What a rank's thread is given. */
typedef struct {
    ncclUniqueId id;
    int ranks;
    int rank;
} Rank;

typedef void *(*RankBody)(void *);

/* Runs `body` on a thread for every rank of a communicator to be, and waits for all. */
static inline void on_threads(int ranks, RankBody body) {
    pthread_t threads[MOST_THREADS];
    Rank arguments[MOST_THREADS];
    ncclUniqueId id;
    HOLDS(ranks <= MOST_THREADS);
    memset(&id, 0, sizeof id);
    CHECK(ncclGetUniqueId(&id));
    for (int rank = 0; rank < ranks; rank++) {
        arguments[rank] = (Rank){id, ranks, rank};
        EQUALS(0, pthread_create(&threads[rank], NULL, body, &arguments[rank]));
    }
    for (int rank = 0; rank < ranks; rank++)
        EQUALS(0, pthread_join(threads[rank], NULL));
}

#endif
