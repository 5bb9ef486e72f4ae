/* A process whose main thread has exited, while another thread continues: it remains a normal rank. */

#include "processes.h"

#include <pthread.h>

enum { RANKS = 2, COUNT = 300007, SIZE = COUNT * sizeof(int) };

static pid_t child;
static int to_child;

static void use(ncclComm_t comm) {
    int *memory = device_memory(SIZE), *plain = plain_memory(SIZE);
    ncclWindow_t window = NULL;
    check_sum(comm, RANKS, memory, COUNT);
    check_sum(comm, RANKS, plain, COUNT);
    CHECK(ncclCommWindowRegister(comm, memory, SIZE, &window, NCCL_WIN_COLL_SYMMETRIC));
    /* There is none if one of the processes cannot map the other's memory. */
    REQUIRE(window != NULL);
    CHECK(ncclCommWindowDeregister(comm, window));
    CHECK(ncclMemFree(memory));
    free(plain);
    CHECK(ncclCommDestroy(comm));
}

static void *go_on(void *unused) {
    const struct timespec pause = {0, 1000 * 1000};
    char text[64];
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    (void)unused;
    /* The namespaces are the last resource that the exiting main thread releases. */
    while (readlink("/proc/self/ns/net", text, sizeof text) >= 0)
        nanosleep(&pause, NULL);
    CHECK(ncclGetUniqueId(&id));
    write_all(to_child, id.internal, sizeof id.internal);
    CHECK(ncclCommInitRank(&comm, RANKS, id, 0));
    use(comm);
    expect_exit(child, 0);
    puts("ok: a rank whose main thread has exited");
    exit(0);
}

int main(void) {
    int ends[2];
    pthread_t thread;
    REQUIRE_EQUAL(0, pipe(ends));
    FORK(child, (use(join(RANKS, 1, ends[0])), 0));
    to_child = ends[1];
    REQUIRE_EQUAL(0, pthread_create(&thread, NULL, go_on, NULL));
    pthread_exit(NULL);
}
