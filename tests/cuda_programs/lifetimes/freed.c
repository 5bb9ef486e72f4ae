/* Frees memory that is still referenced, or removes the reference first: freed REFERENCE MEMORY ORDER.
 * - REFERENCE: "registration", "part" (a registration of some bytes), "window", "graph", "process"
 * - MEMORY: "device", "pool", "pinned", "nccl"
 * - ORDER: "right", "wrong" (the free succeeds), "refused" (the free is an error, and succeeds in the right order) */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nccl.h>

#include "cuda.h"

typedef struct {
    char bytes[64];
} handle_t;
int cudaIpcGetMemHandle(handle_t *handle, void *memory);
int cudaIpcOpenMemHandle(void **memory, handle_t handle, unsigned flags);
int cudaIpcCloseMemHandle(void *memory);

#define EXPECT(code, call)                                                                \
    do {                                                                                  \
        int code_ = (int)(call);                                                          \
        if (code_ != (code)) printf("%s is %d, expected %d\n", #call, code_, (int)(code)), exit(1); \
    } while (0)
#define OK(call) EXPECT(0, call)

enum { LENGTH = 1 << 16 };

static const char *reference, *kind, *order;
static void *stream, *memory, *registration, *executable, *graph;
static ncclComm_t comm;
static ncclWindow_t window;
static int to_child[2], to_parent[2];
static pid_t child;

static int refers_by(const char *name) { return !strcmp(reference, name); }
static int is_kind(const char *name) { return !strcmp(kind, name); }

static void allocate(void) {
    if (is_kind("device")) OK(cudaMalloc(&memory, LENGTH));
    if (is_kind("pool")) OK(cudaMallocAsync(&memory, LENGTH, stream));
    if (is_kind("pinned")) OK(cudaMallocHost(&memory, LENGTH));
    if (is_kind("nccl")) OK(ncclMemAlloc(&memory, LENGTH));
    OK(cudaStreamSynchronize(stream));
}

static int free_memory(void) {
    if (is_kind("device")) return cudaFree(memory);
    if (is_kind("pool")) return cudaFreeAsync(memory, stream);
    if (is_kind("pinned")) return cudaFreeHost(memory);
    return ncclMemFree(memory);
}

static void pass(int descriptor) { OK(write(descriptor, "", 1) != 1); }
static void await(int descriptor) {
    char byte;
    OK(read(descriptor, &byte, 1) != 1);
}

/* The other process: opens the memory, and closes it when it may. */
static void import(void) {
    handle_t handle;
    void *opened;
    OK(read(to_child[0], &handle, sizeof handle) != sizeof handle);
    OK(cudaSetDevice(0));
    OK(cudaIpcOpenMemHandle(&opened, handle, 1));
    pass(to_parent[1]);
    await(to_child[0]);
    OK(cudaIpcCloseMemHandle(opened));
    pass(to_parent[1]);
    exit(0);
}

static void refer(void) {
    handle_t handle;
    if (refers_by("registration")) OK(ncclCommRegister(comm, memory, LENGTH, &registration));
    if (refers_by("part")) OK(ncclCommRegister(comm, (char *)memory + 4096, 64, &registration));
    if (refers_by("window")) OK(ncclCommWindowRegister(comm, memory, LENGTH, &window, 0));
    if (refers_by("graph")) {
        OK(cudaStreamBeginCapture(stream, 0));
        OK(cudaMemsetAsync(memory, 1, LENGTH, stream));
        OK(cudaStreamEndCapture(stream, &graph));
        OK(cudaGraphInstantiate(&executable, graph, 0));
        OK(cudaGraphLaunch(executable, stream));
        OK(cudaStreamSynchronize(stream));
    }
    if (refers_by("process")) {
        OK(cudaIpcGetMemHandle(&handle, memory));
        OK(write(to_child[1], &handle, sizeof handle) != sizeof handle);
        await(to_parent[0]);
    }
}

static void take_back(void) {
    int status;
    if (registration) OK(ncclCommDeregister(comm, registration));
    if (window) OK(ncclCommWindowDeregister(comm, window));
    if (executable) OK(cudaGraphExecDestroy(executable));
    if (graph) OK(cudaGraphDestroy(graph));
    if (child) {
        pass(to_child[1]);
        await(to_parent[0]);
        OK(waitpid(child, &status, 0) != child || status);
    }
}

int main(int argc, char **argv) {
    ncclUniqueId id;
    if (argc != 4) return 2;
    reference = argv[1], kind = argv[2], order = argv[3];
    if (refers_by("process")) {
        OK(pipe(to_child) | pipe(to_parent));
        child = fork();
        if (!child) import();
    }
    OK(cudaSetDevice(0));
    OK(cudaStreamCreate(&stream));
    OK(ncclGetUniqueId(&id));
    OK(ncclCommInitRank(&comm, 1, id, 0));
    allocate();
    refer();
    if (!strcmp(order, "refused")) EXPECT(is_kind("nccl") ? ncclInvalidUsage : INVALID_VALUE, free_memory());
    if (!strcmp(order, "wrong")) {
        OK(free_memory());
        if (executable) EXPECT(INVALID_VALUE, cudaGraphLaunch(executable, stream));
    }
    take_back();
    if (strcmp(order, "wrong")) OK(free_memory());
    OK(cudaStreamSynchronize(stream));
    OK(ncclCommDestroy(comm));
    OK(cudaStreamDestroy(stream));
    puts("ok");
    return 0;
}
