/* The other ranks treat a rank whose process executes another program as dead. */

#include "processes.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

enum { RANKS = 2, COUNT = 1000, LIMIT = 10 };

/* How a rank executes a program. */
enum { ANOTHER, ITSELF, FROM_A_THREAD, WITH_A_CHILD, KINDS };

static void sleep_for(long milliseconds) {
    const struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Executes this program again, which then sleeps. */
static void *execute_itself(void *unused) {
    (void)unused;
    execl("/proc/self/exe", "exec", "sleep", (char *)NULL);
    FAIL("this program cannot be executed");
}

static int stay(void) {
    sleep_for(3 * LIMIT * 1000);
    return 0;
}

static int lost_rank(int kind, int delay, int from) {
    int values[COUNT];
    pthread_t thread;
    pid_t child;
    check_sum(join(RANKS, 1, from), RANKS, values, COUNT);
    sleep_for(delay);
    switch (kind) {
    case ANOTHER:
        execlp("sleep", "sleep", "30", (char *)NULL);
        FAIL("sleep cannot be executed");
    case WITH_A_CHILD:
        /* It inherits the rank's open files, and ends with the rank: the test waits until nothing can write its output. */
        FORK(child, (prctl(PR_SET_PDEATHSIG, SIGKILL), stay()));
        execute_itself(NULL);
        break;
    case FROM_A_THREAD:
        REQUIRE_EQUAL(0, pthread_create(&thread, NULL, execute_itself, NULL));
        pthread_join(thread, NULL);
        break;
    default:
        execute_itself(NULL);
    }
    return 1;
}

static void lose_rank(int kind, int delay) {
    int values[COUNT], ends[2];
    pid_t child;
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    REQUIRE_EQUAL(0, pipe(ends));
    FORK(child, lost_rank(kind, delay, ends[0]));
    CHECK(ncclGetUniqueId(&id));
    write_all(ends[1], id.internal, sizeof id.internal);
    CHECK(ncclCommInitRank(&comm, RANKS, id, 0));
    check_sum(comm, RANKS, values, COUNT);
    const double begin = now();
    REQUIRE_RESULT(ncclRemoteError, ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, comm, STREAM));
    REQUIRE(strstr(ncclGetLastError(comm), "rank 1 died: its process executed another program") != NULL);
    REQUIRE(now() - begin < LIMIT);
    CHECK(ncclCommAbort(comm));
    /* It still runs. */
    REQUIRE(waitpid(child, NULL, WNOHANG) == 0);
    REQUIRE_EQUAL(0, kill(child, SIGKILL));
    REQUIRE(waitpid(child, NULL, 0) == child);
    close(ends[0]);
    close(ends[1]);
}

/* Returns whether address space randomization, which distinguishes programs, is on. */
static int places_programs_at_random(void) {
    FILE *file = fopen("/proc/sys/kernel/randomize_va_space", "r");
    int value = 0;
    REQUIRE(file != NULL && fscanf(file, "%d", &value) == 1);
    fclose(file);
    return value != 0;
}

int main(int count, char **arguments) {
    if (count > 1 && strcmp(arguments[1], "sleep") == 0)
        return stay();
    if (!places_programs_at_random()) {
        puts("ok: skipped, as the kernel does not randomize addresses");
        return 0;
    }
    for (int kind = 0; kind < KINDS; kind++)
        for (int delay = 0; delay <= 300; delay += 300)
            lose_rank(kind, delay);
    puts("ok: ranks that execute another program");
    return 0;
}
