/* A nonblocking init whose other ranks never join can be aborted. */

#include "check.h"

int main(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    ncclUniqueId id;
    int count = 0;
    config.blocking = 0;
    CHECK(ncclGetUniqueId(&id));
    REQUIRE_RESULT(ncclInProgress, ncclCommInitRankConfig(&comm, 2, id, 1, &config));
    REQUIRE(comm != NULL);
    for (int round = 0; round < 100; round++) {
        const struct timespec pause = {0, 1000 * 1000};
        ncclResult_t state = ncclSuccess;
        CHECK(ncclCommGetAsyncError(comm, &state));
        REQUIRE_EQUAL(ncclInProgress, state);
        REQUIRE_RESULT(ncclInvalidArgument, ncclCommCount(comm, &count));
        nanosleep(&pause, NULL);
    }
    CHECK(ncclCommAbort(comm));
    puts("ok: a nonblocking init, aborted");
    return 0;
}
