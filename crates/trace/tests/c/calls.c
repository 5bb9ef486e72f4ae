/* Two ranks of one thread: calls [wait]. With LOAD defined, NCCL is loaded by the name that it has. */
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef LOAD
#include <dlfcn.h>
static void *library;
#define CALL(name) ((__typeof__(&name))dlsym(library, #name))
#else
#define CALL(name) name
#endif

static void expect(ncclResult_t code, const char *what) {
    if (code == ncclSuccess) return;
    fprintf(stderr, "%s: %d, %s\n", what, code, CALL(ncclGetLastError)(NULL));
    exit(2);
}

int main(int argc, char **argv) {
#ifdef LOAD
    library = dlopen(LOAD, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
#endif
    ncclComm_t comms[2], halves[2];
    float from[3] = {1, 2, 3}, to[2][3];
    char message[5] = "abcd", received[5] = "";
    expect(CALL(ncclCommInitAll)(comms, 2, NULL), "ncclCommInitAll");
    if (argc > 1 && strcmp(argv[1], "wait") == 0) {
        puts("waiting");
        fflush(stdout);
        /* Nobody sends. */
        CALL(ncclRecv)(received, 5, ncclChar, 1, comms[0], NULL);
        return 4;
    }
    expect(CALL(ncclGroupStart)(), "ncclGroupStart");
    for (int rank = 0; rank < 2; rank++)
        expect(CALL(ncclAllReduce)(from, to[rank], 3, ncclFloat, ncclSum, comms[rank], NULL), "ncclAllReduce");
    expect(CALL(ncclGroupEnd)(), "ncclGroupEnd");
    expect(CALL(ncclGroupStart)(), "ncclGroupStart");
    expect(CALL(ncclSend)(message, 5, ncclChar, 1, comms[0], NULL), "ncclSend");
    expect(CALL(ncclRecv)(received, 5, ncclChar, 0, comms[1], NULL), "ncclRecv");
    expect(CALL(ncclGroupEnd)(), "ncclGroupEnd");
    /* A child writes no recording of its parent. */
    pid_t child = fork();
    if (child == 0) exit(0);
    int status;
    if (waitpid(child, &status, 0) != child || status) return 5;
    expect(CALL(ncclGroupStart)(), "ncclGroupStart");
    for (int rank = 0; rank < 2; rank++)
        expect(CALL(ncclCommSplit)(comms[rank], rank, 0, &halves[rank], NULL), "ncclCommSplit");
    expect(CALL(ncclGroupEnd)(), "ncclGroupEnd");
    expect(CALL(ncclBcast)(to[1], 3, ncclFloat, 0, halves[1], NULL), "ncclBcast");
    if (CALL(ncclAllReduce)(from, to[0], 3, (ncclDataType_t)99, ncclSum, halves[0], NULL) == ncclSuccess) return 6;
    for (int rank = 0; rank < 2; rank++) {
        expect(CALL(ncclCommDestroy)(halves[rank]), "ncclCommDestroy");
        expect(CALL(ncclCommDestroy)(comms[rank]), "ncclCommDestroy");
    }
    return to[1][2] == 6 && strcmp(received, "abcd") == 0 ? 0 : 7;
}
