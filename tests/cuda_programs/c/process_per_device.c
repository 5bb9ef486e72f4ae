/* A process for each device: the parent sends the id, and uses no CUDA before it forks. */

#include "check.h"
#include "cuda_check.h"
#include "nccl_device_host.h"
#include "processes.h"

enum { DEVICES = 3, COUNT = 100003 };

/* The peer pointer is NULL for another process, and the memory's own address for this rank. */
static void check_addresses(ncclComm_t comm, int rank) {
    ncclWindow_t window = NULL;
    void *memory = NULL, *address = NULL;
    CHECK(ncclMemAlloc(&memory, COUNT));
    CHECK(ncclCommWindowRegister(comm, memory, COUNT, &window, NCCL_WIN_COLL_SYMMETRIC));
    REQUIRE(window != NULL);
    for (int peer = 0; peer < DEVICES; peer++) {
        address = &window;
        CHECK(ncclGetPeerDevicePointer(window, 0, peer, &address));
        REQUIRE(address == (peer == rank ? memory : NULL));
    }
    const ncclTeam_t lsa = ncclTeamLsa(comm), rail = ncclTeamRail(comm);
    REQUIRE(lsa.nRanks == 1 && lsa.rank == 0 && lsa.stride == 1);
    REQUIRE(rail.nRanks == DEVICES && rail.rank == rank && rail.stride == 1);
    CHECK(ncclCommWindowDeregister(comm, window));
    CHECK(ncclMemFree(memory));
}

static int rank_main(int rank, int from) {
    CUDA(cudaSetDevice(rank));
    ncclComm_t comm = join(DEVICES, rank, from);
    int32_t *send = NULL, *receive = NULL, *host = malloc(DEVICES * COUNT * sizeof *host);
    REQUIRE(host != NULL);
    CUDA(cudaMalloc((void **)&send, COUNT * sizeof *send));
    CUDA(cudaMalloc((void **)&receive, DEVICES * COUNT * sizeof *receive));
    for (int i = 0; i < COUNT; i++)
        host[i] = rank * 7 + i;
    TO_DEVICE(send, host, COUNT);
    CHECK(ncclAllGather(send, receive, COUNT, ncclInt32, comm, STREAM));
    TO_HOST(host, receive, DEVICES * COUNT);
    for (int i = 0; i < DEVICES * COUNT; i++)
        REQUIRE_EQUAL(i / COUNT * 7 + i % COUNT, host[i]);
    check_addresses(comm, rank);
    CHECK(ncclCommDestroy(comm));
    CUDA(cudaFree(send));
    CUDA(cudaFree(receive));
    free(host);
    return 0;
}

int main(void) {
    pid_t children[DEVICES];
    int to[DEVICES];
    fork_ranks(DEVICES, rank_main, children, to);
    send_id(DEVICES, to);
    for (int rank = 0; rank < DEVICES; rank++)
        expect_exit(children[rank], 0);
    puts("ok: a process for each device");
    return 0;
}
