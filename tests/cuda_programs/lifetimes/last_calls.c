/* Uses every library when the process and a thread end. Arguments:
 * - "before" (CUDA and NCCL are used before the functions are registered), "after", or "never" (not before the end)
 * - "main" or "other": the thread that calls exit()
 * It is compiled as C and as C++, which adds the destructors of a static and of two thread-local objects. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdlib.h>

#include "use.h"

static ncclComm_t pending_comm;
static void *pending_stream, *pending_buffer;

/* Enqueues an operation, whose result is read when the process exits. */
static void enqueue(void) {
    const char *moment = "enqueue";
    int bad = 0;
    float seven = 7;
    ncclUniqueId id;
    OK(cudaSetDevice(0));
    OK(cudaStreamCreate(&pending_stream));
    OK(cudaMalloc(&pending_buffer, 4));
    OK(cudaMemcpy(pending_buffer, &seven, 4, TO_DEVICE));
    OK(ncclGetUniqueId(&id));
    OK(ncclCommInitRank(&pending_comm, 1, id, 0));
    OK(ncclAllReduce(pending_buffer, pending_buffer, 1, ncclFloat, ncclSum, pending_comm, (cudaStream_t)pending_stream));
    if (bad) abort();
}

static void finish(const char *moment) {
    int bad = 0;
    float result = 0;
    if (!pending_comm) return;
    OK(ncclAllReduce(pending_buffer, pending_buffer, 1, ncclFloat, ncclSum, pending_comm, (cudaStream_t)pending_stream));
    OK(cudaStreamSynchronize(pending_stream));
    OK(cudaMemcpy(&result, pending_buffer, 4, TO_HOST));
    IS(result == 7);
    OK(ncclCommDestroy(pending_comm));
    OK(cudaFree(pending_buffer));
    OK(cudaStreamDestroy(pending_stream));
    pending_comm = NULL;
    if (bad) printf("%s: the result is lost\n", moment);
}

static void at_exit(void) {
    finish("atexit");
    use_all("atexit");
}

__attribute__((destructor)) static void destructor(void) { use_all("destructor"); }

/* A pthread key, whose destructor sets the key again until its last round. */
static pthread_key_t key;

static void end_of_key(void *round) {
    static const char *const NAMES[] = {"", "key, round 1", "key, round 2", "key, round 3", "key, round 4"};
    uintptr_t number = (uintptr_t)round;
    use_all(NAMES[number]);
    if (number < 4) pthread_setspecific(key, (void *)(number + 1));
}

#ifdef __cplusplus
struct Object {
    const char *moment;
    ~Object() {
        if (moment) use_all(moment);
    }
};
static Object unregistered_object = {"static object"};
static thread_local Object of_thread = {NULL};
#endif

static void register_functions(void) {
    atexit(at_exit);
#ifdef __cplusplus
    static Object registered_object = {"static object of a function"};
    of_thread.moment = "thread-local object of the thread that exits";
#endif
}

static void use_before(const char *moment) {
    use_all(moment);
    enqueue();
}

static void *end_thread(void *mode) {
#ifdef __cplusplus
    of_thread.moment = "thread-local object";
#endif
    pthread_setspecific(key, (void *)1);
    if (strcmp((const char *)mode, "never")) use_all("thread");
    return NULL;
}

static void *exit_here(void *mode) {
    if (!strcmp((const char *)mode, "before")) use_before("before");
    register_functions();
    if (!strcmp((const char *)mode, "after")) use_before("after");
    exit(0);
}

int main(int argc, char **argv) {
    pthread_t thread;
    if (argc != 3 || pthread_key_create(&key, end_of_key)) return 2;
    if (strcmp(argv[1], "never") == 0 || strcmp(argv[2], "other") == 0) {
        pthread_create(&thread, NULL, end_thread, argv[1]);
        pthread_join(thread, NULL);
    }
    if (strcmp(argv[2], "other") == 0) {
        pthread_create(&thread, NULL, exit_here, argv[1]);
        pthread_join(thread, NULL);
    }
    exit_here(argv[1]);
}
