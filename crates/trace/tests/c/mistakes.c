/* A rank of three, of which the last one makes a mistake: mistakes MISTAKE DIRECTORY. RANK is in the environment; rank 0 gives
 * the others the ids of two communicators in files of the directory. */
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 3, FAULTY = RANKS - 1, LENGTH = 8 };

/* Milliseconds: what has to succeed may take as long as the machine needs. */
enum { ENOUGH = 60000, DEADLINE = 700 };

static int rank;
static const char *mistake;

static void nap(int milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

static void expect(ncclResult_t code, const char *what) {
    if (code == ncclSuccess) return;
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, ncclGetErrorString(code));
    exit(2);
}

/* Waits for what a call has begun. After the deadline, aborts the communicator. */
static ncclResult_t wait_for(ncclComm_t *comm, ncclResult_t code, int deadline) {
    for (int waited = 0; code == ncclInProgress; waited++) {
        if (waited == deadline) {
            ncclCommAbort(*comm);
            *comm = NULL;
            return ncclTimeout;
        }
        nap(1);
        ncclResult_t queried = ncclCommGetAsyncError(*comm, &code);
        if (queried != ncclSuccess) return queried;
    }
    return code;
}

static ncclUniqueId exchange_id(const char *folder, int number) {
    char path[4096], unfinished[4096 + 16];
    ncclUniqueId id;
    snprintf(path, sizeof path, "%s/id%d", folder, number);
    snprintf(unfinished, sizeof unfinished, "%s.unfinished", path);
    if (rank == 0) {
        expect(ncclGetUniqueId(&id), "ncclGetUniqueId");
        FILE *file = fopen(unfinished, "wb");
        if (!file || fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) || rename(unfinished, path)) exit(3);
        return id;
    }
    FILE *file = NULL;
    for (int waited = 0; !(file = fopen(path, "rb")); waited++) {
        if (waited == ENOUGH) exit(4);
        nap(1);
    }
    if (fread(&id, sizeof id, 1, file) != 1) exit(5);
    fclose(file);
    return id;
}

static ncclResult_t sum(ncclComm_t *comm, size_t length, ncclDataType_t type, int deadline) {
    static double values[16];
    return wait_for(comm, ncclAllReduce(values, values, length, type, ncclSum, *comm, NULL), deadline);
}

static ncclResult_t broadcast(ncclComm_t *comm, int root) {
    static float values[LENGTH];
    return wait_for(comm, ncclBroadcast(values, values, LENGTH, ncclFloat32, root, *comm, NULL), DEADLINE);
}

static int is(const char *name) { return strcmp(mistake, name) == 0; }

/* Makes the calls of a rank, of which the last one makes the mistake. */
static ncclResult_t call(ncclComm_t *comm, ncclComm_t *other) {
    int is_faulty = rank == FAULTY;
    static float values[16];
    static char message[4];
    if (is("order")) {
        ncclResult_t first = is_faulty ? broadcast(comm, 0) : sum(comm, LENGTH, ncclFloat32, DEADLINE);
        if (first != ncclSuccess) return first;
        return is_faulty ? sum(comm, LENGTH, ncclFloat32, DEADLINE) : broadcast(comm, 0);
    }
    if (is("root")) return broadcast(comm, is_faulty ? 1 : 0);
    if (is("missing call") ? is_faulty : is("extra call") && !is_faulty) return ncclSuccess;
    if (is("count")) return sum(comm, is_faulty ? LENGTH + 1 : LENGTH, ncclFloat32, DEADLINE);
    if (is("type") && is_faulty) return sum(comm, LENGTH, ncclFloat64, DEADLINE);
    if (is("other communicator") && is_faulty) return sum(other, LENGTH, ncclFloat32, DEADLINE);
    /* Ranks 0 and 2 exchange a message, before the collective or in a group with it. */
    if (is("group against none") && is_faulty) {
        ncclResult_t code = ncclRecv(message, sizeof message, ncclChar, 0, *comm, NULL);
        code = wait_for(comm, code, DEADLINE);
        return code == ncclSuccess ? sum(comm, LENGTH, ncclFloat32, DEADLINE) : code;
    }
    if (is("group against none") && rank == 0) {
        expect(ncclGroupStart(), "ncclGroupStart");
        ncclAllReduce(values, values, LENGTH, ncclFloat32, ncclSum, *comm, NULL);
        ncclSend(message, sizeof message, ncclChar, FAULTY, *comm, NULL);
        return wait_for(comm, ncclGroupEnd(), DEADLINE);
    }
    if (is("message")) {
        if (is_faulty) return wait_for(comm, ncclRecv(values, 9, ncclFloat32, 0, *comm, NULL), DEADLINE);
        if (rank == 0) return wait_for(comm, ncclSend(values, 8, ncclFloat32, FAULTY, *comm, NULL), DEADLINE);
        return ncclSuccess;
    }
    return sum(comm, LENGTH, ncclFloat32, DEADLINE);
}

int main(int argc, char **argv) {
    if (argc != 3 || !getenv("RANK")) return 1;
    rank = atoi(getenv("RANK"));
    mistake = argv[1];
    ncclComm_t comms[2];
    for (int i = 0; i < 2; i++) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        config.commName = i ? "second" : "first";
        ncclResult_t code = ncclCommInitRankConfig(&comms[i], RANKS, exchange_id(argv[2], i), rank, &config);
        expect(wait_for(&comms[i], code, ENOUGH), "ncclCommInitRankConfig");
    }
    for (int i = 0; i < 2; i++) expect(sum(&comms[i], LENGTH, ncclFloat32, ENOUGH), "ncclAllReduce");
    if (rank == FAULTY && is("dead rank")) abort();
    ncclResult_t code = call(&comms[0], &comms[1]);
    printf("rank %d: %s\n", rank, ncclGetErrorString(code));
    fflush(stdout);
    /* Until the deadlines of the others have passed, none ends. */
    nap(2 * DEADLINE);
    return 0;
}
