/* A thread that is cancelled while it waits in a call: the call ends as any other, and the cancellation acts after it. */

#include "processes.h"

#include <pthread.h>

enum { RANKS = 2, COUNT = 100000 };

/* What a thread waits in. */
enum { ALL_REDUCE, RECEIVE, GROUP, INIT, SPLIT, KINDS };

static ncclComm_t comms[RANKS];
static ncclUniqueId id;

typedef struct {
    int kind;
    ncclResult_t result;
} Wait;

static void sleep_for(int milliseconds) {
    const struct timespec time = {0, milliseconds * 1000000L};
    nanosleep(&time, NULL);
}

static ncclResult_t exchange(int rank, const int *send, int *receive) {
    ncclResult_t results[3];
    results[0] = ncclSend(send, COUNT, ncclInt, 1 - rank, comms[rank], STREAM);
    results[1] = ncclRecv(receive, COUNT, ncclInt, 1 - rank, comms[rank], STREAM);
    results[2] = ncclGroupEnd();
    for (int i = 0; i < 3; i++)
        if (results[i] != ncclSuccess)
            return results[i];
    return ncclSuccess;
}

/* Makes a rank's call, which waits for that of the other. */
static ncclResult_t make_call(int kind, int rank) {
    int *values = plain_memory(2 * COUNT * sizeof *values);
    ncclComm_t made = NULL;
    ncclResult_t result = ncclInternalError;
    switch (kind) {
    case ALL_REDUCE:
        result = ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, comms[rank], STREAM);
        break;
    case RECEIVE:
        result = rank == 0 ? ncclRecv(values, COUNT, ncclInt, 1, comms[0], STREAM)
                           : ncclSend(values, COUNT, ncclInt, 0, comms[1], STREAM);
        break;
    case GROUP:
        result = ncclGroupStart();
        if (result == ncclSuccess)
            result = exchange(rank, values, values + COUNT);
        break;
    case INIT:
        result = ncclCommInitRank(&made, RANKS, id, rank);
        break;
    case SPLIT:
        result = ncclCommSplit(comms[rank], 0, rank, &made, NULL);
        break;
    }
    if (made != NULL && result == ncclSuccess)
        result = ncclCommDestroy(made);
    free(values);
    return result;
}

static void *wait_in_call(void *argument) {
    Wait *wait_ = argument;
    wait_->result = make_call(wait_->kind, 0);
    pthread_testcancel();
    return NULL;
}

/* Begins a call of rank 0, and cancels its thread after some time. */
static pthread_t cancel_after(int milliseconds, Wait *wait_) {
    pthread_t thread;
    REQUIRE_EQUAL(0, pthread_create(&thread, NULL, wait_in_call, wait_));
    sleep_for(milliseconds);
    REQUIRE_EQUAL(0, pthread_cancel(thread));
    return thread;
}

static void expect_end_after_the_call(pthread_t thread, const Wait *wait_) {
    void *end = NULL;
    REQUIRE_EQUAL(0, pthread_join(thread, &end));
    REQUIRE(end == PTHREAD_CANCELED);
    REQUIRE_EQUAL(ncclSuccess, wait_->result);
}

static void wait_for_a_thread(int kind, int milliseconds) {
    Wait wait_ = {kind, ncclInProgress};
    CHECK(ncclGetUniqueId(&id));
    pthread_t thread = cancel_after(milliseconds, &wait_);
    sleep_for(50);
    CHECK(make_call(kind, 1));
    expect_end_after_the_call(thread, &wait_);
}

/* The rank that is waited for. */
static int come_when_asked(int from) {
    comms[1] = join(RANKS, 1, from);
    wait_for_signal(from);
    CHECK(make_call(ALL_REDUCE, 1));
    CHECK(ncclCommDestroy(comms[1]));
    return 0;
}

/* Whoever waits for another process looks every now and then whether that lives. */
static void wait_for_a_process(int to, pid_t child) {
    Wait wait_ = {ALL_REDUCE, ncclInProgress};
    CHECK(ncclGetUniqueId(&id));
    write_all(to, id.internal, sizeof id.internal);
    CHECK(ncclCommInitRank(&comms[0], RANKS, id, 0));
    pthread_t thread = cancel_after(100, &wait_);
    sleep_for(700);
    write_all(to, "!", 1);
    expect_end_after_the_call(thread, &wait_);
    CHECK(ncclCommDestroy(comms[0]));
    expect_exit(child, 0);
}

int main(void) {
    static const int delays[] = {0, 20, 100};
    int ends[2];
    pid_t child;
    REQUIRE_EQUAL(0, pipe(ends));
    FORK(child, come_when_asked(ends[0]));
    wait_for_a_process(ends[1], child);

    CHECK(ncclCommInitAll(comms, RANKS, NULL));
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t i = 0; i < sizeof delays / sizeof *delays; i++)
            wait_for_a_thread(kind, delays[i]);
    for (int rank = 0; rank < RANKS; rank++)
        CHECK(ncclCommDestroy(comms[rank]));
    puts("ok: threads cancelled in calls");
    return 0;
}
