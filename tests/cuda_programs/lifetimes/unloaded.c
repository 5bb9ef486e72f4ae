/* Closes a library while others still call it: unloaded DIRECTORY LIBRARY MODE. The last thread that has used it has ended. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <nccl.h>

#include "cuda.h"

static const char *directory, *library, *mode;
static void *cudart, *nccl, *stream, *buffer, *executable;
static sem_t gate;
static ncclComm_t comm;
static char recording[512];

static void *load(const char *name) {
    char path[512];
    snprintf(path, sizeof path, name[0] == '/' ? "%s%s" : "%s/%s", name[0] == '/' ? "" : directory, name);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        puts(dlerror());
        _exit(2);
    }
    return handle;
}

static void *symbol(void *handle, const char *name) {
    void *found = dlsym(handle, name);
    if (!found) {
        printf("no %s\n", name);
        _exit(2);
    }
    return found;
}

/* Functions of the two libraries. */
#define CUDA(name) ((__typeof__(&name))symbol(cudart, #name))
#define NCCL(name) ((__typeof__(&name))symbol(nccl, #name))
#define OK(call)                                             \
    do {                                                     \
        int code_ = (int)(call);                             \
        if (code_) printf("%s is %d\n", #call, code_), _exit(1); \
    } while (0)

static int is(const char *name) { return !strcmp(mode, name); }

static void pass_gate(void *unused) {
    (void)unused;
    sem_wait(&gate);
}

static void enqueue(void) {
    float seven = 7;
    ncclUniqueId id;
    void *graph;
    OK(CUDA(cudaSetDevice)(0));
    OK(CUDA(cudaMalloc)(&buffer, 4));
    OK(CUDA(cudaMemcpy)(buffer, &seven, 4, TO_DEVICE));
    OK(CUDA(cudaStreamCreate)(&stream));
    OK(NCCL(ncclGetUniqueId)(&id));
    OK(NCCL(ncclCommInitRank)(&comm, 1, id, 0));
    if (is("graph")) OK(CUDA(cudaStreamBeginCapture)(stream, 0));
    else OK(CUDA(cudaLaunchHostFunc)(stream, pass_gate, NULL));
    OK(NCCL(ncclAllReduce)(buffer, buffer, 1, ncclFloat, ncclSum, comm, (cudaStream_t)stream));
    if (is("graph")) {
        OK(CUDA(cudaStreamEndCapture)(stream, &graph));
        OK(CUDA(cudaGraphInstantiate)(&executable, graph, 0));
    }
    if (is("graph")) OK(NCCL(ncclCommDestroy)(comm));
    if (is("abort")) OK(NCCL(ncclCommAbort)(comm));
}

static void start_init(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    config.blocking = 0;
    OK(NCCL(ncclGetUniqueId)(&id));
    /* The other rank never joins. */
    if (NCCL(ncclCommInitRankConfig)(&comm, 2, id, 0, &config) != ncclInProgress) _exit(1);
}

static void *begin(void *unused) {
    (void)unused;
    cudart = load("libcudart.so.12");
    nccl = load(library);
    if (is("init")) start_init();
    else if (is("signal")) OK(((int (*)(int, const char *))symbol(nccl, "plugin_write_on_signal"))(SIGUSR1, recording));
    else if (is("watchdog")) OK(((int (*)(void))symbol(nccl, "plugin_watch"))());
    else if (is("number")) OK(((int (*)(void))symbol(nccl, "plugin_number"))() - 7);
    else enqueue();
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t thread;
    float result = 0;
    Dl_info info;
    if (argc != 4) return 2;
    directory = argv[1], library = argv[2], mode = argv[3];
    snprintf(recording, sizeof recording, "%s/recording.%d", directory, (int)getpid());
    sem_init(&gate, 0, 0);
    if (pthread_create(&thread, NULL, begin, NULL) || pthread_join(thread, NULL)) return 2;
    void *of_cuda = symbol(cudart, "cudaMalloc"), *of_nccl = symbol(nccl, "ncclGetVersion");
    void *synchronize = symbol(cudart, "cudaStreamSynchronize"), *copy = symbol(cudart, "cudaMemcpy");
    void *set = symbol(cudart, "cudaSetDevice"), *launch = symbol(cudart, "cudaGraphLaunch");
    OK(dlclose(nccl));
    OK(dlclose(cudart));
    if (!dladdr(of_cuda, &info)) puts("libcudart was unloaded"), _exit(1);
    int is_loaded = dladdr(of_nccl, &info);
    if (is_loaded == is("number")) printf("NCCL %s unloaded\n", is_loaded ? "was not" : "was"), _exit(1);
    sem_post(&gate);
    if (is("keep") || is("abort") || is("graph")) {
        OK(((int (*)(int))set)(0));
        if (is("graph")) OK(((int (*)(void *, void *))launch)(executable, stream));
        OK(((int (*)(void *))synchronize)(stream));
        OK(((int (*)(void *, const void *, size_t, int))copy)(&result, buffer, 4, TO_HOST));
        if (result != 7) printf("%g, expected 7\n", result), _exit(1);
    }
    if (is("signal")) {
        raise(SIGUSR1);
        while (access(recording, F_OK)) usleep(1000);
    }
    puts("ok");
    return 0;
}
