/* The other ranks never come: a non-blocking init can be given up. */

#include "check.h"

int main(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    ncclUniqueId id;
    int count = 0;
    config.blocking = 0;
    CHECK(ncclGetUniqueId(&id));
    ANSWERS(ncclInProgress, ncclCommInitRankConfig(&comm, 2, id, 1, &config));
    HOLDS(comm != NULL);
    for (int round = 0; round < 100; round++) {
        const struct timespec pause = {0, 1000 * 1000};
        ncclResult_t state = ncclSuccess;
        CHECK(ncclCommGetAsyncError(comm, &state));
        EQUALS(ncclInProgress, state);
        ANSWERS(ncclInvalidArgument, ncclCommCount(comm, &count));
        nanosleep(&pause, NULL);
    }
    CHECK(ncclCommAbort(comm));
    puts("ok: a non-blocking init, given up");
    return 0;
}
