/* The host functions of the device API: teams, addresses of windows, and the error for what only kernels need. */

#include "processes.h"
#include "threads.h"

#include "nccl_device_host.h"

enum { RANKS = 6, PROCESSES = 2, COUNT = 4096, SIZE = COUNT * sizeof(int) };

static void expect_team(int ranks, int rank, int stride, ncclTeam_t team) {
    REQUIRE_EQUAL(ranks, team.nRanks);
    REQUIRE_EQUAL(rank, team.rank);
    REQUIRE_EQUAL(stride, team.stride);
}

static int value_of(int rank, int i) {
    return rank * 1000003 + i;
}

/* Requires the last error to have a text. */
static void expect_error(const char *text) {
    if (strstr(ncclGetLastError(NULL), text) == NULL)
        FAIL("the last error is not about \"%s\": %s", text, ncclGetLastError(NULL));
}

/* All ranks are on one host, so that all are one LSA team, and a rail has one rank. */
static void check_teams(ncclComm_t comm, int ranks, int rank) {
    const ncclTeam_t world = ncclTeamWorld(comm), lsa = ncclTeamLsa(comm), rail = ncclTeamRail(comm);
    expect_team(ranks, rank, 1, world);
    expect_team(ranks, rank, 1, lsa);
    expect_team(1, 0, ranks, rail);
    ncclCommProperties_t properties = {
        .size = sizeof properties, .magic = NCCL_API_MAGIC, .version = NCCL_VERSION_CODE};
    CHECK(ncclCommQueryProperties(comm, &properties));
    REQUIRE_EQUAL(1, properties.nLsaTeams);
}

/* Each rank reads the values of all others at the addresses that it gets. */
static void check_addresses(ncclComm_t comm, int ranks, int rank) {
    ncclWindow_t window = NULL;
    void *address = NULL;
    int *memory = device_memory(SIZE);
    for (int i = 0; i < COUNT; i++)
        memory[i] = value_of(rank, i);
    CHECK(ncclCommWindowRegister(comm, memory, SIZE, &window, NCCL_WIN_COLL_SYMMETRIC));
    REQUIRE(window != NULL);
    for (int peer = 0; peer < ranks; peer++) {
        CHECK(ncclGetPeerDevicePointer(window, 0, peer, &address));
        for (int i = 0; i < COUNT; i++)
            REQUIRE_EQUAL(value_of(peer, i), ((const int *)address)[i]);
        CHECK(ncclGetPeerDevicePointer(window, SIZE - sizeof(int), peer, &address));
        REQUIRE_EQUAL(value_of(peer, COUNT - 1), *(const int *)address);
    }
    CHECK(ncclGetPeerDevicePointer(window, 0, rank, &address));
    REQUIRE(address == memory);

    REQUIRE_RESULT(ncclInvalidArgument, ncclGetPeerDevicePointer(window, SIZE, rank, &address));
    expect_error("invalid offset 16384: the window of rank");
    REQUIRE_RESULT(ncclInvalidArgument, ncclGetPeerDevicePointer(window, 0, ranks, &address));
    REQUIRE_RESULT(ncclInvalidArgument, ncclGetPeerDevicePointer(window, 0, rank, NULL));
    REQUIRE(address == memory);

    /* There is no multicast. */
    CHECK(ncclGetLsaMultimemDevicePointer(window, 0, &address));
    REQUIRE(address == NULL);

    /* No rank ends its part before all have read it. */
    int one = 1;
    CHECK(ncclAllReduce(&one, &one, 1, ncclInt, ncclSum, comm, STREAM));
    CHECK(ncclCommWindowDeregister(comm, window));
    REQUIRE_RESULT(ncclInvalidArgument, ncclGetPeerDevicePointer(window, 0, rank, &address));
    expect_error("is not a window of this process: it was deregistered");
    CHECK(ncclMemFree(memory));
}

static void check_what_needs_kernels(ncclComm_t comm) {
    ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    ncclDevComm_t made;
    memset(&made, 0, sizeof made);
    REQUIRE_RESULT(ncclInvalidUsage, ncclDevCommCreate(comm, &requirements, &made));
    expect_error("is for kernels, and the CPU backend runs none: see deviceApiSupport");
    REQUIRE_RESULT(ncclInvalidArgument, ncclDevCommCreate(comm, NULL, &made));
    REQUIRE_RESULT(ncclInvalidUsage, ncclDevCommDestroy(comm, &made));
    expect_error("there is no device communicator to destroy");

    void *address = NULL;
    expect_team(0, 0, 0, ncclTeamCftMultimem(comm));
    expect_error("ncclTeamCftMultimem is for kernels, and the CPU backend runs none: see deviceApiSupport");
    REQUIRE_EQUAL(-1, ncclTeamRankToWorld(comm, ncclTeamWorld(comm), 0));
    REQUIRE_EQUAL(-1, ncclLLA2ACalcSlots(16, 4));
    REQUIRE_RESULT(ncclInvalidArgument, ncclGetLsaDevicePointer(NULL, 0, 0, &address));
    expect_error("ncclGetLsaDevicePointer is for kernels");
}

static void check_rank(ncclComm_t comm, int ranks, int rank) {
    check_teams(comm, ranks, rank);
    check_addresses(comm, ranks, rank);
    check_what_needs_kernels(comm);
    CHECK(ncclCommDestroy(comm));
}

static int process_main(int rank, int from) {
    check_rank(join(PROCESSES, rank, from), PROCESSES, rank);
    return 0;
}

static void *rank_main(void *argument) {
    const Rank *me = argument;
    ncclComm_t comm = NULL;
    CHECK(ncclCommInitRank(&comm, me->ranks, me->id, me->rank));
    check_rank(comm, me->ranks, me->rank);
    return NULL;
}

/* What is no communicator has no team, and no crash. */
static void check_null(void) {
    void *address = NULL;
    ncclDevComm_t made;
    expect_team(0, 0, 0, ncclTeamWorld(NULL));
    expect_error("the communicator is NULL");
    expect_team(0, 0, 0, ncclTeamLsa(NULL));
    expect_team(0, 0, 0, ncclTeamRail(NULL));
    REQUIRE_RESULT(ncclInvalidArgument, ncclDevCommDestroy(NULL, &made));
    REQUIRE_RESULT(ncclInvalidArgument, ncclGetPeerDevicePointer(NULL, 0, 0, &address));
    expect_error("the window is NULL");
}

int main(void) {
    pid_t children[PROCESSES];
    int to[PROCESSES];
    fork_ranks(PROCESSES, process_main, children, to);
    send_id(PROCESSES, to);
    for (int rank = 0; rank < PROCESSES; rank++)
        expect_exit(children[rank], 0);
    on_threads(1, rank_main);
    on_threads(RANKS, rank_main);
    check_null();
    puts("ok: teams and addresses");
    return 0;
}
