/* A program that loads CUDA after NCCL, and creates communicators before: they are on devices nevertheless, except the one that
 * has already worked on host memory. */

#include "check.h"
#include "cuda_check.h"

#include <cuda.h>
#include <dlfcn.h>

enum { DEVICES = 2, COUNT = 1009, BYTES = COUNT * sizeof(int32_t) };

static void *library;

/* Calls a function of the driver. */
#define DRIVER(name, ...) REQUIRE_EQUAL(CUDA_SUCCESS, ((__typeof__(&name))find(#name))(__VA_ARGS__))

static void *find(const char *name) {
    void *function = dlsym(library, name);
    REQUIRE(function != NULL);
    return function;
}

static void sum_on_devices(ncclComm_t comms[DEVICES], const CUdeviceptr memory[DEVICES], const CUcontext contexts[DEVICES]) {
    int32_t host[COUNT];
    for (int i = 0; i < DEVICES; i++) {
        for (int k = 0; k < COUNT; k++)
            host[k] = i * 1000 + k;
        DRIVER(cuCtxSetCurrent, contexts[i]);
        DRIVER(cuMemcpyHtoD_v2, memory[i], host, BYTES);
    }
    CHECK(ncclGroupStart());
    for (int i = 0; i < DEVICES; i++)
        CHECK(ncclAllReduce((void *)memory[i], (void *)memory[i], COUNT, ncclInt32, ncclSum, comms[i], 0));
    CHECK(ncclGroupEnd());
    for (int i = 0; i < DEVICES; i++) {
        DRIVER(cuCtxSetCurrent, contexts[i]);
        DRIVER(cuCtxSynchronize);
        DRIVER(cuMemcpyDtoH_v2, host, memory[i], BYTES);
        for (int k = 0; k < COUNT; k++)
            REQUIRE_EQUAL(1000 + 2 * k, host[k]);
    }
}

static void sum_on_host(ncclComm_t comm) {
    int32_t number = 7, sum = 0;
    CHECK(ncclAllReduce(&number, &sum, 1, ncclInt32, ncclSum, comm, 0));
    REQUIRE_EQUAL(7, sum);
}

int main(void) {
    ncclComm_t all[DEVICES], split[DEVICES], of_host;
    ncclUniqueId id;
    void *memory = NULL;
    CHECK(ncclGetUniqueId(&id));
    CHECK(ncclCommInitRank(&of_host, 1, id, 0));
    CHECK(ncclMemAlloc(&memory, 4096));
    memset(memory, 1, 4096);
    CHECK(ncclMemFree(memory));
    sum_on_host(of_host);
    CHECK(ncclCommInitAll(all, DEVICES, NULL));
    CHECK(ncclGroupStart());
    for (int i = 0; i < DEVICES; i++)
        CHECK(ncclCommSplit(all[i], 0, i, &split[i], NULL));
    CHECK(ncclGroupEnd());
    REQUIRE(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) == NULL);

    library = dlopen("libcuda.so.1", RTLD_NOW);
    REQUIRE(library != NULL);
    DRIVER(cuInit, 0);
    CUcontext contexts[DEVICES];
    CUdeviceptr device[DEVICES];
    for (int i = 0; i < DEVICES; i++) {
        DRIVER(cuDevicePrimaryCtxRetain, &contexts[i], i);
        DRIVER(cuCtxSetCurrent, contexts[i]);
        DRIVER(cuMemAlloc_v2, &device[i], BYTES);
    }
    sum_on_devices(split, device, contexts);
    sum_on_devices(all, device, contexts);
    sum_on_host(of_host);
    CHECK(ncclCommDestroy(of_host));
    for (int i = 0; i < DEVICES; i++) {
        CHECK(ncclCommDestroy(split[i]));
        CHECK(ncclCommDestroy(all[i]));
    }
    puts("ok: CUDA after NCCL");
    return 0;
}
